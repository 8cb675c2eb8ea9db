"""Who the caller is to the service."""

from __future__ import annotations

from fastapi import APIRouter

from calibrator.service.access import Role
from calibrator.service.web.access import CurrentCaller
from calibrator.service.web.models.access import Me

router = APIRouter(tags=["access"])


@router.get("/me", operation_id="get_me", summary="Who am I")
def me(caller: CurrentCaller) -> Me:
    """Subject and role of the caller; ``read_only`` when the role may change nothing."""
    return Me(subject=caller.subject, role=caller.role, read_only=not caller.role.covers(Role.OPERATOR))
