"""One row per request and step: what was drafted, scheduled, verified and accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract.errors import ContractError

MAX_GAMMA = 32
NO_STOP = 255
"""``draft_stop`` of a round whose draft holds no stop token."""

# Name, little-endian wire type, width in positions (0: one value a row).
ROUND_COLUMNS: dict[str, str] = {
    "request": "<u8",
    "step": "<u4",
    "scheduled": "u1",
    "verified": "u1",
    "accepted": "u1",
    "resolved": "u1",
    "resolved_accepted": "u1",
    "draft_stop": "u1",
    "explore": "<f2",
    "version": "<u4",
    "segment": "<u2",
    "sampling": "<f2",
}
POSITION_COLUMNS: dict[str, str] = {"logits": "<f2", "accept_probability": "<f2"}


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """Verified rounds as columns; every array has one entry (or one row) per round.

    Build one with :meth:`build`, which fills what may be left out and validates. ``logits`` and
    ``accept_probability`` have shape ``[rows, gamma]``; every other column has shape ``[rows]``. See
    docs/contracts.md for the meaning of each column.
    """

    logits: NDArray[np.floating[Any]]
    accepted: NDArray[np.uint8]
    verified: NDArray[np.uint8]
    scheduled: NDArray[np.uint8]
    resolved: NDArray[np.uint8]
    resolved_accepted: NDArray[np.uint8]
    draft_stop: NDArray[np.uint8]
    request: NDArray[np.uint64]
    step: NDArray[np.uint32]
    explore: NDArray[np.floating[Any]]
    version: NDArray[np.uint32]
    segment: NDArray[np.uint16]
    sampling: NDArray[np.floating[Any]]
    accept_probability: NDArray[np.floating[Any]] | None = None
    segments: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        logits: ArrayLike,
        accepted: ArrayLike,
        *,
        segments: Sequence[str] = (),
        accept_probability: ArrayLike | None = None,
        **columns: ArrayLike | None,
    ) -> Self:
        """Validate columns and fill the ones left out.

        A missing ``verified`` means everything was verified, a missing ``scheduled`` equals
        ``verified``, a missing ``request`` makes every row its own request. A scalar stands for a
        column of equal values.

        Raises
        ------
        ContractError
            Naming the column, and the row and position where there is one.
        """
        z = _as_logits(logits)
        rows, gamma = z.shape
        unknown = sorted(set(columns) - set(ROUND_COLUMNS))
        if unknown:
            raise ContractError("column", unknown[0], f"one of {', '.join(ROUND_COLUMNS)}")

        def column(name: str, default: ArrayLike) -> NDArray[Any]:
            given = columns.get(name)
            return _as_column(name, default if given is None else given, rows)

        n = _as_column("accepted", accepted, rows)
        v = column("verified", np.full(rows, gamma, dtype=np.uint8))
        built = cls(
            logits=z,
            accepted=n,
            verified=v,
            scheduled=column("scheduled", v),
            resolved=column("resolved", v),
            resolved_accepted=column("resolved_accepted", n),
            draft_stop=column("draft_stop", np.full(rows, NO_STOP, dtype=np.uint8)),
            request=column("request", np.arange(rows, dtype=np.uint64)),
            step=column("step", np.zeros(rows, dtype=np.uint32)),
            explore=column("explore", np.zeros(rows, dtype=np.float16)),
            version=column("version", np.zeros(rows, dtype=np.uint32)),
            segment=column("segment", np.zeros(rows, dtype=np.uint16)),
            sampling=column("sampling", np.zeros(rows, dtype=np.float16)),
            accept_probability=_as_probabilities(accept_probability, rows, gamma),
            segments=_as_segments(segments),
        )
        built._check_relations()
        return built

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.logits.shape[1])

    def take(self, index: NDArray[Any] | slice) -> Self:
        """Select rows by boolean mask, indices or slice."""
        changed: dict[str, Any] = {
            f.name: getattr(self, f.name)[index]
            for f in fields(self)
            if f.name != "segments" and getattr(self, f.name) is not None
        }
        return replace(self, **changed)

    def segment_names(self) -> list[str]:
        """Segment label of every row; rows outside the dictionary are called ``other``."""
        names = self.segments or ("default",)
        return [names[i] if i < len(names) else "other" for i in self.segment.tolist()]

    @classmethod
    def concatenate(cls, parts: Sequence[Rounds]) -> Rounds:
        """Append batches of equal gamma; segment dictionaries are merged."""
        if not parts:
            raise ContractError("rounds", [], "at least one batch")
        gamma = parts[0].gamma
        names: dict[str, int] = {}
        segment_columns = []
        for part in parts:
            if part.gamma != gamma:
                raise ContractError("gamma", part.gamma, f"{gamma}, as in the first batch")
            own = part.segments or ("default",)
            lookup = np.array([names.setdefault(name, len(names)) for name in own], dtype=np.uint16)
            segment_columns.append(lookup[np.minimum(part.segment, len(own) - 1)])
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("logits", *(c for c in ROUND_COLUMNS if c != "segment"))
        }
        soft = [part.accept_probability for part in parts]
        if any(p is not None for p in soft):
            arrays["accept_probability"] = np.concatenate(
                [
                    np.full((len(part), gamma), np.nan, dtype=np.float16) if p is None else p
                    for part, p in zip(parts, soft, strict=True)
                ]
            )
        return cls(**arrays, segment=np.concatenate(segment_columns), segments=tuple(names))

    def _check_relations(self) -> None:
        gamma = self.gamma
        for name in ("accepted", "verified", "scheduled", "resolved", "resolved_accepted"):
            _check_rows(name, getattr(self, name), getattr(self, name) > gamma, f"at most gamma = {gamma}")
        _check_rows("accepted", self.accepted, self.accepted > self.verified, "at most verified")
        _check_rows("resolved", self.resolved, self.resolved < self.verified, "at least verified")
        rejected = self.accepted < self.verified
        wrong = np.where(
            rejected,
            self.resolved_accepted != self.accepted,
            (self.resolved_accepted < self.accepted) | (self.resolved_accepted > self.resolved),
        )
        _check_rows(
            "resolved_accepted",
            self.resolved_accepted,
            wrong.astype(bool),
            "accepted after a rejection, else between accepted and resolved",
        )
        stops = self.draft_stop
        _check_rows(
            "draft_stop", stops, (stops >= gamma) & (stops != NO_STOP), f"below gamma = {gamma}, or {NO_STOP}"
        )
        explore = self.explore
        _check_rows("explore", explore, ~((explore >= 0) & (explore <= 1)), "a probability in [0, 1]")
        sampling = self.sampling
        _check_rows("sampling", sampling, ~((sampling >= 0) & np.isfinite(sampling)), "a temperature >= 0")
        if self.segments:
            _check_rows(
                "segment",
                self.segment,
                self.segment >= len(self.segments),
                f"an index into segments ({len(self.segments)})",
            )


def _as_logits(value: ArrayLike) -> NDArray[np.floating[Any]]:
    try:
        z = np.asarray(value)
        if z.dtype.kind not in "fiu":
            z = z.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ContractError("logits", type(value).__name__, "numbers of shape [rows, gamma]") from error
    if z.dtype.kind != "f":
        z = z.astype(np.float64)
    if z.ndim != 2:
        raise ContractError("logits", f"shape {z.shape}", "shape [rows, gamma]")
    if not 1 <= z.shape[1] <= MAX_GAMMA:
        raise ContractError("gamma", z.shape[1], f"1 to {MAX_GAMMA} draft positions")
    finite = np.isfinite(z)
    if not finite.all():
        row, position = (int(i) for i in np.argwhere(~finite)[0])
        raise ContractError(
            f"logits: row {row}, position {position + 1}", float(z[row, position]), "a finite number"
        )
    return z


def _as_column(name: str, value: ArrayLike, rows: int) -> NDArray[Any]:
    wire = np.dtype(ROUND_COLUMNS[name])
    try:
        array = as_numbers(value)
    except (TypeError, ValueError) as error:
        raise ContractError(name, type(value).__name__, f"shape [{rows}]") from error
    if array.dtype.kind not in "biuf":
        raise ContractError(name, value, f"numbers of shape [{rows}]")
    if array.ndim == 0:
        array = np.full(rows, array)
    if array.shape != (rows,):
        raise ContractError(name, f"shape {array.shape}", f"shape [{rows}]")
    if array.dtype == wire:
        return array
    if wire.kind == "f":
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array))
        _check_rows(name, array, ~whole, "a whole number")
    limits = np.iinfo(wire)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        bad = (array < limits.min) | (array > limits.max)
        _check_rows(name, array, bad, f"between {limits.min} and {limits.max}")
    return array.astype(wire)


def as_numbers(value: Any) -> NDArray[Any]:
    """Make an array, and keep whole numbers above 2**63 exact, which NumPy rounds beside smaller ones."""
    array = np.asarray(value)
    if array.dtype.kind != "f" or not isinstance(value, list | tuple):
        return array
    whole = all(isinstance(item, int) and 0 <= item < 2**64 for item in value)
    return np.asarray(value, dtype=np.uint64) if whole and value else array


def _as_probabilities(value: ArrayLike | None, rows: int, gamma: int) -> NDArray[np.floating[Any]] | None:
    if value is None:
        return None
    try:
        array = np.asarray(value, dtype=None)
        array = array if array.dtype.kind == "f" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ContractError("accept_probability", type(value).__name__, f"shape [{rows}, {gamma}]") from error
    if array.shape != (rows, gamma):
        raise ContractError("accept_probability", f"shape {array.shape}", f"shape [{rows}, {gamma}]")
    wrong = (array < 0) | (array > 1)
    if wrong.any():
        row, position = (int(i) for i in np.argwhere(wrong)[0])
        raise ContractError(
            f"accept_probability: row {row}, position {position + 1}",
            float(array[row, position]),
            "a probability in [0, 1], or NaN where unknown",
        )
    return array


def _as_segments(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ContractError("segments", value, "a list of labels")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 128:
            raise ContractError("segments", name, "labels of 1 to 128 characters")
    return tuple(str(name) for name in names)  # NumPy's strings cannot be encoded


def _check_rows(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ContractError(f"{name}: row {row}", values[row].item(), expected)


def round_arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the contract's columns of a mapping of arrays and drop every other key."""
    names = {*ROUND_COLUMNS, *POSITION_COLUMNS}
    return {name: data[name] for name in data if name in names}
