"""What decides how much of each draft to verify, from nothing to perfect foresight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, at_risk, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.split import held_out
from serving_adapter.contract import Rounds, prefix_survival

Float = NDArray[np.float64]
Rule = Literal["schedule", "all", "none", "foresight"]

IDENTITY, MONOTONE, FORESIGHT = "identity", "best monotone map", "perfect foresight"
VERIFY_ALL, VERIFY_NONE = "verify all", "verify none"

FOLDS_SALT = 7
FEW_LABELS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A name and a rule: schedule by ``survival`` (shape ``[rows, gamma]``), or one of the fixed rules."""

    name: str
    rule: Rule = "schedule"
    survival: Float | None = None


def monotone_survival(
    rounds: Rounds,
    weights: Float | None = None,
    end_of_sequence: EndOfSequence = "draft_stop",
    salt: int = FOLDS_SALT,
) -> Float:
    """Prefix survival under the best monotone map of each position's logits, shape ``[rows, gamma]``.

    Isotonic regression of the conditional outcome on the logit, position by position, over the rows at
    risk: valid under truncation without weights, like the affine fit. Every request is mapped by what
    the other half of the requests taught, so the map has not seen the labels it is used on. No
    temperature and no offset can beat it, except by chance.

    Parameters
    ----------
    weights
        Of rows, shape ``[rows]``; ones when left out.
    salt
        Of the split by request.
    """
    # Only here: scikit-learn takes a second to load, and every service and collector would wait for it.
    from sklearn.isotonic import IsotonicRegression

    half = held_out(rounds.request, 0.5, salt)
    seen = at_risk(rounds, end_of_sequence)
    labels = prefix_labels(rounds)
    mass = np.ones(len(rounds)) if weights is None else weights
    conditional = np.empty((len(rounds), rounds.gamma))
    for k in range(rounds.gamma):
        z = rounds.logits[:, k].astype(np.float64)
        for side in (half, ~half):
            teach = seen[:, k] & ~side & (mass > 0)
            if not teach.any():  # one request only, or nothing verified so deep
                teach = seen[:, k] & (mass > 0)
            if teach.sum() < FEW_LABELS:
                before = conditional[side, k - 1] if k else np.full(int(side.sum()), 0.5)
                conditional[side, k] = labels[teach, k].mean() if teach.any() else before
                continue
            if not side.any():
                continue
            fit = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
            fit.fit(z[teach], labels[teach, k].astype(np.float64), sample_weight=mass[teach])
            conditional[side, k] = fit.predict(z[side])
    return prefix_survival(conditional)


def standard_policies(
    rounds: Rounds, parameters: Mapping[str, ParameterSet], monotone: Float
) -> tuple[Policy, ...]:
    """The fixed set of comparisons, and one policy for each of ``parameters`` between them.

    Raises
    ------
    ValueError
        A name that is taken, or a set of another gamma.

    >>> rounds = Rounds.build([[0.0]] * 2, [0, 1])
    >>> halved = ParameterSet("temperature", np.array([0.5]), np.zeros(1))
    >>> [policy.name for policy in standard_policies(rounds, {"halved": halved}, np.full((2, 1), 0.5))]
    ['verify all', 'verify none', 'identity', 'halved', 'best monotone map', 'perfect foresight']
    """
    taken = {IDENTITY, MONOTONE, FORESIGHT, VERIFY_ALL, VERIFY_NONE}
    for name, chosen in parameters.items():
        if name in taken:
            raise ValueError(f"policies: got the name {name!r}, which every report has")
        if len(chosen.temperatures) != rounds.gamma:
            raise ValueError(
                f"{name}: got {len(chosen.temperatures)} positions, "
                f"expected gamma = {rounds.gamma} as in the rounds"
            )
    identity = ParameterSet.identity(rounds.gamma)
    return (
        Policy(VERIFY_ALL, "all"),
        Policy(VERIFY_NONE, "none"),
        Policy(IDENTITY, survival=identity.survival(rounds)),
        *(Policy(name, survival=chosen.survival(rounds)) for name, chosen in parameters.items()),
        Policy(MONOTONE, survival=monotone),
        Policy(FORESIGHT, "foresight"),
    )
