"""Callers and the audit."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from calibrator.service.access import Role
from calibrator.service.web.models.base import Instant, Shown
from calibrator.store.audit import AuditEntry


class Me(Shown):
    """Who asks."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"subject": "token:4f0c2a9be1d7 (deploy)", "role": "operator", "read_only": False}
        }
    )

    subject: str = Field(description="token:ID (NAME), oidc:SUBJECT, or local for a caller without a token.")
    role: Role
    read_only: bool = Field(description="Whether the role may change nothing.")


class AuditItem(Shown):
    """One change or attempt."""

    id: int
    at: Instant
    subject: str
    role: Role
    method: str
    path: str
    status: int | None = Field(
        description="HTTP status of the answer; null when the service died on the way."
    )
    before: Any = Field(default=None, description="What was there before, as far as the change touches it.")
    after: Any = Field(default=None, description="What is there now.")
    request_id: str

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditItem:
        """Show a stored entry."""
        return cls(
            id=entry.id, at=entry.at, subject=entry.subject, role=Role(entry.role), method=entry.method,
            path=entry.path, status=entry.status, before=entry.before, after=entry.after,
            request_id=entry.request_id,
        )  # fmt: skip
