"""Tables of access: tokens, audit, idempotency keys."""

from __future__ import annotations
