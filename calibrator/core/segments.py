"""Sets per segment: sparse segments borrow from the pooled fit, by how much they know themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.affine import Prior, fit_affine
from calibrator.core.candidate import ProposalOptions, objective_for
from calibrator.core.labels import at_risk, included, prefix_labels
from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.population import figure_weights
from calibrator.core.propensity import kish
from calibrator.core.proposal import Proposal, propose
from calibrator.core.soft_labels import soft_outcomes
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

BORROWED_LABELS = 1000.0
"""Effective labels at which a segment's own temperature counts half."""

SEGMENT_PRIOR = {"offset_spread": 0.1, "centre_spread": 0.15, "slope_spread": 0.1}
"""How far segments lie from the pooled affine fit (docs/statistics.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentFit:
    """A segment's set, shrunk towards the pooled one.

    ``n_eff`` is the effective number of rows at risk (affine) or of labels (temperature) per position,
    ``own_share`` how much of the way from the pooled set to the segment's own optimum was gone, both
    ``[gamma]``.
    """

    parameters: ParameterSet
    rows: int
    n_eff: Float
    own_share: Float


def rows_by_segment(rounds: Rounds) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Name and row mask of every segment that has rows, in order of name.

    >>> rounds = Rounds.build([[0.0]] * 3, [1, 1, 0], segment=[0, 1, 0], segments=("chat", "code"))
    >>> [(name, mask.tolist()) for name, mask in rows_by_segment(rounds)]
    [('chat', [True, False, True]), ('code', [False, True, False])]
    """
    names = np.array(rounds.segment_names(), dtype=object)
    for name in sorted(set(names.tolist())):
        yield name, names == name


def fit_segments(
    rounds: Rounds,
    pooled: ParameterSet,
    sample_weights: ArrayLike | None = None,
    options: ProposalOptions | None = None,
) -> dict[str, SegmentFit]:
    """Fit every segment in the form of the pooled set, shrunk towards it.

    In the affine form the pooled set is the centre of a prior, so that every parameter goes as far as the
    segment's own information carries it. In the temperature form ``log T`` goes the share
    ``n_eff / (n_eff + BORROWED_LABELS)`` of the way.

    Parameters
    ----------
    rounds
        Rows of all segments.
    pooled
        The fit to all of them.
    sample_weights
        Row weights, shape ``[rows]``.
    options
        ``bins``, ``grid``, ``clip``, ``end_of_sequence`` and ``soft_labels`` are used.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(6000, 1))
    >>> segment = (np.arange(6000) >= 5900).astype(int)
    >>> accepted = rng.random(6000) < 1 / (1 + np.exp(-z[:, 0] - segment))  # the second is accepted more
    >>> rounds = Rounds.build(z, accepted, segment=segment, segments=("large", "small"))
    >>> fits = fit_segments(rounds, ParameterSet("affine", np.ones(1), np.zeros(1)))
    >>> bool(0.0 < fits["small"].parameters.offsets[0] < 1.0), bool(fits["small"].own_share[0] < 1.0)
    (True, True)
    """
    options = options or ProposalOptions()
    weights = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    return {
        name: fit_segment(rounds.take(mine), pooled, weights[mine], options)
        for name, mine in rows_by_segment(rounds)
    }


def fit_segment(
    rows: Rounds,
    pooled: ParameterSet,
    weights: Float,
    options: ProposalOptions | None = None,
    looseness: float = 1.0,
) -> SegmentFit:
    """Fit the rows of one segment in the form of the pooled set, shrunk towards it.

    Parameters
    ----------
    rows, weights
        Of this segment; weights of shape ``[rows]``.
    pooled
        Where it shrinks to.
    options
        As of :func:`fit_segments`.
    looseness
        How much further than :data:`SEGMENT_PRIOR` segments may lie from the pooled fit: spreads are
        multiplied, borrowed labels divided by the square.
    """
    fit = _affine if pooled.form == "affine" else _temperature
    return fit(rows, weights, pooled, options or ProposalOptions(), looseness)


def propose_segments(
    rounds: Rounds,
    pooled: ParameterSet,
    options: ProposalOptions | None = None,
    sample_weights: ArrayLike | None = None,
) -> dict[str, Proposal]:
    """Propose a set per segment, as :func:`calibrator.core.proposal.propose` does, the pooled one in force.

    A segment is published on its own only where its held-out rows say that this is better than the pooled
    set; ``auto`` chooses the form segment by segment. The step is not capped: the pooled set is a start,
    not what engines apply to this segment for good.
    """
    options = replace(options or ProposalOptions(), max_log_step=np.inf)
    weights = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    return {
        name: propose(rounds.take(mine), pooled, options, weights[mine])
        for name, mine in rows_by_segment(rounds)
    }


def _affine(
    rows: Rounds, weights: Float, pooled: ParameterSet, options: ProposalOptions, looseness: float
) -> SegmentFit:
    if options.soft_labels:
        outcome, seen, soft = soft_outcomes(rows, options.end_of_sequence)
    else:
        outcome, seen = prefix_labels(rows).astype(np.float64), at_risk(rows, options.end_of_sequence)
        soft = np.ones(outcome.shape)
    spreads = {name: looseness * spread for name, spread in SEGMENT_PRIOR.items()}
    prior = Prior.around(pooled.temperatures, pooled.offsets, **spreads)
    fit = fit_affine(rows.logits, outcome, seen, soft * weights[:, None], prior=prior)
    known = 1.0 - np.diagonal(fit.covariance)[1:] / _prior_variance(prior, rows.gamma)
    return SegmentFit(
        ParameterSet("affine", np.asarray(fit.temperatures), np.asarray(fit.offsets)),
        len(rows),
        kish(seen * weights[:, None]),
        np.clip(known, 0.0, 1.0),
    )


def _prior_variance(prior: Prior, gamma: int) -> Float:
    return np.diagonal(np.linalg.inv(prior.precision(gamma)))[1:]


def _temperature(
    rows: Rounds, weights: Float, pooled: ParameterSet, options: ProposalOptions, looseness: float
) -> SegmentFit:
    if objective_for("temperature", rows, options) == "likelihood":
        seen = at_risk(rows, options.end_of_sequence)
        known = np.broadcast_to(weights[:, None], seen.shape)
        by_likelihood = fit_temperatures_by_likelihood(
            rows.logits, prefix_labels(rows), seen, known, current=pooled.temperatures
        )
        temperatures, n_eff = np.array(by_likelihood.temperatures), kish(seen * weights[:, None])
    else:
        inclusion = figure_weights(rows, options.end_of_sequence, options.clip)[0] * weights[:, None]
        by_ece = fit_temperatures(
            rows.logits,
            prefix_labels(rows),
            included(rows, options.end_of_sequence),
            inclusion,
            bins=options.bins,
            grid=np.asarray(options.grid),
            ties="nearest",
            current=pooled.temperatures,
        )
        temperatures, n_eff = np.array(by_ece.temperatures), np.array(by_ece.n_eff)
    share = n_eff / (n_eff + BORROWED_LABELS / looseness**2)
    log_t = np.log(pooled.temperatures)
    shrunk = np.exp(log_t + share * (np.log(temperatures) - log_t))
    return SegmentFit(ParameterSet("temperature", shrunk, np.zeros(rows.gamma)), len(rows), n_eff, share)
