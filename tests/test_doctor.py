"""``doctor`` says what is wrong, how to mend it, and ends with the code of the area."""

import json

import pytest

from calibrator.cli.app import run
from calibrator.store import Store
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.ring_reader import RingSet
from tests.ingest_support import NOW, ListSink, make_batch, make_rounds, make_steps, message
from tests.rings import a_ring, a_ring_name
from tools.servers import KafkaServer, RedisServer


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("KAFKA_BOOTSTRAP", "REDIS_URL", "DATABASE_URL", "CONFIG", "EXPLORE", "SIGNING_KEY"):
        monkeypatch.delenv(f"DSPARK_{name}", raising=False)
    monkeypatch.setenv("DSPARK_RING", "dspark-doctor-test")

    def ask(**environment: str) -> tuple[int, list[dict]]:
        for name, value in environment.items():
            monkeypatch.setenv(f"DSPARK_{name.upper()}", value)
        code = run(["doctor", "--json"])
        return code, json.loads(capsys.readouterr().out)["findings"]

    return ask


def of(findings: list[dict], area: str) -> list[dict]:
    return [f for f in findings if f["area"] == area]


def test_a_new_machine_needs_its_tables(doctor, tmp_path) -> None:
    code, findings = doctor()
    assert code == 11
    (database,) = of(findings, "database")
    assert database["detail"] == "no such file: dspark.db"
    assert database["mend"].endswith("run: dspark-calibrator migrate")
    assert not (tmp_path / "dspark.db").exists()
    store = Store(f"sqlite:///{tmp_path / 'dspark.db'}")
    store.migrate()
    store.close()
    code, findings = doctor()
    assert code == 0
    assert all(f["status"] != "error" for f in findings)


def test_rows_that_were_refused_or_lost_are_told(doctor, tmp_path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'dspark.db'}")
    store.migrate()
    good = make_batch(make_rounds(8), deployment="default", steps=make_steps(4))
    bad = make_batch(
        make_rounds(6, gamma=3), 10, deployment="default", lost=2, steps=make_steps(3), steps_sequence=4
    )
    IngestPipeline(store, ListSink(), ManualClock(NOW)).ingest([message(good, 0), message(bad, 1)])
    store.close()
    _, findings = doctor()
    told = " ".join(f["detail"] for f in of(findings, "database") if f["status"] == "warning")
    assert "6 rounds and 3 step rows of default were refused; the last reason: gamma: got 3" in told
    assert "2 rounds and 0 step rows of default were never sent" in told


def test_a_setting_that_cannot_be_used_is_named_with_its_value(doctor) -> None:
    code, findings = doctor(explore="lots")
    assert code == 10
    assert "DSPARK_EXPLORE" in findings[0]["detail"]
    assert "lots" in findings[0]["detail"]


def test_passwords_are_never_shown(doctor) -> None:
    _, findings = doctor(
        database_url="postgresql://someone:hunter2@127.0.0.1:9/nothing",
        redis_url="redis://u:hunter2@127.0.0.1:9/0",
    )
    assert "hunter2" not in json.dumps(findings)
    assert of(findings, "database")[0]["status"] == "error"
    assert of(findings, "redis")[0]["status"] == "error"


def test_the_options_list_masks_secrets(capsys, monkeypatch) -> None:
    monkeypatch.setenv("DSPARK_SIGNING_KEY", "hunter2")
    assert run(["doctor", "--options"]) == 0
    out = capsys.readouterr().out
    assert "DSPARK_SIGNING_KEY" in out
    assert "hunter2" not in out


@pytest.mark.servers
def test_real_servers_are_found_fit_for_use(
    doctor, kafka: KafkaServer, redis_server: RedisServer, postgres_url: str
) -> None:
    store = Store(postgres_url)
    store.migrate()
    store.close()
    code, findings = doctor(
        kafka_bootstrap=kafka.bootstrap,
        kafka_topic="doctor-events",
        kafka_dead_letter_topic="doctor-letters",
        redis_url=redis_server.url,
        database_url=postgres_url,
    )
    assert code == 0, findings
    assert {f["status"] for f in of(findings, "kafka")} == {"warning"}  # no collector has made the topics yet
    assert of(findings, "database")[0]["detail"].startswith("postgresql")


@pytest.mark.servers
def test_a_broker_that_does_not_answer_is_kafkas_finding(doctor, tmp_path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'dspark.db'}")
    store.migrate()
    store.close()
    code, findings = doctor(kafka_bootstrap="127.0.0.1:9")
    assert code == 12
    assert "DSPARK_KAFKA_BOOTSTRAP" in of(findings, "kafka")[0]["mend"]


def test_a_ring_is_looked_at_while_a_sidecar_reads_it(doctor) -> None:
    with a_ring_name() as name:
        _, findings = doctor(ring=name, deployment="d", replica="r")
        assert "no engine" in of(findings, "ring")[0]["detail"]
        ring = a_ring(name)
        unread = of(doctor(ring=name)[1], "ring")
        assert [f["status"] for f in unread] == ["ok", "warning"]
        rings = RingSet(name)
        rings.refresh()
        (finding,) = of(doctor(ring=name)[1], "ring")
        assert (finding["status"], "an engine runs, a sidecar reads it" in finding["detail"]) == ("ok", True)
        code, findings = doctor(ring=name, deployment="other", replica="elsewhere")
        wrong = {f["status"]: f for f in of(findings, "ring")}
        assert code in (11, 14)  # the database is not there either
        assert "DSPARK_DEPLOYMENT=d" in wrong["error"]["mend"]
        assert "DSPARK_REPLICA=r" in wrong["warning"]["mend"]
        ring.close()
        rings.close()
        assert "has ended" in of(doctor(ring=name)[1], "ring")[0]["detail"]
