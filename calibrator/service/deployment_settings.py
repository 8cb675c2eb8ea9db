"""What operators may set per deployment (``deployments.settings``): one type, errors that name the value.

Everything left out falls back to the service's own settings. The schedule of refreshes has its own table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from serving_adapter.contract import ContractError

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0)]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]

DEFAULT_CEILING = 0.1
"""Largest exploration probability that the controller takes by itself."""


class ExploreSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How much is explored.

    ``fixed`` publishes ``explore`` and nothing else; ``auto`` moves between ``floor`` and ``ceiling`` (left
    out: the service's ``explore``, and :data:`DEFAULT_CEILING` or the floor if that is higher) and rests
    while the engine is saturated. ``max_extra_share`` is the budget: verified tokens that exploration may
    add, relative to those verified anyway. ``saturated_requests`` is the number of requests in a step that
    fills the engine; left out, it is the knee of the throughput curve.
    """

    mode: Literal["auto", "fixed"] = "auto"
    explore: Probability | None = None
    floor: Probability | None = None
    ceiling: Probability | None = None
    max_extra_share: Positive | None = None
    saturated_requests: Annotated[int, Meta(ge=1)] | None = None


class RecencySettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a calibration alarm does to old rows.

    With ``forget`` rows from before the drift began are not fitted to any more, once at least ``min_rows``
    have come since then.
    """

    forget: bool = True
    min_rows: Annotated[int, Meta(ge=1)] = 1000


class RolloutSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How a new version reaches replicas.

    ``direct`` puts it in force everywhere at once. ``canary`` scores it first without applying it, for
    ``shadow_rounds`` rounds (0: not at all), and then applies it on ``share`` of the replicas until the
    evidence of at least ``canary_rounds`` rounds on either side decides, or ``max_seconds`` are over.
    Replicas that do not take it up within ``wait_seconds`` end it. ``confidence`` is that of the decision as
    a whole; the tolerances are losses that do not matter: relative for tokens and for step time, nats per
    position for calibration.
    """

    mode: Literal["direct", "canary"] = "direct"
    share: Share = 0.1
    shadow_rounds: Annotated[int, Meta(ge=0)] = 1000
    canary_rounds: Annotated[int, Meta(ge=1)] = 2000
    max_seconds: Positive = 3600.0
    wait_seconds: Positive = 120.0
    confidence: Annotated[float, Meta(ge=0.5, lt=1.0)] = 0.95
    acceptance_tolerance: Positive = 0.03
    calibration_tolerance: Positive = 0.002
    step_time_tolerance: Positive = 0.03


class DeploymentSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """All settings of a deployment; None falls back to the service's own."""

    explore: ExploreSettings = ExploreSettings()
    form: Literal["auto", "temperature", "affine"] | None = None
    half_life_seconds: Positive | None = None
    share: Share | None = None
    recency: RecencySettings = RecencySettings()
    rollout: RolloutSettings = RolloutSettings()


def read_settings(stored: Mapping[str, Any]) -> DeploymentSettings:
    """Check what ``deployments.settings`` holds, or an operator sent.

    Raises
    ------
    ContractError
        Naming the setting and the value.

    >>> read_settings({"explore": {"mode": "fixed", "explore": 0.02}, "form": "affine"}).explore.explore
    0.02
    >>> read_settings({"explore": {"floor": 2}})
    Traceback (most recent call last):
    serving_adapter.contract.errors.ContractError: explore.floor: got 2, expected a number <= 1.0
    """
    _check_finite(stored, "")
    try:
        settings = msgspec.convert(dict(stored), DeploymentSettings)
    except msgspec.ValidationError as error:
        raise _named(error, stored) from None
    _check_relations(settings)
    return settings


def merge_settings(stored: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396: null removes) and check the result.

    Raises
    ------
    ContractError
        Naming the setting and the value; nothing was changed.

    >>> merge_settings({"share": 0.5, "explore": {"floor": 0.01}}, {"share": None, "form": "affine"})
    {'explore': {'floor': 0.01}, 'form': 'affine'}
    """
    merged = _merged(stored, change)
    read_settings(merged)
    return merged


def _merged(stored: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(stored)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            inner = result.get(name)
            result[name] = _merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _check_relations(settings: DeploymentSettings) -> None:
    explore = settings.explore
    if explore.mode == "fixed" and explore.explore is None:
        raise ContractError("explore.explore", None, "a probability when explore.mode is 'fixed'")
    if explore.floor is not None and explore.ceiling is not None and explore.floor > explore.ceiling:
        raise ContractError("explore.ceiling", explore.ceiling, f"at least explore.floor = {explore.floor:g}")


def _check_finite(value: object, path: str) -> None:
    """NaN passes every comparison, so it is looked for by itself."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ContractError(path, value, "a finite number")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_finite(inner, f"{path}.{name}" if path else str(name))


def _named(error: msgspec.ValidationError, stored: Mapping[str, Any]) -> ContractError:
    """Turn msgspec's complaint, which ends in a path, into one that says the value."""
    complaint, _, path = str(error).partition(" - at `$")
    steps = re.findall(r"[^.\[\]`]+", path)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", complaint)
    if unknown is not None:
        steps.append(unknown[1])
    value: Any = stored
    for step in steps:
        value = value.get(step) if isinstance(value, Mapping) else None
    field = ".".join(steps) or "settings"
    if unknown is not None:
        return ContractError(field, value, f"one of {', '.join(_known(steps[:-1]))}")
    if complaint.startswith("Invalid enum value"):
        return ContractError(field, value, f"one of {_CHOICES['.'.join(steps)]}")
    return ContractError(field, value, _in_words(complaint))


def _known(path: list[str]) -> tuple[str, ...]:
    inside: Any = DeploymentSettings()
    for step in path:
        inside = getattr(inside, step)
    return tuple(inside.__struct_fields__)


def _in_words(complaint: str) -> str:
    if "out of range" in complaint:
        return "a number of ordinary size"
    expected = complaint.replace("Expected ", "", 1).partition(", got ")[0].replace("`", "")
    for kind, words in _WORDS.items():
        expected = re.sub(rf"\b{kind}\b", words, expected)
    return expected.replace(" | ", " or ")


_CHOICES = {
    "explore.mode": "'auto', 'fixed'",
    "form": "'auto', 'temperature', 'affine'",
    "rollout.mode": "'direct', 'canary'",
}
_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "object": "an object",
    "str": "a string",
}
