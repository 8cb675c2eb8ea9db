"""Labels for every drafted position, seen or not, that are right on average.

An inverse-propensity estimate uses explored rows only for what was trimmed: at an exploration of 1 %, one row
in a hundred. But a trimmed row says a lot: its logits are known, and so is whether its verified part
survived. The label of a trimmed position is replaced by what the row leads to expect, ``m``, and corrected
on explored rows by what came true, ``m + (A - m) / e``: unbiased if the propensities are right, whatever
``m`` is; nearly right if ``m`` is, whatever the propensities are; and as noisy as ``A - m``, not as ``A``.

Source: J. Robins, A. Rotnitzky, L. P. Zhao, "Estimation of regression coefficients when some regressors are
not always observed", JASA 1994; H. Bang, J. Robins, "Doubly robust estimation", Biometrics 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.affine import fit_affine
from calibrator.core.imputation import imputed_labels
from calibrator.core.labels import EndOfSequence, drafted, included, positions
from calibrator.core.propensity import propensities
from calibrator.core.soft_labels import soft_outcomes, soft_prefix_labels
from calibrator.core.survival import survival
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


def outcome_model(
    rounds: Rounds, sample_weights: ArrayLike | None = None, end_of_sequence: EndOfSequence = "draft_stop"
) -> Float:
    """Prefix survival by an affine fit to these rows: valid on truncated rows. Shape ``[rows, gamma]``."""
    outcome, seen, weight = soft_outcomes(rounds, end_of_sequence)
    if sample_weights is not None:
        weight = weight * np.asarray(sample_weights, dtype=np.float64)[:, None]
    fit = fit_affine(rounds.logits, outcome, seen, weight)
    return survival(rounds.logits, fit.temperatures, fit.offsets)


def expected_labels(
    rounds: Rounds,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = None,
    sample_weights: ArrayLike | None = None,
    model: Float | None = None,
) -> Float:
    """Labels whose mean over any set of drafted rows chosen by their logits is unbiased, ``[rows, gamma]``.

    ``m + (A - m) / pi`` where seen, ``m`` where not; 0 or 1 where verification was certain, and far outside
    of [0, 1] in explored rows. Parameters as for
    :func:`calibrator.core.doubly_robust.doubly_robust`.

    >>> expected_labels(Rounds.build([[0.0, 0.0]] * 2, [1, 2])).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    rows = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    parts = expect(rounds, end_of_sequence, clip, rows, model)
    return parts.imputed + parts.correction


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What stands for labels, every array ``[rows, gamma]``.

    ``spread`` is the variance of corrections, ``inverse`` one over the chance to be seen (0 without one).
    """

    imputed: Float
    correction: Float
    spread: Float
    reachable: NDArray[np.bool_]
    inverse: Float


def expect(
    rounds: Rounds,
    end_of_sequence: EndOfSequence,
    clip: float | None,
    sample_weights: Float,
    model: Float | None,
) -> Expected:
    """Expectations and corrections apart; parameters as for :func:`expected_labels`."""
    seen, inside = included(rounds, end_of_sequence), drafted(rounds, end_of_sequence)
    # What was certain to be seen may be used; what exploration showed must not shape the expectation.
    certain = np.minimum(rounds.scheduled, rounds.verified)
    known = positions(rounds) <= certain[:, None]
    labels = soft_prefix_labels(rounds)
    imputed = labels
    if not known.all():
        expected = outcome_model(rounds, sample_weights, end_of_sequence) if model is None else model
        imputed = np.where(known, labels, imputed_labels(rounds, expected, certain))
    pi = propensities(rounds)
    inverse = np.divide(1.0, pi, out=np.zeros_like(pi), where=pi > 0)
    if clip is not None:
        inverse = np.minimum(inverse, clip)
    explored = seen & ~known & (pi > 0)
    residual = np.where(explored, labels - imputed, 0.0)
    spread = _residual_variance(imputed, residual, explored, inside & ~known & (pi > 0), inverse)
    return Expected(imputed, inverse * residual, spread, known | (pi > 0), inverse)


def _residual_variance(
    imputed: Float,
    residual: Float,
    explored: NDArray[np.bool_],
    trimmed: NDArray[np.bool_],
    inverse: Float,
) -> Float:
    """Variance that exploring instead of verifying adds to a row, shape ``[rows, gamma]``.

    From the model, for every trimmed row: a bin may hold few explored rows or none, and what they happen to
    show is no measure of what they might have. Scaled up where explored rows scatter more than the model
    allows, position by position.
    """
    modelled = imputed * (1.0 - imputed)
    expected = (modelled * explored).sum(axis=0)
    scatter = (residual**2).sum(axis=0)
    scale = np.maximum(np.divide(scatter, expected, out=np.ones_like(scatter), where=expected > 0), 1.0)
    return np.where(trimmed, inverse * modelled * scale, 0.0)
