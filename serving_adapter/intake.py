"""From the arrays an engine has at hand to the columns of the ring: checked, at the price of a few copies.

This runs in the engine's loop, so each check is one pass over the input as it comes; the slow search for
the offending row only begins once something is known to be wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract import NO_STOP, ContractError
from serving_adapter.ring_layout import (
    GIVEN_DRAFT_STOP,
    GIVEN_RESOLVED,
    GIVEN_RESOLVED_ACCEPTED,
    HALF_MAX,
)

Writes = list[tuple[NDArray[Any], Any]]

# A batch beyond this takes memory of its own for its checks, which is not kept.
_ROWS = 4096
_U8, _U32, _U64, _F32 = np.dtype(np.uint8), np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.float32)
_LARGEST_U32 = 2**32 - 1
_CONTEXT = struct.Struct("<IfeeHH")


class RoundIntake:
    """Checks the columns of one step and pairs them with the columns of the ring.

    Parameters
    ----------
    gamma
        Draft positions of the engine.
    columns
        Columns of the ring by name.
    """

    def __init__(self, gamma: int, columns: Mapping[str, NDArray[Any]]) -> None:
        self.gamma = gamma
        self._most = np.uint8(gamma)
        self._possible = bytes(range(gamma + 1))
        self._columns = dict(columns)
        # Sixteen bytes as one number of the right size: NumPy copies those fastest.
        self._context = columns["context"].view(np.complex128)
        self._fields = {
            name: columns["context"][name] for name in ("version", "explore", "sampling", "segment")
        }
        self._packed_from: tuple[Any, ...] = ()
        self._packed = np.zeros((), dtype=np.complex128)
        # The dot product with these is finite if and only if every logit is: too small to overflow.
        self._weights = np.full(_ROWS * gamma, 1e-6, dtype=np.float32)

    def rows(
        self,
        logits: NDArray[np.float32],
        accepted: ArrayLike,
        request: ArrayLike,
        step: Any,
        verified: ArrayLike | None,
        scheduled: ArrayLike | None,
        resolved: ArrayLike | None,
        resolved_accepted: ArrayLike | None,
        draft_stop: ArrayLike | None,
        accept_probability: ArrayLike | None,
    ) -> tuple[Writes, int]:
        """Check the columns of ``[rows]`` and pair each with its place; also says which were given.

        Raises
        ------
        ContractError
            Another shape or type, or a relation of the contract broken: accepted <= verified <= resolved
            <= gamma, scheduled <= gamma.
        """
        rows, columns, most = logits.shape[0], self._columns, self._most
        n = _lengths("accepted", accepted, rows)
        v = np.full(rows, most) if verified is None else _lengths("verified", verified, rows)
        s = v if scheduled is None else _lengths("scheduled", scheduled, rows)
        if np.count_nonzero(v < n):
            _fail("accepted", n, n > most, f"at most gamma = {self.gamma}")
            _fail("accepted", n, n > v, "at most verified")
        # What is left of the bytes without those of a length: half the price of comparing in NumPy.
        if (v.tobytes() + s.tobytes()).translate(None, self._possible):
            _fail("verified", v, v > most, f"at most gamma = {self.gamma}")
            _fail("scheduled", s, s > most, f"at most gamma = {self.gamma}")
        writes: Writes = [
            (columns["logits"], logits),
            (columns["request"], _requests(request, rows)),
            (columns["step"], _whole("step", step, rows, _LARGEST_U32)),
            (columns["accepted"], n),
            (columns["verified"], v),
            (columns["scheduled"], s),
        ]
        given = 0
        if resolved is not None or resolved_accepted is not None:
            given |= GIVEN_RESOLVED | GIVEN_RESOLVED_ACCEPTED
            writes += self._resolved(n, v, resolved, resolved_accepted)
        if draft_stop is not None:
            given |= GIVEN_DRAFT_STOP
            stop = _lengths("draft_stop", draft_stop, rows)
            wrong = (stop >= most) & (stop != NO_STOP)
            _fail("draft_stop", stop, wrong, f"below gamma = {self.gamma}, or {NO_STOP}")
            writes.append((columns["draft_stop"], stop))
        if "accept_probability" in columns:
            writes.append((columns["accept_probability"], self._soft_labels(accept_probability, rows)))
        return writes, given

    def context(
        self,
        rows: int,
        version: Any,
        share: float,
        explore: Any,
        sampling: Any,
        segment: Any,
        given: int,
        labels: int,
    ) -> Writes:
        """Check what is mostly one value for all rows, and pair it with its place.

        Raises
        ------
        ContractError
            Out of range, or of another shape.
        """
        one = (version, share, explore, sampling, segment, given)
        if (
            type(sampling) is not np.ndarray
            and type(segment) is not np.ndarray
            and type(explore) is not np.ndarray
            and type(version) is not np.ndarray
            and one == self._packed_from
        ):
            return [(self._context, self._packed)]
        checked = {
            "version": _whole("version", version, rows, _LARGEST_U32),
            "explore": _decimal("explore", explore, rows, 1.0),
            "sampling": _decimal("sampling", sampling, rows, HALF_MAX),
            "segment": _whole("segment", segment, rows, labels - 1),
        }
        arrays = {name: value for name, value in checked.items() if isinstance(value, np.ndarray)}
        single = [0 if name in arrays else value for name, value in checked.items()]
        packed = _CONTEXT.pack(single[0], share, *single[1:], given)
        self._packed = np.frombuffer(packed, dtype=np.complex128).reshape(())
        self._packed_from = () if arrays else one
        return [
            (self._context, self._packed),
            *((self._fields[name], value) for name, value in arrays.items()),
        ]

    def logits(self, value: ArrayLike) -> NDArray[np.float32]:
        """Raw confidence logits ``[rows, gamma]`` as single precision.

        Raises
        ------
        ContractError
            Another shape, or a number that is not finite.
        """
        z = value if type(value) is np.ndarray else np.asarray(value)
        if z.ndim != 2 or z.shape[1] != self.gamma:
            raise ContractError("logits", f"shape {z.shape}", f"shape [rows, gamma = {self.gamma}]")
        if z.dtype != _F32:
            z = _as_single(z)
        size = z.size
        weights = self._weights[:size] if z.shape[0] <= _ROWS else np.full(size, 1e-6, dtype=np.float32)
        # vdot and not dot: that one warns about infinities of both signs.
        if not abs(np.vdot(z, weights)) < np.inf:
            row, position = (int(i) for i in np.argwhere(~np.isfinite(z))[0])
            raise ContractError(
                f"logits: row {row}, position {position + 1}", float(z[row, position]), "a finite number"
            )
        return z

    def _resolved(
        self,
        n: NDArray[np.uint8],
        v: NDArray[np.uint8],
        resolved: ArrayLike | None,
        resolved_accepted: ArrayLike | None,
    ) -> Writes:
        rows = len(v)
        r = v if resolved is None else _lengths("resolved", resolved, rows)
        known = n if resolved_accepted is None else _lengths("resolved_accepted", resolved_accepted, rows)
        _fail("resolved", r, r > self._most, f"at most gamma = {self.gamma}")
        _fail("resolved", r, r < v, "at least verified")
        _fail(
            "resolved_accepted",
            known,
            np.where(n < v, known != n, (known < n) | (known > r)),
            "accepted after a rejection, else between accepted and resolved",
        )
        return [(self._columns["resolved"], r), (self._columns["resolved_accepted"], known)]

    def _soft_labels(self, value: ArrayLike | None, rows: int) -> Any:
        """Acceptance probabilities ``[rows, gamma]``; NaN where unknown, everywhere when left out."""
        if value is None:
            return np.nan
        array = np.asarray(value)
        if array.dtype.kind != "f" or array.shape != (rows, self.gamma):
            raise ContractError(
                "accept_probability", f"{array.dtype.name} {array.shape}", f"floats [{rows}, {self.gamma}]"
            )
        wrong = (array < 0) | (array > 1)
        if np.count_nonzero(wrong):
            row, position = (int(i) for i in np.argwhere(wrong)[0])
            raise ContractError(
                f"accept_probability: row {row}, position {position + 1}",
                float(array[row, position]),
                "a probability in [0, 1], or NaN where unknown",
            )
        return array


def _as_single(z: NDArray[Any]) -> NDArray[np.float32]:
    if z.dtype.kind not in "fiu":
        raise ContractError("logits", z.dtype.name, "numbers")
    if z.dtype.itemsize > 4:
        # Keeps NaN and infinity, and brings the rest into the range of single precision.
        largest = np.finfo(np.float32).max
        z = np.where(np.isfinite(z), np.clip(z, -largest, largest), z)
    return z.astype(np.float32)


def _lengths(name: str, value: ArrayLike, rows: int) -> NDArray[np.uint8]:
    """Draft lengths as u8."""
    if type(value) is np.ndarray and value.dtype is _U8 and value.shape == (rows,):
        return value
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.ndim == 0:
        array = np.full(rows, array)
    if array.shape != (rows,):
        raise ContractError(name, f"shape {array.shape}", f"shape [{rows}]")
    if array.dtype == _U8:
        return array
    if array.dtype.kind not in "iu" and rows:  # an empty list says nothing of its type
        raise ContractError(name, array.dtype.name, "whole numbers")
    _fail(name, array, (array < 0) | (array > NO_STOP), f"in [0, {NO_STOP}]")
    return array.astype(np.uint8)


def _requests(value: ArrayLike, rows: int) -> NDArray[Any]:
    """Request hashes ``[rows]``; signed ones stand for the same 64 bits."""
    if type(value) is np.ndarray and value.dtype is _U64 and value.shape == (rows,):
        return value
    array = value if type(value) is np.ndarray else _hashes(value)
    if array.dtype != _U64:
        if array.dtype.kind not in "iu":
            raise ContractError("request", array.dtype.name, "64-bit hashes, see request_hash")
        array = array.astype(np.uint64)
    if array.shape != (rows,):
        raise ContractError("request", f"shape {array.shape}", f"shape [{rows}]")
    return array


def _hashes(value: ArrayLike) -> NDArray[Any]:
    """Make an array of whatever an engine keeps its hashes in: exact beyond 2**63, and no text."""
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    for row, item in enumerate(value):
        if not isinstance(item, int | np.integer) or not 0 <= item < 2**64:
            raise ContractError(f"request: row {row}", item, "a 64-bit hash, see request_hash")
    return np.array(value, dtype=np.uint64)


def _whole(name: str, value: Any, rows: int, largest: int) -> Any:
    """Whole numbers in [0, largest]: one for all rows, or an array of shape ``[rows]``."""
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype is _U32 and largest == _LARGEST_U32 and array.shape == (rows,):
        return array  # every number of the type will do
    if array.dtype.kind not in "iu":
        raise ContractError(name, value, "whole numbers")
    if array.ndim == 0:
        if not 0 <= int(array) <= largest:
            raise ContractError(name, int(array), f"a whole number in [0, {largest}]")
        return int(array)
    if array.shape != (rows,):
        raise ContractError(name, f"shape {array.shape}", f"shape [{rows}]")
    _fail(name, array, (array < 0) | (array > largest), f"a whole number in [0, {largest}]")
    return array


def _decimal(name: str, value: Any, rows: int, largest: float) -> Any:
    """Finite numbers in [0, largest]: one for all rows, or an array of shape ``[rows]``."""
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ContractError(name, value, "numbers")
    if array.ndim and array.shape != (rows,):
        raise ContractError(name, f"shape {array.shape}", f"shape [{rows}]")
    outside = ~((array >= 0) & (array <= largest))
    _fail(name, np.atleast_1d(array), np.atleast_1d(outside), f"a number in [0, {largest:g}]")
    return array if array.ndim else float(array)


def _fail(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    if np.count_nonzero(wrong):
        row = int(np.argmax(wrong))
        raise ContractError(f"{name}: row {row}", values[row].item(), expected)
