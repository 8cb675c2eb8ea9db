"""One set of calibration parameters: its two forms, its limits and their check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from serving_adapter.contract.errors import ContractError

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
MAX_OFFSET = 30.0

Form = Literal["temperature", "affine"]
FORMS: tuple[Form, ...] = ("temperature", "affine")


def check_set(
    form: Form, temperatures: Sequence[float], offsets: Sequence[float], gamma: int, prefix: str = ""
) -> None:
    """Check one set: a value per position, in range, and no offsets in the temperature form.

    Parameters
    ----------
    form, temperatures, offsets
        The set.
    gamma
        Draft positions.
    prefix
        What names the set in a refusal, such as ``segments[2].``.

    Raises
    ------
    ContractError
        Naming field, position and value.
    """
    for name, values in (("temperatures", temperatures), ("offsets", offsets)):
        if len(values) != gamma:
            raise ContractError(prefix + name, f"{len(values)} values", f"one per position, gamma = {gamma}")
    for k, t in enumerate(temperatures, start=1):
        if not (math.isfinite(t) and MIN_TEMPERATURE <= t <= MAX_TEMPERATURE):
            raise ContractError(
                f"{prefix}temperatures: position {k}", t, f"in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
            )
    for k, b in enumerate(offsets, start=1):
        if not (math.isfinite(b) and abs(b) <= MAX_OFFSET):
            raise ContractError(f"{prefix}offsets: position {k}", b, f"in [-{MAX_OFFSET}, {MAX_OFFSET}]")
        if form == "temperature" and b != 0.0:
            raise ContractError(f"{prefix}offsets: position {k}", b, "0 in the temperature form")
