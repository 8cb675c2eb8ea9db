"""Who changed what."""

from __future__ import annotations

from fastapi import APIRouter

from calibrator.service.web.context import Context
from calibrator.service.web.models.access import AuditItem
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.store import audit

router = APIRouter(tags=["access"])


@router.get("/audit", operation_id="list_audit", summary="Changes through the API, newest first")
def list_audit(context: Context, limit: Limit = 100, cursor: Cursor = None) -> Page[AuditItem]:
    """Every change or attempt of a known caller: who, what, before, after. For admins."""
    behind = decode_cursor(cursor, int)
    with context.store.read() as connection:
        entries = audit.recent(connection, limit + 1, None if behind is None else int(behind[0]))
    kept, next_cursor = cut(entries, limit, lambda entry: (entry.id,))
    return Page(items=[AuditItem.of(entry) for entry in kept], next_cursor=next_cursor)
