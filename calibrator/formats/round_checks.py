"""The checks of :mod:`calibrator.formats.record_checks` for files that may say what was verified.

Only labelled positions are looked at. What cannot be what it claims is refused; what may be honest (a
small file, a head that is constant, a grid of values that a quantised head may have) is told in a note.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import included, prefix_labels
from calibrator.formats.record_checks import COARSE_BITS, ENOUGH_ROUNDS, LARGEST_LOGIT, TRIMMED_AFTER, grain
from calibrator.formats.temperatures import FormatError
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_ROUNDS = 200_000
"""Rounds looked at: mistakes of recording are in all of them."""

FINE_BITS = 8
"""Trailing zero bits of a float32 mantissa below which a value is no bfloat16 or half."""
REPEATED = 0.1
"""Share of repeated values that a head in single precision does not have."""
EDGE_ROUNDS, EDGE_RATE = 100, 0.25


def check_rounds(rounds: Rounds, where: str = "logits") -> list[str]:
    """Refuse rounds that cannot be raw logits with labels of what was verified.

    Parameters
    ----------
    rounds
        Of one file.
    where
        What to call the records in messages.

    Returns
    -------
    Notes on what looks wrong and may be honest.

    Raises
    ------
    FormatError
        One line with the reason.
    """
    rounds = rounds.take(slice(0, MOST_ROUNDS))
    seen = included(rounds, "keep")
    z = rounds.logits.astype(np.float64)
    if not seen.any():
        return []
    values = z[seen]
    if (np.abs(values) > LARGEST_LOGIT).any():
        raise FormatError(
            f"{where}: got a logit of {values[np.argmax(np.abs(values))]:g}: rows beyond the verified length "
            "hold garbage (compact mode), and verified does not say so"
        )
    notes: list[str] = []
    enough = len(rounds) >= ENOUGH_ROUNDS
    if np.ptp(values) == 0:
        # On traffic of one outcome only a head may well be constant.
        if enough and len(np.unique(rounds.accepted)) > 1:
            raise FormatError(
                f"{where}: every logit is {values[0]:g}: a placeholder, not a confidence (an engine "
                "without a confidence head)"
            )
        return [f"{where}: every logit is {values[0]:g}: if this is a placeholder, the fit means nothing"]
    if values.min() >= 0 and values.max() <= 1:
        text = (
            f"{where}: all logits lie in [0, 1]: these are probabilities, after sigmoid or temperature; "
            "record the raw logits"
        )
        if enough:
            raise FormatError(text)
        notes.append(f"{text} (too few rounds to be sure)")
    # A round that a file holds twice says nothing of the head's grid.
    once = np.zeros(len(z), dtype=np.bool_)
    once[np.unique(z, axis=0, return_index=True)[1]] = True
    columns = [z[seen[:, k] & once, k] for k in range(rounds.gamma)]
    constant = [k for k, c in enumerate(columns) if len(c) >= ENOUGH_ROUNDS and np.ptp(c) == 0]
    if constant:
        named = ", ".join(str(k + 1) for k in constant)
        notes.append(f"{where}: the logit is the same in every round at position {named}: a placeholder?")
    if enough:
        notes += _divided([c for k, c in enumerate(columns) if k not in constant], where)
        notes += _trimmed(rounds, z, seen, where)
    return notes


def _divided(columns: list[Float], where: str) -> list[str]:
    """Whether a temperature has been at the logits, by their grid: heads compute in 8 or 11 bits."""
    columns = [column for column in columns if len(np.unique(column)) >= ENOUGH_ROUNDS]
    if not columns:
        return []
    grains = np.array([int(grain(column[:, None])[0]) for column in columns])
    if grains.max() - grains.min() >= COARSE_BITS:
        raise FormatError(
            f"{where}: some positions are {grains.max() - grains.min()} bits finer than others: some were "
            "divided by a temperature; record the raw logits"
        )
    fine = [c for c, g in zip(columns, grains, strict=True) if g < FINE_BITS and not _decimal(c)]
    if any(_repeated(column) > REPEATED for column in fine):
        note = "values repeat as on a coarse grid and yet are not round: divided by a temperature?"
        return [f"{where}: {note}"]
    return []


def _decimal(column: Float) -> bool:
    """Whether the values were rounded to a few decimals, which explains that they repeat."""
    return bool(np.allclose(column, np.round(column, 4), rtol=1e-7, atol=0.0))


def _repeated(column: Float) -> float:
    """Share of values that occurred before, the most frequent one (a bound, say) left out."""
    _, counts = np.unique(column, return_counts=True)
    rest = np.delete(counts, np.argmax(counts))
    return float(1.0 - len(rest) / rest.sum()) if len(rest) else 0.0


def _trimmed(rounds: Rounds, z: Float, seen: Mask, where: str) -> list[str]:
    """Whether positions that the planner trimmed are called rejected."""
    labels = prefix_labels(rounds)
    before = np.ones(len(rounds), dtype=np.bool_)
    rate_before = 1.0
    score = np.cumsum(-np.logaddexp(0.0, -z), axis=1)  # log survival: what planners trim by
    edges = []
    for k in range(rounds.gamma):
        reached = before & seen[:, k]
        if not reached.any():
            break
        accepted = labels[reached, k].astype(np.bool_)
        if k == 0 and not accepted.any():
            return [f"{where}: no draft token was ever accepted: a drafter that never fits, or labels lost"]
        if not accepted.any() and len(accepted) >= ENOUGH_ROUNDS and rate_before >= TRIMMED_AFTER:
            raise FormatError(
                f"{where}: position {k + 1} is never accepted in {len(accepted)} rounds that reached it: the "
                "planner trimmed there (compact mode), and a trimmed position is not a rejected one"
            )
        if _edge(score[reached, k], accepted):
            edges.append(k + 1)
        before, rate_before = before & (labels[:, k] > 0), float(accepted.mean())
    if not edges:
        return []
    text = (
        f"{where}: below a sharp confidence nothing is ever accepted, at position "
        f"{', '.join(map(str, edges))}: the planner trimmed there and verified does not say so"
    )
    if len(edges) > 1:
        raise FormatError(text)
    return [text]


def _edge(score: Float, accepted: Mask) -> bool:
    """Whether acceptance jumps from none at all to often, between neighbours in confidence."""
    in_order = accepted[np.argsort(score, kind="stable")]
    if not in_order.any():
        return False
    first = int(np.argmax(in_order))
    above = in_order[first : first + EDGE_ROUNDS]
    return first >= EDGE_ROUNDS and len(above) == EDGE_ROUNDS and float(above.mean()) >= EDGE_RATE
