"""What operators send to change things."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from calibrator.service.importing import ForeignFormat
from calibrator.service.web.models.base import Given, Probability
from serving_adapter.contract import MAX_GAMMA

Reason = Annotated[str, Field(max_length=500, description="Why; kept in the audit and with the version.")]
Settings = Annotated[
    dict[str, Any],
    Field(description="explore, form, half_life_seconds, share, recency, rollout; see docs/service.md."),
]


class NewDeployment(Given):
    """A deployment that is to be known before its first rows come."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"name": "chat", "gamma": 7, "fingerprint": "9c1f", "settings": {"form": "affine"}}
        }
    )

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[!-z|~]+$",
        description="Printable ASCII but spaces and braces.",
    )
    gamma: int = Field(ge=1, le=MAX_GAMMA, strict=True, description="Draft positions.")
    fingerprint: str = Field(
        max_length=128, pattern=r"^[ -~]*$", description="Engine configuration, as its replicas report it."
    )
    settings: Settings = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _can_be_in_a_path(cls, name: str) -> str:
        if name in (".", ".."):
            raise ValueError("expected another name: clients take this one out of a path")
        return name


class DeploymentChange(Given):
    """A JSON merge patch (RFC 7396) of the settings: null removes one."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"settings": {"half_life_seconds": 1800, "share": None}}}
    )

    settings: Settings = Field(default_factory=dict)


class Frozen(Given):
    """Hold the parameters in force, or let them be refreshed again."""

    model_config = ConfigDict(json_schema_extra={"example": {"frozen": True, "reason": "load test"}})

    frozen: bool = Field(strict=True)
    reason: Reason = ""


class ExplorationSettings(Given):
    """How much is explored; replaces what was set. What is left out has its default."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"mode": "auto", "floor": 0.002, "ceiling": 0.05}}
    )

    mode: Literal["auto", "fixed"]
    explore: Probability | None = Field(default=None, description="The probability in mode fixed.")
    floor: Probability | None = None
    ceiling: Probability | None = None
    max_extra_share: float | None = Field(
        default=None, gt=0, description="Verified tokens it may add, relative."
    )
    saturated_tokens: int | None = Field(default=None, ge=1, lt=2**32, description="Tokens of a full step.")


class NewVersion(Given):
    """Parameters to import: a document of ours, or the content of an engine's file with its format."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "format": "sglang",
                "content": {"temperatures": [1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4]},
                "reason": "measured offline",
            }
        }
    )

    document: dict[str, Any] | None = Field(default=None, description="A parameter document; renumbered.")
    format: ForeignFormat | None = None
    content: dict[str, Any] | None = Field(default=None, description="The JSON of the file.")
    requests: int = Field(
        default=1, ge=1, le=100_000, description="Concurrency at which additive costs count."
    )
    rollout: bool = Field(default=False, strict=True, description="Put it on trial instead of in force.")
    reason: Reason = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> NewVersion:
        foreign = self.format is not None and self.content is not None
        half = (self.format is None) != (self.content is None)
        if half or foreign == (self.document is not None):
            raise ValueError("expected either document, or format and content")
        return self


class Rollback(Given):
    """Bring back what an earlier version holds."""

    model_config = ConfigDict(json_schema_extra={"example": {"version": 11, "reason": "answers got slower"}})

    version: int = Field(ge=1, lt=2**32, strict=True, description="Whose content is to be in force again.")
    reason: Reason = ""
    freeze: bool = Field(
        default=False, strict=True, description="Freeze the deployment, so that it stays in force."
    )
