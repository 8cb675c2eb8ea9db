"""Window sums: everything a figure over time needs, in integers that merge exactly.

Real-valued terms are stored in units of 2**-24, so that ``fold(x) + fold(y) == fold(x ++ y)`` and
``a + b == b + a`` hold to the last bit, on one machine, across collectors and in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, included, prefix_labels
from calibrator.core.propensity import inclusion_weights
from serving_adapter.contract import Rounds

WINDOW_BINS = 20
UNIT = 2.0**24
"""Fixed-point units of one: a window holds 2**39 unweighted rounds before an int64 overflows."""

LOG_LOSS_FLOOR = 1e-9

SCALARS = (
    "drafted",  # positions that belong to the traffic
    "verified",  # of these, verified: unweighted labels
    "accepted",  # of these, accepted
    "predicted",  # sum of a_k over verified (fixed point)
    "weight",  # sums over verified rows with a known propensity (fixed point) ...
    "weight_squared",
    "weight_predicted",
    "weight_accepted",
    "brier",
    "log_loss",
)
BIN_SUMS = ("drafted", "weight", "weight_squared", "predicted", "accepted")
"""Per bin of a_k: count of drafted positions, then weighted sums (fixed point) over labelled ones."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowSums:
    """Additive sums per draft position.

    ``scalars`` has shape ``[gamma, len(SCALARS)]`` and ``bins`` ``[gamma, len(BIN_SUMS), WINDOW_BINS]``,
    both int64.
    """

    scalars: NDArray[np.int64]
    bins: NDArray[np.int64]

    @classmethod
    def zeros(cls, gamma: int) -> Self:
        """Sums of nothing."""
        return cls(
            np.zeros((gamma, len(SCALARS)), dtype=np.int64),
            np.zeros((gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64),
        )

    def __add__(self, other: WindowSums) -> WindowSums:
        if self.scalars.shape != other.scalars.shape:
            raise ValueError(f"gamma: got {len(other.scalars)}, expected {len(self.scalars)}")
        return WindowSums(self.scalars + other.scalars, self.bins + other.bins)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WindowSums):
            return NotImplemented
        return bool(np.array_equal(self.scalars, other.scalars) and np.array_equal(self.bins, other.bins))

    __hash__ = None  # type: ignore[assignment]

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.scalars.shape[0])

    def scalar(self, name: str) -> NDArray[np.float64]:
        """One scalar per position in natural units, shape ``[gamma]``."""
        values = self.scalars[:, SCALARS.index(name)].astype(np.float64)
        return values if name in ("drafted", "verified", "accepted") else values / UNIT

    def bin_sum(self, name: str) -> NDArray[np.float64]:
        """One bin sum in natural units, shape ``[gamma, WINDOW_BINS]``."""
        values = self.bins[:, BIN_SUMS.index(name)].astype(np.float64)
        return values if name == "drafted" else values / UNIT


def fold(
    rounds: Rounds,
    predicted: NDArray[np.float64],
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = 1000.0,
) -> WindowSums:
    """Sum rows into one window.

    Parameters
    ----------
    rounds
        Verified rounds, gamma positions.
    predicted
        Predicted prefix survival ``a_k`` under the parameters of interest, shape ``[rows, gamma]``.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    clip
        Largest inclusion weight.
    """
    gamma = rounds.gamma
    if predicted.shape != (len(rounds), gamma):
        raise ValueError(f"predicted: got shape {predicted.shape}, expected {(len(rounds), gamma)}")
    inside = drafted(rounds, end_of_sequence)
    labelled = included(rounds, end_of_sequence)
    labels = prefix_labels(rounds).astype(np.float64)
    weights = inclusion_weights(rounds, end_of_sequence, clip)
    p = np.clip(predicted, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
    log_loss = -np.where(labels > 0, np.log(p), np.log1p(-p))

    terms = {
        "predicted": predicted * labelled,
        "weight": weights,
        "weight_squared": weights**2,
        "weight_predicted": weights * predicted,
        "weight_accepted": weights * labels,
        "brier": weights * (predicted - labels) ** 2,
        "log_loss": weights * log_loss,
    }
    fixed = {name: _fixed(term) for name, term in terms.items()}
    counts = {"drafted": inside, "verified": labelled, "accepted": labelled & (labels > 0)}
    scalars = np.stack(
        [(counts[name] if name in counts else fixed[name]).sum(axis=0, dtype=np.int64) for name in SCALARS],
        axis=1,
    )
    index = np.minimum((predicted * WINDOW_BINS).astype(np.int64), WINDOW_BINS - 1)
    flat = (index + np.arange(gamma) * WINDOW_BINS).ravel()
    bins = np.zeros((gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64)
    per_bin = (
        inside,
        fixed["weight"],
        fixed["weight_squared"],
        fixed["weight_predicted"],
        fixed["weight_accepted"],
    )
    for i, term in enumerate(per_bin):
        total = np.zeros(gamma * WINDOW_BINS, dtype=np.int64)
        np.add.at(total, flat, term.astype(np.int64).ravel())
        bins[:, i] = total.reshape(gamma, WINDOW_BINS)
    return WindowSums(scalars, bins)


def _fixed(term: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(term * UNIT).astype(np.int64)
