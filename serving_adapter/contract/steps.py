"""One row per engine step: how large it was, how long it took, what was promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract.errors import ContractError

STEP_COLUMNS: dict[str, str] = {
    "rows": "<u4",
    "batch_tokens": "<u4",
    "requests": "<u4",
    "context_tokens": "<f4",
    "step_seconds": "<f4",
    "draft_seconds": "<f4",
    "verify_seconds": "<f4",
    "graph_tokens": "<u4",
    "predicted_accepted": "<f4",
    "predicted_seconds": "<f4",
}


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Engine steps as columns, each of shape ``[steps]``.

    Times are in seconds, sizes in tokens. Zero means "not known" for ``context_tokens``,
    ``draft_seconds``, ``verify_seconds`` and the two predictions, and "eager" for ``graph_tokens``.
    """

    rows: NDArray[np.uint32]
    batch_tokens: NDArray[np.uint32]
    requests: NDArray[np.uint32]
    context_tokens: NDArray[np.float32]
    step_seconds: NDArray[np.float32]
    draft_seconds: NDArray[np.float32]
    verify_seconds: NDArray[np.float32]
    graph_tokens: NDArray[np.uint32]
    predicted_accepted: NDArray[np.float32]
    predicted_seconds: NDArray[np.float32]

    @classmethod
    def build(cls, **columns: ArrayLike) -> Self:
        """Validate columns; one left out is all zeros. ``step_seconds`` is required.

        Raises
        ------
        ContractError
            Naming the column and the row.
        """
        unknown = sorted(set(columns) - set(STEP_COLUMNS))
        if unknown:
            raise ContractError("steps column", unknown[0], f"one of {', '.join(STEP_COLUMNS)}")
        if "step_seconds" not in columns:
            raise ContractError("steps.step_seconds", None, "one number per step")
        count = np.asarray(columns["step_seconds"]).size
        arrays: dict[str, Any] = {}
        for name, wire in STEP_COLUMNS.items():
            given = columns.get(name)
            try:
                array = np.zeros(count, dtype=wire) if given is None else np.asarray(given)
            except (TypeError, ValueError) as error:
                raise ContractError(f"steps.{name}", given, f"shape [{count}]") from error
            if array.dtype.kind not in "biuf":
                raise ContractError(f"steps.{name}", given, f"numbers of shape [{count}]")
            if array.ndim == 0:
                array = np.full(count, array)
            if array.shape != (count,):
                raise ContractError(f"steps.{name}", f"shape {array.shape}", f"shape [{count}]")
            wrong = ~(np.isfinite(array) & (array >= 0))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ContractError(f"steps.{name}: row {row}", array[row].item(), "a finite number >= 0")
            if array.dtype != wire and count:
                _check_narrowing(name, array, whole=np.dtype(wire).kind == "u")
            arrays[name] = array.astype(wire)
        many = (arrays["requests"] > 0) & (arrays["rows"] > arrays["requests"])
        if many.any():
            row = int(np.argmax(many))
            raise ContractError(
                f"steps.rows: row {row}",
                int(arrays["rows"][row]),
                f"at most the requests, {int(arrays['requests'][row])}",
            )
        short = (arrays["graph_tokens"] > 0) & (arrays["graph_tokens"] < arrays["batch_tokens"])
        if short.any():
            row = int(np.argmax(short))
            raise ContractError(
                f"steps.graph_tokens: row {row}",
                int(arrays["graph_tokens"][row]),
                f"0 or at least the batch tokens, {int(arrays['batch_tokens'][row])}",
            )
        return cls(**arrays)

    @classmethod
    def empty(cls) -> Self:
        """No steps at all."""
        return cls(**{name: np.zeros(0, dtype=wire) for name, wire in STEP_COLUMNS.items()})

    def __len__(self) -> int:
        return int(self.step_seconds.shape[0])

    def take(self, index: NDArray[Any] | slice) -> Self:
        """Select steps by boolean mask, indices or slice."""
        changed: dict[str, Any] = {f.name: getattr(self, f.name)[index] for f in fields(self)}
        return replace(self, **changed)

    @classmethod
    def concatenate(cls, parts: Sequence[Steps]) -> Steps:
        """Append the steps of several batches in order."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in STEP_COLUMNS})


def _check_narrowing(name: str, array: NDArray[Any], *, whole: bool) -> None:
    """Refuse what the 32 bits of the wire cannot hold."""
    values = array.astype(np.float64)
    large = values > (2**32 - 1 if whole else float(np.finfo(np.float32).max))
    if large.any():
        row = int(np.argmax(large))
        limit = "at most 2**32 - 1" if whole else "a number that fits 32 bits"
        raise ContractError(f"steps.{name}: row {row}", array[row].item(), limit)
    broken = values != np.floor(values)
    if whole and broken.any():
        row = int(np.argmax(broken))
        raise ContractError(f"steps.{name}: row {row}", array[row].item(), "a whole number")
