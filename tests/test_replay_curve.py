"""Value is replayed with the curve in force where the live one no longer covers what is served."""

import dataclasses

import msgspec
import numpy as np
import pytest

from calibrator.core.gate import PositionGate
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal
from calibrator.service.curves import LiveCurve
from calibrator.service.evidence import judge_worth
from calibrator.service.reading.period import period_numbers
from calibrator.service.replay_curve import replay_curve
from calibrator.store import deployments, parameters, refreshes
from serving_adapter.contract import CostCurve, ParameterDocument, Steps
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.recorded import recorded
from tests.web_support import open_service

WIDE = (8, 16, 32, 64, 128, 256)
NARROW = (24, 30, 40)
NO_STEPS = LiveCurve(None, changed=False, requests=1, reasons=("no steps were reported yet",))


@pytest.fixture(scope="module")
def parameter_server():
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture
def service(tmp_path, parameter_server):
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_server, tmp_path) as opened:
        yield opened


def steps(sizes: tuple[int, ...], requests: int) -> Steps:
    """Steps of a machine that takes 30 ms and 1 ms per token."""
    tokens = np.repeat(sizes, 60)
    noise = np.random.default_rng(0).normal(1.0, 0.01, tokens.size)
    return Steps.build(
        step_seconds=(0.03 + 0.001 * tokens) * noise,
        batch_tokens=tokens,
        requests=np.full(tokens.size, requests),
    )


def test_value_outlives_a_live_curve_that_narrowed_and_says_what_it_rests_on(service) -> None:
    service.ingest(recorded("typical").take(slice(0, 900)), steps=steps(WIDE, 8))
    service.report("chat")
    assert service.context.refresher.refresh("chat").outcome == "published"
    assert service.get("/v1/deployments/chat/value").json()["reasons"] == []  # with the live one
    service.clock.advance(40 * 6 * 3600.0)  # the other sizes are forgotten
    service.ingest(recorded("typical").take(slice(900, 1500)), steps=steps(NARROW, 16))
    service.report("chat")
    outcome = service.context.refresher.refresh("chat")
    assert any(r.startswith("curve: measured from 24 to 40 tokens, but 16 ") for r in outcome.reasons)
    (note,) = [r for r in outcome.reasons if r.startswith("value: ")]
    assert note.startswith("value: replayed with the curve in force, published with version 1 10.0 days ago")

    found = service.get("/v1/deployments/chat/value").json()
    assert found["refresh"] == outcome.refresh_id
    assert found["reasons"] == [note.removeprefix("value: ")]
    (row,) = [r for r in found["values"] if r["policy"] == "in force"]
    assert row["concurrency"] == 16
    overview = service.get("/v1/deployments/chat").json()["value"]
    assert overview["tokens_per_second"] == row["tokens_per_second"]["estimate"]
    with service.context.store.read() as connection:
        chat = deployments.get(connection, "chat")
        assert chat is not None
        numbers = period_numbers(connection, chat, 0.0, service.clock.now() + 1.0)
        evidence = refreshes.recent(connection, chat.id)[0].evidence
    assert [v["policy"] for v in numbers["value"]] == [v["policy"] for v in found["values"]]
    (reported,) = [v for v in numbers["value"] if v["policy"] == "in force"]
    assert reported["tokens_per_second"]["estimate"] == row["tokens_per_second"]["estimate"]
    assert (evidence["value_curve"]["source"], evidence["value_curve"]["version"]) == ("in_force", 1)


def test_without_any_curve_there_is_no_value_and_it_says_so(service) -> None:
    service.ingest(recorded("typical").take(slice(0, 600)))
    service.report("chat")
    service.context.refresher.refresh("chat")
    found = service.get("/v1/deployments/chat/value").json()
    assert found["values"] == []
    assert found["reasons"] == ["no throughput curve could be measured, so there is nothing to replay with"]


def test_the_age_is_that_of_the_first_version_with_the_curve_and_of_this_engine(service) -> None:
    cost = CostCurve(batch_tokens=[1, 64], seconds=[0.03, 0.09])
    with service.context.store.write() as connection:
        chat = deployments.register(connection, "chat", 3, "f", 0.0)
        for version, curve in ((1, None), (2, cost), (3, cost)):
            made = ParameterDocument(
                deployment="chat", fingerprint="f", version=version, previous=version - 1, gamma=3,
                form="temperature", temperatures=[1.0] * 3, offsets=[0.0] * 3,
                created_at="2026-11-29T10:00:00Z", cost=curve,
            )  # fmt: skip
            parameters.append(connection, chat.id, made, 100.0 * version, "published")
        history = parameters.history(connection, chat.id)
    found = replay_curve(NO_STEPS, history, chat, 1400.0)
    assert found.cost is not None
    assert found.note.startswith(
        "replayed with the curve in force, published with version 2 20 min ago; at 1 request"
    )
    other = dataclasses.replace(chat, fingerprint="another machine")
    assert replay_curve(NO_STEPS, history, other, 1400.0).cost is None
    guessed = msgspec.structs.replace(cost, status=["flat", "extrapolated"])
    unmeasured = dataclasses.replace(
        history[0], document=msgspec.structs.replace(history[0].document, cost=guessed)
    )
    assert replay_curve(NO_STEPS, [unmeasured], chat, 1400.0).cost is None


def test_a_set_that_would_serve_fewer_tokens_is_vetoed_with_the_curve_in_force(service) -> None:
    cost = CostCurve(batch_tokens=[1, 512], seconds=[0.03, 0.031])  # more tokens cost next to nothing
    made = ParameterDocument(
        deployment="chat", fingerprint="f", version=1, previous=0, gamma=7, form="temperature",
        temperatures=[1.0] * 7, offsets=[0.0] * 7, created_at="2026-11-29T10:00:00Z", cost=cost,
    )  # fmt: skip
    with service.context.store.write() as connection:
        chat = deployments.register(connection, "chat", 7, "f", 0.0)
        parameters.append(connection, chat.id, made, 100.0, "published")
        history = parameters.history(connection, chat.id)
    rounds = recorded("typical").take(slice(0, 600))
    shy = ParameterSet("affine", np.ones(7), np.full(7, -12.0))  # expects nothing to be accepted
    proposal = Proposal(
        publish=True, parameters=shy, form_judged="affine", reasons=("better",), rows=600, requests=60,
        gates=(PositionGate(1, "ok", 600.0, 300, 300),),
    )  # fmt: skip
    narrow = LiveCurve(None, changed=False, requests=16, reasons=("too narrow",))
    replay = replay_curve(narrow, history, chat, 200.0)
    worth = judge_worth(proposal, ParameterSet.identity(7), replay, rounds, np.ones(600))
    assert len(worth.reasons) == 1
    without = judge_worth(
        proposal, ParameterSet.identity(7), replay_curve(narrow, [], chat, 200.0), rounds, np.ones(600)
    )
    assert (without.reasons, without.values) == ((), ())
