"""``dspark-calibrator recalibrate``: what a CronJob runs and what it gets back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrator.cli import output
from calibrator.cli.app import run
from calibrator.core.candidate import ProposalOptions
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher
from calibrator.store import Store, deployments, leases, run_leases, runs
from serving_adapter.clock import SystemClock
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.settings import load_settings
from tests.recorded import recorded
from tests.refresh_support import Place

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Run the command on a database of its own; give exit code, stdout and stderr."""
    from rich.console import Console

    monkeypatch.setenv("DSPARK_DATABASE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("DSPARK_BUS_PATH", str(tmp_path / "bus.db"))
    monkeypatch.setenv("DSPARK_LOG_LEVEL", "error")

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(output, "out", Console(highlight=False, width=140))
        monkeypatch.setattr(output, "err", Console(stderr=True, highlight=False))
        code = run(["recalibrate", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def filled(call: Call) -> Store:
    """The store of ``call`` with rows of the deployment ``chat``."""
    settings = load_settings()
    store, clock = Store(settings.database_url), SystemClock()
    store.migrate()
    parameter_store = open_parameter_store(settings)
    publisher = Publisher(store, parameter_store, clock)
    refresher = Refresher(store, parameter_store, publisher, clock, ProposalOptions())
    Place(store, parameter_store, publisher, refresher, clock).ingest(  # type: ignore[arg-type]
        recorded("typical").take(slice(0, 3000))
    )
    parameter_store.close()
    return store


def test_a_dry_run_and_a_real_one_say_what_came_of_them(call: Call, filled: Store) -> None:
    code, out, err = call("--deployment", "chat", "--dry-run", "--json")
    assert (code, err) == (0, "")
    dry = json.loads(out)
    assert (dry["state"], dry["outcome"], dry["version"], dry["rows"]) == (
        "done",
        "would_publish",
        None,
        3000,
    )
    assert dry["trigger"] == "manual"
    assert dry["reasons"]
    code, out, err = call("--deployment", "chat")
    assert (code, err) == (0, "")
    assert out.startswith("chat: published version 1 from 3000 rows (run ")
    code, out, _ = call("--deployment", "chat", "--json")
    assert (code, json.loads(out)["outcome"]) == (0, "unchanged")
    with filled.read() as connection:
        assert [row.outcome for row in runs.recent(connection)] == ["unchanged", "published", "would_publish"]


def test_what_a_dead_service_has_left_behind_does_not_stop_it(call: Call, filled: Store) -> None:
    with filled.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        left = runs.request_run(connection, known.id, runs.ALARM)
        assert run_leases.claim(connection, "dead", 0.0, leases.database_now(connection))
    code, out, _ = call("--deployment", "chat", "--json")
    assert code == 0
    with filled.read() as connection:
        adopted = runs.get(connection, left.id)
    assert adopted is not None
    assert (adopted.state, adopted.attempt, adopted.outcome) == ("done", 2, "published")
    assert json.loads(out)["outcome"] == "unchanged"


def test_a_deployment_that_is_not_there_is_one_line_and_2(call: Call, filled: Store) -> None:
    code, out, err = call("--deployment", "caht")
    assert (code, out) == (2, "")
    assert err == "error: --deployment: got 'caht', which has sent nothing yet; known: chat\n"


def test_a_run_that_failed_is_1(call: Call, filled: Store) -> None:
    code, out, _ = call("--deployment", "chat", "--json", "--redis-url", "redis://127.0.0.1:1/0")
    assert code == 1
    assert json.loads(out)["state"] == "failed"
    assert "TransportError" in json.loads(out)["reasons"][0]
