"""Access: tokens, audit, idempotency keys.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _column(name: str, kind: sa.types.TypeEngine, nullable: bool = False) -> sa.Column:
    return sa.Column(name, kind, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "tokens",
        _column("id", sa.String(32)),
        _column("name", sa.String(128)),
        _column("role", sa.String(16)),
        _column("sha256", sa.String(64)),
        _column("created_at", sa.Double()),
        _column("expires_at", sa.Double(), nullable=True),
        _column("revoked_at", sa.Double(), nullable=True),
        _column("last_used_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "audit",
        _column("id", _ROW_ID),
        _column("at", sa.Double()),
        _column("subject", sa.String(256)),
        _column("role", sa.String(16)),
        _column("method", sa.String(8)),
        _column("path", sa.Text()),
        _column("status", sa.Integer(), nullable=True),
        _column("before", sa.JSON(), nullable=True),
        _column("after", sa.JSON(), nullable=True),
        _column("request_id", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
    op.create_table(
        "idempotency_keys",
        _column("subject", sa.String(256)),
        _column("key", sa.String(255)),
        _column("request_sha256", sa.String(64)),
        _column("created_at", sa.Double()),
        _column("status", sa.Integer(), nullable=True),
        _column("headers", sa.JSON(), nullable=True),
        _column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("subject", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])


def downgrade() -> None:
    op.drop_table("idempotency_keys")
    op.drop_table("audit")
    op.drop_table("tokens")
