"""Whether confidence logits and labels are what they claim to be.

Offline files say nothing about how they were made. Three mistakes are common and ruin a fit without
an error: confidences recorded after sigmoid or temperature, placeholders of an engine that had none,
and rounds of a planner that trims, in which a trimmed position looks like a rejected one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.formats.temperatures import FormatError

ENOUGH_ROUNDS = 100
LARGEST_LOGIT = 1e4
TRIMMED_AFTER = 0.2
COARSE_BITS = 8


def check_records(
    logits: ArrayLike, prefix_mask: ArrayLike, *, gamma: int | None = None, where: str = "records"
) -> None:
    """Refuse records that cannot be raw logits with labels of full verification.

    Parameters
    ----------
    logits, prefix_mask
        Shape ``[rounds, gamma]``; the mask is 1 as long as everything up to there was accepted.
    gamma
        What the engine drafts, when known.
    where
        What to call the records in the message.

    Raises
    ------
    FormatError
        One line with the reason.
    """
    z, mask = np.asarray(logits, dtype=np.float64), np.asarray(prefix_mask, dtype=np.float64)
    if z.ndim != 2 or z.shape != mask.shape:
        raise FormatError(
            f"{where}: got logits {z.shape} and labels {mask.shape}, expected one shape [n, gamma]"
        )
    if gamma is not None and z.shape[1] != gamma:
        raise FormatError(f"{where}: got {z.shape[1]} positions, expected gamma = {gamma}")
    if not np.isfinite(z).all() or (np.abs(z) > LARGEST_LOGIT).any():
        worst = z.ravel()[int(np.argmax(np.where(np.isfinite(z), np.abs(z), np.inf)))]
        raise FormatError(
            f"{where}: got a logit of {worst:g}: rows beyond the verified length hold garbage (compact mode)"
        )
    if not np.isin(mask, (0.0, 1.0)).all() or (np.diff(mask, axis=1) > 0).any():
        raise FormatError(f"{where}: labels are not prefix labels: expected ones, then zeros")
    if len(z) < ENOUGH_ROUNDS:
        return
    if z.min() >= 0 and z.max() <= 1:
        raise FormatError(
            f"{where}: all logits lie in [0, 1]: these are probabilities, after sigmoid or temperature; "
            "record the raw logits"
        )
    constant = np.flatnonzero(np.ptp(z, axis=0) == 0)
    if len(constant):
        raise FormatError(
            f"{where}: position {constant[0] + 1} has the logit {z[0, constant[0]]:g} in every round: "
            "a placeholder, not a confidence"
        )
    bits = grain(z)
    if bits.max() - bits.min() >= COARSE_BITS:
        raise FormatError(
            f"{where}: position {np.argmin(bits) + 1} is {bits.max() - bits.min()} bits finer than "
            f"position {np.argmax(bits) + 1}: some positions were divided by a temperature"
        )
    _check_trimmed(mask, where)


def _check_trimmed(mask: NDArray[np.float64], where: str) -> None:
    """A position that is never accepted behind one that often is was not verified."""
    reached, accepted = float(len(mask)), mask.sum(axis=0)
    before = 1.0
    for k, count in enumerate(accepted.tolist()):
        if count == 0 and reached >= ENOUGH_ROUNDS and before >= TRIMMED_AFTER:
            raise FormatError(
                f"{where}: position {k + 1} is never accepted in {int(reached)} rounds that reached it: the "
                "planner trimmed there (compact mode), and a trimmed position is not a rejected one"
            )
        before = count / reached if reached else 0.0
        reached = count
        if not reached:
            return


def grain(logits: NDArray[np.float64]) -> NDArray[np.int64]:
    """Trailing zero bits that nearly all float32 mantissas of a position have, shape ``[gamma]``."""
    bits = logits.astype(np.float32).view(np.uint32)
    zeros = np.full(bits.shape, 23, dtype=np.int64)
    for count in range(22, -1, -1):
        zeros = np.where(bits & np.uint32(1 << count), count, zeros)
    return np.quantile(zeros, 0.02, axis=0, method="lower").astype(np.int64)
