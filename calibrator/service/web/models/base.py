"""What all models of the API share."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from calibrator.service.web.guards import ESCAPED_SLASH
from calibrator.service.web.times import Instant

__all__ = ["DeploymentName", "Figure", "Given", "Instant", "Probability", "Shown"]


class Shown(BaseModel):
    """What the API gives."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, ser_json_inf_nan="null")


class Given(BaseModel):
    """What the API takes: an unknown field is a mistake, and so is a number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


def _finite(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "item"):
        value = value.item()
    return value if not isinstance(value, float) or math.isfinite(value) else None


Figure = Annotated[float | None, BeforeValidator(_finite)]
"""A number that may be undefined: NaN and infinity become null."""

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


def _with_slashes(value: str) -> str:
    return value.replace(ESCAPED_SLASH, "/")


DeploymentName = Annotated[
    str,
    AfterValidator(_with_slashes),
    Path(
        min_length=1,
        max_length=128,
        description="Name of the deployment; a slash in it is written %2F.",
        examples=["chat"],
    ),
]
