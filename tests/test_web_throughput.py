"""Curve, throughput ledger and exploration over the API."""

import numpy as np
import pytest

from calibrator.core.throughput_ledger import LedgerSums
from serving_adapter.contract import Rounds, Steps
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.recorded import recorded, truncate
from tests.web_support import open_service

pytest_plugins = ["tests.reading_fixtures"]


@pytest.fixture
def service(tmp_path):
    parameter_store = EmbeddedParameterStore()
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_store, tmp_path) as opened:
        yield opened
    parameter_store.close()


def test_the_live_curve_is_that_of_the_steps_and_the_one_in_force_that_of_the_version(filled):
    found = filled.get("/v1/deployments/chat/curve").json()
    document = filled.get("/v1/deployments/chat/versions/1").json()["document"]
    assert found["version"] == 1
    assert found["in_force"]["seconds"] == document["cost"]["seconds"]
    live = found["live"]
    assert len({len(live[name]) for name in ("batch_tokens", "seconds", "sps", "status", "n_eff")}) == 1
    middle = live["batch_tokens"].index(32)
    assert live["seconds"][middle] == pytest.approx(8e-3 + 4e-5 * 32, rel=0.03)
    assert live["sps"][middle] == pytest.approx(1 / live["seconds"][middle])
    assert found["reasons"] == live["reasons"] == []
    assert 0 < len(found["samples"]) <= 500
    assert {s["requests"] for s in found["samples"]} == {8}


def test_without_steps_there_is_no_curve_and_it_says_so(filled):
    found = filled.get("/v1/deployments/quiet/curve").json()
    assert (found["version"], found["in_force"], found["live"], found["additive"]) == (None, None, None, None)
    assert found["samples"] == []
    assert found["reasons"] == ["no steps were reported yet"]


def paired(count=300, requests=4):
    """Rounds and the steps that carried them: ``requests`` rounds each."""
    rounds = recorded("typical").take(slice(0, count * requests))
    seconds = np.random.default_rng(0).uniform(0.01, 0.02, count)
    steps = Steps.build(
        step_seconds=seconds, draft_seconds=seconds * 0.25, verify_seconds=seconds * 0.7,
        batch_tokens=np.full(count, requests * 8), requests=np.full(count, requests),
        rows=np.full(count, requests),
    )  # fmt: skip
    return rounds, steps


def test_the_ledger_is_that_of_the_rows(service):
    rounds, steps = paired(200)
    service.ingest(rounds.take(slice(0, 800)), steps=steps)
    found = service.get("/v1/deployments/chat/ledger").json()
    expected = LedgerSums.fold(rounds.take(slice(0, 800)), steps)
    total = expected.figures()
    for name, value in found["total"].items():
        if name != "requests_from":
            assert value == pytest.approx(getattr(total, name), rel=1e-5), name
    assert [load["requests_from"] for load in found["by_load"]] == [
        f.requests_from for f in expected.by_load()
    ]
    busy = [point for point in found["series"] if point["rounds"]]
    idle = [point for point in found["series"] if not point["rounds"]]
    assert len(busy) == 1
    assert busy[0]["tokens_per_second"] == pytest.approx(total.tokens_per_second, rel=1e-5)
    assert len(idle) >= 59
    assert {point["tokens_per_second"] for point in idle} == {None}


def test_ledgers_of_nothing_are_nulls(filled):
    found = filled.get(
        "/v1/deployments/quiet/ledger", params={"from": "2020-01-01T00:00:00Z", "to": "2020-02-01T00:00:00Z"}
    )
    assert found.status_code == 200
    assert found.json()["total"]["tokens_per_second"] is None
    assert found.json()["by_load"] == []
    reversed_range = {"from": "2020-02-01T00:00:00Z", "to": "2020-01-01T00:00:00Z"}
    assert filled.get("/v1/deployments/chat/ledger", params=reversed_range).status_code == 422


def test_coverage_is_what_was_verified(service):
    rounds = truncate(recorded("typical").take(slice(0, 2000)), np.full(2000, 3), explore=0.2)
    service.ingest(Rounds.build(
        rounds.logits, rounds.accepted, verified=rounds.verified, scheduled=rounds.scheduled,
        request=rounds.request, step=rounds.step, explore=rounds.explore,
    ))  # fmt: skip
    found = service.get("/v1/deployments/chat/exploration").json()
    assert (found["settings"], found["explore"], found["decisions"]) == ({}, None, [])
    for k, position in enumerate(found["coverage"]):
        assert position["drafted"] == 2000
        assert position["verified"] == int((rounds.verified > k).sum())
        assert position["share"] == position["verified"] / 2000


def test_decisions_of_refreshes_are_listed_with_their_price(filled):
    found = filled.get("/v1/deployments/chat/exploration").json()
    (decision,) = found["decisions"]
    assert decision["explore"] == found["explore"]
    assert decision["reason"]
    assert decision["extra_verified"] == 0.0  # all was verified anyway
    quiet = filled.get("/v1/deployments/quiet/exploration").json()
    assert [c["share"] for c in quiet["coverage"]] == [None] * 3
