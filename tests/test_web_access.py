"""Who is let in, and to what."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import text as sql
from starlette.testclient import TestClient

from calibrator.service.access import AccessError, AccessPolicy, Role
from calibrator.service.access.failure_limit import MOST_ADDRESSES, MOST_AT_ONCE, SECONDS_EACH, FailureLimit
from calibrator.service.access.oidc import OidcOptions, OidcVerifier
from calibrator.service.access.tokens import check, create
from calibrator.service.web.app import create_app
from calibrator.store import tokens
from serving_adapter.clock import ManualClock
from serving_adapter.ports import TransportError
from tests.ingest_support import make_rounds
from tests.web_support import ADDRESS

GIVEN = {"name": "chat", "gamma": 7, "fingerprint": "f"}


# --- roles


def test_roles_are_ordered():
    assert Role.ADMIN.covers(Role.OPERATOR)
    assert Role.OPERATOR.covers(Role.VIEWER)
    assert not Role.VIEWER.covers(Role.OPERATOR)
    assert not Role.OPERATOR.covers(Role.ADMIN)


def test_each_role_may_do_its_part(service):
    assert service.get("/v1/deployments", Role.VIEWER).status_code == 200
    assert service.post("/v1/deployments", GIVEN, Role.VIEWER).status_code == 403
    assert service.post("/v1/deployments", GIVEN, Role.OPERATOR).status_code == 201
    assert service.get("/v1/audit", Role.OPERATOR).status_code == 403
    assert service.get("/v1/audit", Role.ADMIN).status_code == 200
    me = service.get("/v1/me", Role.VIEWER).json()
    assert (me["role"], me["read_only"]) == ("viewer", True)
    assert service.get("/v1/me", Role.OPERATOR).json()["read_only"] is False


def test_every_operation_below_v1_asks_for_a_token(service):
    document = service.client.get("/openapi.json").json()
    asked = 0
    for path, operations in document["paths"].items():
        for method in operations:
            if path.startswith("/v1/"):
                url = path.replace("{", "").replace("}", "")
                assert service.client.request(method, url).status_code == 401, (method, path)
                asked += 1
    assert asked > 20


def test_every_change_asks_for_an_operator(service):
    document = service.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method in operations:
            if path.startswith("/v1/") and method != "get":
                url = path.replace("{", "").replace("}", "")
                answer = service.client.request(method, url, json={}, headers=service.headers(Role.VIEWER))
                assert answer.status_code == 403, (method, path)


def test_metrics_ask_for_a_token_and_health_does_not(service):
    assert service.client.get("/metrics").status_code == 401
    assert service.get("/metrics").status_code == 200
    assert service.client.get("/healthz").status_code == 200


def test_a_refusal_says_how_to_ask(service):
    answer = service.client.get("/v1/me")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


# --- tokens


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer nonsense", "Bearer dspark_", "Bearer dspark__",
        "Bearer dspark_0123456789ab_wrong", "Bearer dspark_%_x", "Bearer a.b.c", "Bearer " + "x" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_token_lets_nobody_in(service, header):
    assert service.client.get("/v1/me", headers={"Authorization": header}).status_code == 401


def test_a_wrong_secret_lets_nobody_in(service):
    right = service.tokens[Role.ADMIN]
    for wrong in (
        right[:-1] + ("A" if right[-1] != "A" else "B"),
        right + "A",
        right.rpartition("_")[0] + "_",
    ):
        answer = service.client.get("/v1/me", headers={"Authorization": f"Bearer {wrong}"})
        assert answer.status_code == 401
        assert wrong not in answer.text


def test_a_token_in_a_query_or_a_cookie_lets_nobody_in(service):
    token = service.tokens[Role.ADMIN]
    for name in ("token", "access_token", "authorization"):
        assert service.client.get(f"/v1/me?{name}={token}").status_code == 401
    assert service.client.get("/v1/me", headers={"Cookie": f"token={token}"}).status_code == 401


def test_a_token_ends_when_it_expires_or_is_revoked(service):
    store, now = service.context.store, service.clock.now()
    brief, _ = create(store, Role.VIEWER, now, expires_at=now + 60.0)
    headers = {"Authorization": f"Bearer {brief}"}
    assert service.client.get("/v1/me", headers=headers).status_code == 200
    service.clock.advance(60.0)
    assert service.client.get("/v1/me", headers=headers).status_code == 401

    ended, made = create(store, Role.VIEWER, now)
    headers = {"Authorization": f"Bearer {ended}"}
    assert service.client.get("/v1/me", headers=headers).status_code == 200
    with store.write() as connection:
        assert tokens.revoke(connection, made.id, service.clock.now())
        assert not tokens.revoke(connection, made.id, service.clock.now())
    assert service.client.get("/v1/me", headers=headers).status_code == 401


def test_only_a_hash_is_stored_and_use_is_noted_by_the_minute(service):
    store = service.context.store
    text, made = create(store, Role.VIEWER, 1000.0, name="deploy")
    secret = text.split("_", 2)[2]
    with store.read() as connection:
        stored = tokens.get(connection, made.id)
    assert stored is not None
    assert secret not in repr(stored)
    assert len(stored.sha256) == 64
    assert check(store, text, 1010.0).id == made.id
    check(store, text, 1040.0)
    with store.read() as connection:
        assert tokens.get(connection, made.id).last_used_at == 1010.0
    check(store, text, 1070.0)
    with store.read() as connection:
        assert tokens.get(connection, made.id).last_used_at == 1070.0


# --- too many wrong tokens


def tried(client, token, **headers):
    return client.get("/v1/me", headers={"Authorization": f"Bearer {token}", **headers})


def test_wrong_tokens_are_limited_by_address_and_right_ones_never_wait(service):
    client = service.client
    statuses = [tried(client, f"dspark_0123456789ab_{i}").status_code for i in range(MOST_AT_ONCE + 3)]
    assert statuses == [401] * MOST_AT_ONCE + [429] * 3
    limited = tried(client, "wrong")
    assert limited.headers["content-type"] == "application/problem+json"
    assert limited.json()["title"] == "Too many requests"
    assert limited.headers["retry-after"] == "2"
    assert tried(client, service.tokens[Role.VIEWER]).status_code == 200
    assert client.get("/v1/me").status_code == 401  # no token is no try
    page = service.get("/metrics").text
    for reason, count in (("missing", 1), ("wrong", MOST_AT_ONCE), ("limited", 4)):
        assert f'authentication_failures_total{{reason="{reason}"}} {count}.0' in page

    other = TestClient(service.app, base_url=ADDRESS, client=("192.0.2.1", 5))
    assert tried(other, "wrong").status_code == 401
    service.clock.advance(SECONDS_EACH)
    assert [tried(client, "wrong").status_code for _ in range(2)] == [401, 429]


def test_what_a_header_says_of_the_address_is_not_believed(service):
    statuses = [
        tried(service.client, "wrong", **{"X-Forwarded-For": f"192.0.2.{i}", "Forwarded": f"for=192.0.2.{i}"})
        .status_code
        for i in range(MOST_AT_ONCE + 1)
    ]  # fmt: skip
    assert statuses[-2:] == [401, 429]


def test_a_service_that_cannot_tell_counts_nothing(service):
    service.context.store.downgrade()
    statuses = {tried(service.client, "dspark_0123456789ab_x").status_code for _ in range(MOST_AT_ONCE + 1)}
    assert statuses == {503}


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "socket", False),
    ],
)
def test_whose_failures_an_address_shares(one, another, same):
    limit = FailureLimit(lambda: 0.0, most_at_once=1, seconds_each=1.0)
    assert limit.failed(one) == 0.0
    assert (limit.failed(another) > 0.0) == same


def test_failures_beyond_the_limit_do_not_make_the_wait_longer_and_few_addresses_are_remembered():
    clock = ManualClock()
    limit = FailureLimit(clock.monotonic, most_at_once=2, seconds_each=5.0)
    assert [limit.failed("192.0.2.1") for _ in range(5)] == [0.0, 0.0, 5.0, 5.0, 5.0]
    clock.advance(4.0)
    assert limit.failed("192.0.2.1") == 1.0
    clock.advance(1.0)
    assert [limit.failed("192.0.2.1") for _ in range(2)] == [0.0, 5.0]
    for i in range(MOST_ADDRESSES + 10):
        limit.failed(f"10.0.{i >> 8}.{i & 255}")
    assert len(limit._free_at) == MOST_ADDRESSES
    assert limit.failed("192.0.2.1") == 0.0


# --- without tokens


def client_without_tokens(service, role, hosts=()):
    with service.context.store.write() as connection:
        connection.exec_driver_sql("DELETE FROM tokens")
    policy = AccessPolicy(service.context.store, service.clock, local_role=role)
    app = create_app(service.context, policy, hosts)
    return TestClient(app, base_url=ADDRESS, raise_server_exceptions=False)


def test_on_loopback_without_tokens_everybody_may_read_and_nobody_may_change(service):
    client = client_without_tokens(service, Role.VIEWER)
    assert client.get("/v1/me").json() == {"subject": "local", "role": "viewer", "read_only": True}
    refused = client.post("/v1/deployments", json=GIVEN)
    assert refused.status_code == 403
    assert "token create" in refused.json()["detail"]


def test_more_is_allowed_on_loopback_when_asked_for(service):
    client = client_without_tokens(service, Role.OPERATOR)
    assert client.post("/v1/deployments", json=GIVEN).status_code == 201
    assert client.get("/v1/audit").status_code == 403


def test_the_first_token_closes_the_open_door_even_after_it_has_ended(service):
    client = client_without_tokens(service, Role.VIEWER)
    assert client.get("/v1/me").status_code == 200
    _, made = create(service.context.store, Role.VIEWER, service.clock.now())
    assert client.get("/v1/me").status_code == 401
    with service.context.store.write() as connection:
        tokens.revoke(connection, made.id, service.clock.now())
    assert client.get("/v1/me").status_code == 401


def test_elsewhere_nobody_gets_in_without_a_token(service):
    assert client_without_tokens(service, None).get("/v1/me").status_code == 401


def test_a_name_that_was_rebound_to_loopback_is_refused(service):
    client = client_without_tokens(service, Role.OPERATOR, hosts=("127.0.0.1", "localhost", "::1"))
    assert client.get("/v1/me").status_code == 200
    for host, status in (
        ("localhost:8080", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST", 200),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil.example/127.0.0.1", 421),
        ("", 421),
    ):
        assert client.get("/v1/me", headers={"Host": host}).status_code == status, host


# --- identity provider

ISSUER_PATH = "/realm"


class Issuer:
    """An identity provider: discovery and keys over real HTTP."""

    def __init__(self):
        self.keys = {"k1": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.fetched = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == f"{ISSUER_PATH}/.well-known/openid-configuration":
                    content = {"issuer": issuer.url, "jwks_uri": f"{issuer.base}/keys"}
                else:
                    issuer.fetched += 1
                    content = {"keys": [issuer.public(name) for name in issuer.keys]}
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.url = self.base + ISSUER_PATH
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def public(self, name):
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[name].public_key()))
        return {**key, "kid": name, "use": "sig", "alg": "RS256"}

    def token(self, name="k1", key=None, algorithm="RS256", headers=None, **changes):
        import time

        claims = {
            "iss": self.url, "aud": "dspark", "sub": "ada", "exp": time.time() + 600, "roles": ["operator"],
        } | changes  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        signer = self.keys[name] if key is None else key
        return jwt.encode(claims, signer, algorithm=algorithm, headers={"kid": name, **(headers or {})})


@pytest.fixture(scope="module")
def issuer():
    made = Issuer()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def verifier(issuer):
    return OidcVerifier(OidcOptions(issuer.url, "dspark"))


def test_a_token_of_the_issuer_gives_subject_and_role(issuer, verifier):
    caller = verifier.verify(issuer.token())
    assert (caller.subject, caller.role) == ("oidc:ada", Role.OPERATOR)
    assert verifier.verify(issuer.token(roles="viewer")).role == Role.VIEWER
    assert verifier.verify(issuer.token(roles=["x", "viewer", "admin"])).role == Role.ADMIN


def test_a_claim_may_lie_deeper(issuer):
    verifier = OidcVerifier(OidcOptions(issuer.url, "dspark", f"{issuer.base}/keys", "realm_access.roles"))
    assert verifier.verify(issuer.token(realm_access={"roles": ["viewer"]})).role == Role.VIEWER
    for wrong in ({}, {"roles": 7}, "viewer", None):
        with pytest.raises(AccessError, match="no role"):
            verifier.verify(issuer.token(realm_access=wrong))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "missing|not valid|audience"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"exp": 1_000_000_000}, "expired"),
        ({"exp": None}, "missing"),
        ({"sub": None}, "missing"),
        ({"nbf": 4_000_000_000}, "not valid"),
        ({"roles": ["root"]}, "no role"),
        ({"roles": None}, "no role"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(issuer, verifier, changes, reason):
    with pytest.raises(AccessError, match=reason):
        verifier.verify(issuer.token(**changes))


def test_a_token_that_is_not_signed_by_the_issuer_is_refused(issuer, verifier):
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(AccessError, match="signature"):
        verifier.verify(issuer.token(key=stranger))
    with pytest.raises(AccessError, match="not signed"):
        verifier.verify(issuer.token(key="", algorithm="none"))
    with pytest.raises(AccessError, match="not signed"):
        # The modulus, which everybody knows, as the secret of an HMAC.
        verifier.verify(issuer.token(key=issuer.public("k1")["n"].encode(), algorithm="HS256"))
    for text in ("", "a.b", "a.b.c", "eyJhbGciOiJSUzI1NiJ9..", "x" * 5000):
        with pytest.raises(AccessError):
            verifier.verify(text)


def test_an_unknown_key_is_looked_up_once_in_a_while(issuer):
    now = [0.0]
    verifier = OidcVerifier(OidcOptions(issuer.url, "dspark", f"{issuer.base}/keys"), lambda: now[0])
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    before = issuer.fetched
    for _ in range(5):
        with pytest.raises(AccessError, match="does not have"):
            verifier.verify(issuer.token("k9", key=stranger))
    assert issuer.fetched == before + 1
    issuer.keys["k2"] = stranger
    now[0] += 11.0
    assert verifier.verify(issuer.token("k2")).subject == "oidc:ada"
    assert issuer.fetched == before + 2
    del issuer.keys["k2"]


def test_an_issuer_that_is_away_is_no_refusal():
    verifier = OidcVerifier(OidcOptions("http://127.0.0.1:1/realm", "dspark"))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(TransportError, match="keys of the issuer"):
        verifier.verify(jwt.encode({"sub": "x"}, key, algorithm="RS256", headers={"kid": "k"}))


def test_an_issuer_that_goes_away_locks_out_nobody_whose_key_is_known(issuer):
    now = [0.0]
    options = OidcOptions(issuer.url, "dspark", f"{issuer.base}/keys")
    verifier = OidcVerifier(options, lambda: now[0])
    token = issuer.token()
    verifier.verify(token)
    verifier._options = OidcOptions(issuer.url, "dspark", "http://127.0.0.1:1/keys")
    now[0] += 1000.0
    assert verifier.verify(token).subject == "oidc:ada"
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for _ in range(3):
        with pytest.raises(TransportError):
            verifier.verify(issuer.token("k9", key=stranger))


@pytest.mark.parametrize("url", ["http://issuer.example/keys", "file:///etc/passwd", "ftp://127.0.0.1/keys"])
def test_keys_are_fetched_over_https_only(issuer, url):
    verifier = OidcVerifier(OidcOptions(issuer.url, "dspark", url))
    with pytest.raises(TransportError, match="https"):
        verifier.verify(issuer.token())


def test_both_kinds_of_tokens_open_the_api(service, issuer, verifier):
    policy = AccessPolicy(service.context.store, service.clock, verifier)
    client = TestClient(create_app(service.context, policy), base_url=ADDRESS)
    me = client.get("/v1/me", headers={"Authorization": f"Bearer {issuer.token()}"})
    assert me.json() == {"subject": "oidc:ada", "role": "operator", "read_only": False}
    assert client.get("/v1/me", headers=service.headers(Role.VIEWER)).status_code == 200
    assert client.get("/v1/me", headers={"Authorization": "Bearer a.b.c"}).status_code == 401
    assert client.get("/v1/me").status_code == 401


def test_an_identity_provider_closes_the_open_door_too(service, verifier):
    with service.context.store.write() as connection:
        connection.exec_driver_sql("DELETE FROM tokens")
    policy = AccessPolicy(service.context.store, service.clock, verifier, local_role=Role.OPERATOR)
    assert policy.configured()
    with pytest.raises(AccessError):
        policy.authenticate(None)


# --- while the database is away


def test_who_may_read_the_metrics_is_remembered_while_the_database_is_away_and_nothing_else(service):
    service.ingest(make_rounds(10, gamma=7))
    assert service.get("/metrics").status_code == 200
    stranger = {"Authorization": "Bearer dspark_0123456789ab_" + "x" * 43}
    with service.context.store.write() as connection:
        connection.execute(sql("ALTER TABLE tokens RENAME TO gone"))
        connection.execute(sql("ALTER TABLE boots RENAME TO gone_too"))
    service.clock.advance(60)
    page = service.get("/metrics")
    assert page.status_code == 200
    assert "dspark_calibrator_up 0.0" in page.text
    assert service.client.get("/metrics", headers=stranger).status_code in (401, 503)
    assert service.get("/v1/deployments").status_code == 503


def test_a_revoked_token_is_forgotten_as_soon_as_the_database_says_so(service):
    token, made = create(service.context.store, Role.VIEWER, service.clock.now())
    headers = {"Authorization": f"Bearer {token}"}
    assert service.client.get("/metrics", headers=headers).status_code == 200
    with service.context.store.write() as connection:
        tokens.revoke(connection, made.id, service.clock.now())
    assert service.client.get("/metrics", headers=headers).status_code == 401
    with service.context.store.write() as connection:
        connection.execute(sql("ALTER TABLE tokens RENAME TO gone"))
    assert service.client.get("/metrics", headers=headers).status_code == 503
