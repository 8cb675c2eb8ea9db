"""What only some parameter stores have: accounts, failover, a folder, a server of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from serving_adapter.contract import decode_document
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.parameter_stores.redis import RedisParameterStore
from serving_adapter.parameter_stores.urls import connect
from serving_adapter.ports import TransportError, VersionConflictError
from serving_adapter.settings import Settings
from tests.parameter_documents import document, until
from tools.servers import RedisSentinel, RedisServer


@pytest.mark.servers
def test_a_wrong_account_and_a_forbidden_key_are_errors_that_name_no_password() -> None:
    acl = "~dspark:{mine}:* &dspark:* +@all"
    with RedisServer(username="mine", password="secret", acl=acl) as server:
        address = f"{server.host}:{server.port}"
        right = RedisParameterStore(f"redis://mine:secret@{address}/0")
        right.publish(document(1, "mine"))
        with pytest.raises(TransportError, match=r"(?i)permission"):
            right.publish(document(1, "yours"))
        right.close()
        wrong = RedisParameterStore(f"redis://mine:mistaken@{address}/0")
        with pytest.raises(TransportError, match=r"(?i)password") as refused:
            wrong.read("mine")
        assert "mistaken" not in str(refused.value)
        wrong.close()


@pytest.mark.servers
def test_a_certificate_that_we_do_not_trust_is_refused() -> None:
    with RedisServer(tls=True) as server:
        store = RedisParameterStore(f"rediss://{server.host}:{server.port}/0")
        with pytest.raises(TransportError, match=r"(?i)certificate"):
            store.read("chat/eu-1")
        store.close()


@pytest.mark.servers
@pytest.mark.faults
def test_the_store_follows_a_failover_of_the_sentinels() -> None:
    with (
        RedisServer() as first,
        RedisServer(replica_of=first) as second,
        RedisSentinel(first, name="primary") as sentinel,
    ):
        store = RedisParameterStore(f"redis+sentinel://{sentinel.host}:{sentinel.port}/primary")
        store.publish(document(1))
        assert until(lambda: second.client().exists("dspark:{chat/eu-1}:parameters") == 1)
        assert until(lambda: _knows_a_replica(sentinel))
        first.kill()

        def published() -> bool:
            try:
                store.publish(document(2))
            except TransportError:
                return False
            except VersionConflictError:
                return True
            return True

        assert until(published)
        assert decode_document(second.client().get("dspark:{chat/eu-1}:parameters")).version == 2
        store.close()


def _knows_a_replica(sentinel: RedisSentinel) -> bool:
    with sentinel.client() as client:
        replicas = client.sentinel_slaves(sentinel.name)
    return any(replica["master-link-status"] == "ok" for replica in replicas)


def test_an_embedded_store_with_a_folder_keeps_its_documents(tmp_path: Path) -> None:
    store = EmbeddedParameterStore(tmp_path / "parameters")
    store.publish(document(4))
    store.close()
    again = EmbeddedParameterStore(tmp_path / "parameters")
    assert decode_document(again.read("chat/eu-1") or b"").version == 4
    again.close()


def test_processes_that_name_one_folder_share_one_embedded_server(tmp_path: Path) -> None:
    owner = EmbeddedParameterStore(tmp_path)
    guest = EmbeddedParameterStore(tmp_path)
    owner.publish(document(1))
    assert decode_document(guest.read("chat/eu-1") or b"").version == 1
    assert (owner.server.owner, guest.server.owner) == (True, False)
    guest.close()
    assert owner.read("chat/eu-1") is not None
    owner.close()


@pytest.mark.faults
def test_the_embedded_server_dies_with_its_process_and_its_data_survives(tmp_path: Path) -> None:
    program = (
        "import sys, threading, time\n"
        "from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore\n"
        "made = []\n"
        "thread = threading.Thread(target=lambda: made.append(EmbeddedParameterStore(sys.argv[1])))\n"
        "thread.start(); thread.join()\n"
        "made[0].ping()\n"
        "print(made[0].server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        guest = EmbeddedParameterStore(tmp_path)
        guest.publish(document(3))
        os.kill(process.pid, signal.SIGKILL)
    assert until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(TransportError):
        guest.read("chat/eu-1")
    guest.close()
    again = EmbeddedParameterStore(tmp_path)
    assert decode_document(again.read("chat/eu-1") or b"").version == 3
    again.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://host", "http://host"),
        ("redis+sentinel://user:secret@host:26379", "expected /service"),
        ("redis+sentinel://user:secret@host:26379/name/x", "expected /service"),
        ("redis+cluster://user:secret@", "at least one host:port"),
        ("redis+cluster://user:secret@host:port", "expected host:port, not 'host:port'"),
    ],
)
def test_a_url_that_cannot_be_understood_is_named_without_its_password(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        connect(url)
    assert "secret" not in str(refused.value)


def test_settings_decide_which_store_is_opened(tmp_path: Path) -> None:
    named = open_parameter_store(Settings(redis_url="redis://:secret@127.0.0.1:9/0"))
    with pytest.raises(TransportError, match=r"redis://:\*\*\*@127\.0\.0\.1:9/0"):
        named.read("chat/eu-1")
    named.close()
    embedded = open_parameter_store(Settings(bus_path=str(tmp_path / "bus.db")))
    embedded.publish(document(1))
    assert (tmp_path / "parameters").is_dir()
    embedded.close()
