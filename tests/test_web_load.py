"""Many readers, few connections, real PostgreSQL: answers or a quick 503, and no hang."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from calibrator.service.access import Role
from calibrator.service.access.tokens import create
from calibrator.store import Store, deployments
from tests.service_process import ServiceProcess

READERS, EACH = 100, 5
PATHS = (
    "/v1/deployments?limit=50",
    "/v1/deployments/chat-0",
    "/v1/deployments/chat-0/calibration",
    "/v1/deployments/chat-0/versions",
    "/v1/runs",
)

pytestmark = pytest.mark.servers


def prepared(url):
    store = Store(url)
    store.migrate()
    token, _ = create(store, Role.VIEWER, 1_700_000_000.0)
    with store.write() as connection:
        for number in range(50):
            deployments.register(connection, f"chat-{number}", 7, "f", 1_700_000_000.0)
    store.close()
    return token


def test_a_hundred_readers_share_five_connections(tmp_path, postgres_url):
    token = prepared(postgres_url)
    settings = {"database_url": postgres_url, "database_pool": 5, "refresh_seconds": 3600}
    with ServiceProcess(tmp_path, "serve", "--port", "0", **settings) as service:
        address = service.address()

        def read(number):
            with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=120.0) as client:
                answers = [client.get(address + PATHS[(number + i) % len(PATHS)]) for i in range(EACH)]
            for answer in answers:
                if answer.status_code == 503:
                    assert answer.headers["retry-after"] == "1"
                    assert answer.headers["content-type"] == "application/problem+json"
            return [answer.status_code for answer in answers]

        with ThreadPoolExecutor(READERS) as readers:
            statuses = Counter(
                status for answered in readers.map(read, range(READERS)) for status in answered
            )
        assert sum(statuses.values()) == READERS * EACH
        assert set(statuses) <= {200, 503}, statuses
        assert statuses[200] > 0
        after = httpx.get(f"{address}/v1/deployments", headers={"Authorization": f"Bearer {token}"})
        assert after.status_code == 200
        assert service.end() == 0


def test_a_change_is_kept_once_however_many_send_it(tmp_path, postgres_url):
    prepared(postgres_url)
    store = Store(postgres_url)
    token, _ = create(store, Role.OPERATOR, 1_700_000_000.0)
    settings = {"database_url": postgres_url, "database_pool": 5, "database_wait_seconds": 60}
    given = {"format": "sglang", "content": {"temperatures": [1.5] * 7}}
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "one"}
    with ServiceProcess(tmp_path, "serve", "--port", "0", **settings) as service:
        address = service.address()

        def send(_number):
            path = f"{address}/v1/deployments/chat-1/versions"
            return httpx.post(path, json=given, headers=headers, timeout=120.0).status_code

        with ThreadPoolExecutor(16) as senders:
            statuses = Counter(senders.map(send, range(16)))
        # 409: sent while the first was still being worked on.
        assert set(statuses) <= {201, 409}, statuses
        assert send(0) == 201
        versions = httpx.get(f"{address}/v1/deployments/chat-1/versions", headers=headers).json()["items"]
        assert [item["version"] for item in versions] == [1]
    store.close()
