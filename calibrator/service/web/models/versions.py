"""Parameter versions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from calibrator.service.web.models.base import Figure, Instant, Shown


class Version(Shown):
    """One version, as lists show it. Figures are per position, on rows that its fit had not seen."""

    version: int = Field(ge=1)
    state: str = Field(description="What became of it: published, adopted, imported, candidate, aborted ...")
    created_at: Instant
    previous: int = Field(description="Version that it followed; 0 is the identity.", ge=0)
    form: str = Field(description="temperature or affine.")
    temperatures: list[float]
    offsets: list[float]
    explore: float
    reasons: list[str]
    n_eff: list[Figure]
    ece_before: list[Figure] = Field(description="Expected calibration error of the set before.")
    ece_after: list[Figure] = Field(description="Of this set, on the same rows.")
    noise_floor: list[Figure]
    status: list[str]
    segments: int = Field(description="Segments with a set of their own.", ge=0)
    note: str | None = Field(
        default=None, description="In the answer to a change: what is still to come, or null."
    )


class VersionDocument(Shown):
    """One version with the document that replicas apply. It never changes; its ETag is its digest."""

    version: int
    state: str
    created_at: Instant
    document: dict[str, Any]


class Change(Shown):
    """One value that differs."""

    path: str = Field(description="JSON pointer into the document.", examples=["/temperatures/3"])
    before: Any = Field(alias="from")
    after: Any = Field(alias="to")


class VersionDiff(Shown):
    """What two versions differ in; digests and signatures aside."""

    version: int
    against: int
    changes: list[Change]
