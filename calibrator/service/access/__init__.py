"""Who may do what: roles, tokens, identity providers."""

from calibrator.service.access.policy import AccessPolicy
from calibrator.service.access.roles import AccessError, Caller, Role

__all__ = ["AccessError", "AccessPolicy", "Caller", "Role"]
