"""Tokens of an identity provider (OpenID Connect): signature, issuer, audience and time, then a role."""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import jwt
from jwt import PyJWK, PyJWKSet

from calibrator.service.access.roles import AccessError, Caller, Role
from serving_adapter.ports import TransportError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key only: with HS256 whoever knows the public key could sign, with none anybody."""
LEEWAY_SECONDS = 30.0
TIMEOUT_SECONDS = 5.0
REFETCH_SECONDS = 10.0
"""An unknown key may be a new one; a stranger who invents keys must not make us ask every time."""
KEEP_SECONDS = 300.0
_MAX_BYTES = 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """Whom to believe.

    ``jwks_url`` empty takes what the issuer's discovery document names. ``role_claim`` is the path of the
    claim that holds the roles (``realm_access.roles`` for Keycloak): one word or a list; the highest counts.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    role_claim: str = "roles"


@dataclass(slots=True)
class _Keys:
    by_id: dict[str, PyJWK] = field(default_factory=dict)
    fetched: float = float("-inf")
    asked: float = float("-inf")
    failure: TransportError | None = None


class OidcVerifier:
    """Verifies JSON Web Tokens of one issuer.

    Parameters
    ----------
    options
        Whom to believe.
    monotonic
        Clock that decides when keys are fetched again.
    """

    def __init__(self, options: OidcOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._keys = _Keys()
        self._lock = threading.Lock()

    def verify(self, token: str) -> Caller:
        """Return who the token says the caller is.

        Raises
        ------
        AccessError
            It is not valid, or gives no role.
        TransportError
            The issuer's keys could not be fetched.
        """
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise AccessError("the token is neither one of this service nor a JSON Web Token") from error
        if header.get("alg") not in ALGORITHMS:
            raise AccessError("the token is not signed by a key that this service accepts")
        key = self._key(str(header.get("kid", "")))
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(ALGORITHMS),
                issuer=self._options.issuer,
                audience=self._options.audience,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise AccessError(f"the token was refused: {_reason(error)}") from error
        role = self._role(claims)
        if role is None:
            raise AccessError(f"the token gives no role (claim {self._options.role_claim})")
        return Caller(f"oidc:{claims['sub']}"[:256], role)

    def _role(self, claims: dict[str, Any]) -> Role | None:
        value: Any = claims
        for part in self._options.role_claim.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        words = value if isinstance(value, list) else [value]
        held = [role for role in Role if role.value in words]
        return held[-1] if held else None

    def _key(self, key_id: str) -> PyJWK:
        with self._lock:
            now, keys = self._monotonic(), self._keys
            wanted = key_id not in keys.by_id or now - keys.fetched >= KEEP_SECONDS
            if wanted and now - keys.asked >= REFETCH_SECONDS:
                self._fetch(now)
            key, failure = keys.by_id.get(key_id), keys.failure
        if key is not None:
            return key  # an issuer that is away does not lock out those whose key is known
        if failure is not None:
            raise TransportError(str(failure))
        raise AccessError("the token is signed by a key that the issuer does not have")

    def _fetch(self, now: float) -> None:
        self._keys.asked = now
        url = self._options.jwks_url
        try:
            if not url:
                url = str(
                    _get(self._options.issuer.rstrip("/") + "/.well-known/openid-configuration")["jwks_uri"]
                )
            found = PyJWKSet.from_dict(_get(url))
        except (OSError, ValueError, KeyError, jwt.PyJWTError) as error:
            self._keys.failure = TransportError(f"keys of the issuer {self._options.issuer}: {error}")
            log.warning("issuer_unavailable issuer=%s reason=%r", self._options.issuer, str(error))
            return
        self._keys.by_id = {key.key_id or "": key for key in found.keys}
        self._keys.fetched, self._keys.failure = now, None


def _get(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        # Whoever can change the keys on the way can sign anything.
        raise ValueError(f"got {url!r}, expected an https URL")
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - scheme is checked
        content = json.loads(answer.read(_MAX_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{url}: expected a JSON object")
    return content


def _reason(error: jwt.PyJWTError) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.InvalidAudienceError():
            return "it is meant for somebody else (audience)"
        case jwt.InvalidIssuerError():
            return "it is from another issuer"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case jwt.MissingRequiredClaimError():
            return "a claim is missing"
        case _:
            return "it is not valid"
