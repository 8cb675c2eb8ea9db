"""Roles and callers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a caller may do; each role may do what the ones before it may."""

    VIEWER = "viewer"
    """Read everything but the audit."""
    OPERATOR = "operator"
    """Change things."""
    ADMIN = "admin"
    """Read the audit, too."""

    def covers(self, needed: Role) -> bool:
        """Whether this role suffices where ``needed`` is asked for."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``subject`` is ``token:ID (NAME)``, ``oidc:SUBJECT`` or ``local``."""

    subject: str
    role: Role


class AccessError(Exception):
    """The caller is not let in. The message never holds what was presented."""
