"""Tables of access: tokens, audit, idempotency keys."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Double, Index, Integer, LargeBinary, String, Table, Text

from calibrator.store.schema.base import RowId, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("sha256", String(64), nullable=False),  # of the secret, which is random: no salt needed
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
)

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", Double, nullable=False),
    Column("subject", String(256), nullable=False),
    Column("role", String(16), nullable=False),
    Column("method", String(8), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer),  # null: begun, and its service died
    Column("before", JSON(none_as_null=True)),
    Column("after", JSON(none_as_null=True)),
    Column("request_id", String(64), nullable=False),
    Index(None, "at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("subject", String(256), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("status", Integer),  # null: not answered yet
    Column("headers", JSON(none_as_null=True)),
    Column("body", LargeBinary),
    Index(None, "created_at"),
)
