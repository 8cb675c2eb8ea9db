"""Making and checking bearer tokens: ``dspark_ID_SECRET``."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets

from calibrator.service.access.roles import AccessError, Role
from calibrator.store import tokens
from calibrator.store.errors import StoreError
from calibrator.store.store import Store
from calibrator.store.tokens import StoredToken

PREFIX = "dspark_"
"""Tells our tokens from those of an identity provider, and lets scanners find leaked ones."""
_USE_SECONDS = 60.0
"""``last_used_at`` is kept to the minute: reading must not write on every request."""
_NO_TOKEN = StoredToken(id="", name="", role=Role.VIEWER, sha256="0" * 64, created_at=0.0)


def create(
    store: Store, role: Role, now: float, *, name: str = "", expires_at: float | None = None
) -> tuple[str, StoredToken]:
    """Make a token and store its hash; the text is returned here and can be had nowhere else."""
    token_id = secrets.token_hex(6)
    secret = secrets.token_urlsafe(32)
    made = StoredToken(
        id=token_id, name=name, role=role, sha256=_digest(secret), created_at=now, expires_at=expires_at
    )
    with store.write() as connection:
        tokens.add(connection, made)
    return f"{PREFIX}{token_id}_{secret}", made


def check(store: Store, text: str, now: float) -> StoredToken:
    """Return the token that a text is.

    Raises
    ------
    AccessError
        Unknown, wrong, expired or revoked: the caller is not told which.
    StoreError
        The store cannot be asked.
    """
    token_id, _, secret = text.removeprefix(PREFIX).partition("_")
    found = None
    if token_id.isascii() and token_id.isalnum() and len(token_id) <= 32:
        with store.read() as connection:
            found = tokens.get(connection, token_id)
    known = found or _NO_TOKEN
    # Compared in constant time, and compared even when there is no such token.
    right = hmac.compare_digest(_digest(secret), known.sha256)
    if found is None or not right or not found.usable(now):
        raise AccessError("the token is not valid, has expired or was revoked")
    if found.last_used_at is None or now - found.last_used_at >= _USE_SECONDS:
        # A database that only reads lets readers in all the same.
        with contextlib.suppress(StoreError), store.write() as connection:
            tokens.note_use(connection, found.id, now)
    return found


def _digest(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
