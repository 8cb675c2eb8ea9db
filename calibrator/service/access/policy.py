"""The one decision: who is it, from the Authorization header alone."""

from __future__ import annotations

from calibrator.service.access import tokens as bearer
from calibrator.service.access.oidc import OidcVerifier
from calibrator.service.access.roles import AccessError, Caller, Role
from calibrator.store import tokens
from calibrator.store.store import Store
from serving_adapter.ports import Clock

LOCAL = "local"


class AccessPolicy:
    """Lets callers in.

    Without a token a caller is let in only where the service listens on loopback, no token was ever made
    and no identity provider is set; its role is ``local_role`` (a viewer unless the operator said more).

    Parameters
    ----------
    store
        Where tokens are.
    clock
        What decides whether a token has expired.
    oidc
        Identity provider, if there is one.
    local_role
        Role of callers without a token on loopback; None where the service listens elsewhere.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        oidc: OidcVerifier | None = None,
        local_role: Role | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._oidc = oidc
        self._local_role = local_role

    def configured(self) -> bool:
        """Whether anybody could be let in by a token: one was made, or there is an identity provider."""
        if self._oidc is not None:
            return True
        with self._store.read() as connection:
            return tokens.exist(connection)

    def authenticate(self, authorization: str | None) -> Caller:
        """Return who the header says the caller is.

        Raises
        ------
        AccessError
            Nobody that is let in.
        StoreError, TransportError
            The store or the identity provider cannot be asked.
        """
        if authorization is None:
            if self._local_role is None or self.configured():
                raise AccessError("a token is needed: Authorization: Bearer ...")
            return Caller(LOCAL, self._local_role)
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise AccessError("expected Authorization: Bearer ...")
        if token.startswith(bearer.PREFIX):
            found = bearer.check(self._store, token, self._clock.now())
            named = f" ({found.name})" if found.name else ""
            return Caller(f"token:{found.id}{named}", Role(found.role))
        if self._oidc is None:
            raise AccessError("the token is not valid, has expired or was revoked")
        return self._oidc.verify(token)
