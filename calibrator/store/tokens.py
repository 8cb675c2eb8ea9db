"""Access tokens: the hash of each secret, never the secret."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import Connection, insert, or_, select, update

from calibrator.store import schema

_table = schema.tokens


@dataclass(frozen=True, slots=True)
class StoredToken:
    """One token. ``sha256`` is the hex digest of its secret; times are seconds since 1970."""

    id: str
    name: str
    role: str
    sha256: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def usable(self, now: float) -> bool:
        """Whether it lets anybody in at that time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


_columns = [_table.c[f.name] for f in fields(StoredToken)]


def add(connection: Connection, token: StoredToken) -> None:
    """Store a new token."""
    connection.execute(insert(_table).values({f.name: getattr(token, f.name) for f in fields(token)}))


def get(connection: Connection, token_id: str) -> StoredToken | None:
    """Return the token of that id, or None."""
    row = connection.execute(select(*_columns).where(_table.c.id == token_id)).one_or_none()
    return None if row is None else StoredToken(*row)


def every(connection: Connection) -> list[StoredToken]:
    """All tokens, revoked and expired ones too, oldest first."""
    rows = connection.execute(select(*_columns).order_by(_table.c.created_at, _table.c.id))
    return [StoredToken(*row) for row in rows]


def exist(connection: Connection) -> bool:
    """Whether any token was ever made: an expired or revoked one opens no door either."""
    return connection.execute(select(_table.c.id).limit(1)).one_or_none() is not None


def revoke(connection: Connection, token_id: str, at: float) -> bool:
    """End a token for good; False when there is none of that id or it is revoked already."""
    revoked = connection.execute(
        update(_table).where(_table.c.id == token_id, _table.c.revoked_at.is_(None)).values(revoked_at=at)
    )
    return bool(revoked.rowcount)


def note_use(connection: Connection, token_id: str, at: float) -> None:
    """Keep when the token was last used."""
    earlier = or_(_table.c.last_used_at.is_(None), _table.c.last_used_at < at)
    connection.execute(update(_table).where(_table.c.id == token_id, earlier).values(last_used_at=at))
