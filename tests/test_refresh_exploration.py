"""Exploration as refreshes decide it: raised, kept, lowered, resting while the engine is full; priced."""

import numpy as np
import pytest

from calibrator.core.record import RecordFigure
from calibrator.service.deployment_settings import ExploreSettings, read_settings
from calibrator.service.exploration import knee, plan_exploration, saturation
from calibrator.store import deployments, refreshes
from calibrator.store.step_sample import StepSample
from serving_adapter.contract import ParameterDocument, Rounds, Steps, decode_document
from serving_adapter.step_cost import StepCost
from tests.recorded import recorded, truncate
from tests.refresh_support import Place

pytest_plugins = ["tests.refresh_fixtures"]

GAMMA = 4
CURVE = StepCost([1, 32, 64, 128, 256, 512], [0.01, 0.01, 0.01, 0.02, 0.04, 0.08])


def figures(*statuses: str, n_eff: float = 1000.0) -> list[RecordFigure]:
    return [
        RecordFigure(k, *[None] * 9, n_eff, 0.0, 1.0, status, "traffic")
        for k, status in enumerate(statuses, start=1)
    ]


def rounds(scheduled: int, count: int = 100) -> Rounds:
    return Rounds.build(np.zeros((count, GAMMA)), np.zeros(count), verified=np.full(count, scheduled))


def steps(requests: int, seconds: float = 0.02, count: int = 10) -> StepSample:
    return StepSample(
        Steps.build(step_seconds=np.full(count, seconds), batch_tokens=3 * requests, requests=requests),
        np.ones(count),
        np.arange(count, dtype=float),
        np.full(count, "f"),
    )


def document(version: int, explore: float) -> ParameterDocument:
    return ParameterDocument(
        deployment="chat", fingerprint="f", version=version, gamma=GAMMA, form="temperature",
        temperatures=[1.0] * GAMMA, offsets=[0.0] * GAMMA, created_at="2026-11-29T10:00:00Z", explore=explore,
    )  # fmt: skip


def plan(known, in_force=0.02, scheduled=2, settings=None, history=(), load=None, cost=CURVE, default=0.01):
    rows = rounds(scheduled)
    return plan_exploration(
        settings or ExploreSettings(),
        default,
        in_force,
        history,
        known,
        rows,
        np.ones(len(rows)),
        np.full((len(rows), GAMMA), 0.5),
        load or steps(16),
        cost,
    )


def test_it_is_raised_for_a_position_that_is_trimmed_and_not_known():
    planned = plan(figures("ok", "ok", "censored", "insufficient"))
    assert planned.explore == 0.04
    assert planned.worth_a_version
    assert planned.summary == "explore: 0.02 -> 0.04, raised: position 3, 4 are not known well enough"


def test_what_is_never_trimmed_needs_no_exploration():
    planned = plan(figures("insufficient", "insufficient", "ok", "ok"))
    assert planned.explore == 0.01
    everything = plan(figures(*["insufficient"] * 4), scheduled=GAMMA)
    assert not everything.worth_a_version


def test_it_is_lowered_only_while_enough_labels_remain():
    assert plan(figures(*["ok"] * 4, n_eff=1000.0)).explore == 0.01
    held = plan(figures(*["ok"] * 4, n_eff=150.0))
    assert held.explore == 0.02
    assert not held.worth_a_version
    assert "would not be with less" in held.reason


def test_a_change_of_a_few_per_cent_is_not_worth_a_version():
    hungry = figures("ok", "ok", "censored", "censored")
    # Two of four tokens are trimmed: the budget of 5 % more verified tokens allows 0.05.
    planned = plan(hungry, in_force=0.048)
    assert planned.explore == pytest.approx(0.05)
    assert not planned.worth_a_version
    assert plan(hungry, in_force=0.03).worth_a_version


def test_it_rests_while_requests_fill_the_engine_and_comes_back_to_where_it_was():
    history = [document(2, 0.0), document(1, 0.04)]
    full = plan(figures("ok", "ok", "censored", "censored"), load=steps(64))
    assert (full.explore, full.worth_a_version) == (0.0, True)
    assert full.reason == "saturated: 100 % of capacity in use"
    assert full.evidence["capacity_requests"] == 64
    resting = plan(figures("ok", "ok", "censored", "ok"), in_force=0.0, history=history, load=steps(60))
    assert (resting.explore, resting.worth_a_version) == (0.0, False)
    assert resting.evidence["before_saturation"] == 0.04
    back = plan(figures("ok", "ok", "censored", "ok"), in_force=0.0, history=history, load=steps(20))
    assert (back.explore, back.worth_a_version) == (0.04, True)


def test_drafts_that_fill_a_batch_are_no_saturation():
    # 30 requests verify 90 tokens a step, beyond the knee at 64: that is what the scheduler is for.
    assert plan(figures(*["ok"] * 4), load=steps(30)).explore > 0.0


def test_the_operator_says_how_many_requests_fill_the_engine():
    settings = ExploreSettings(saturated_requests=16)
    assert plan(figures(*["ok"] * 4), settings=settings).explore == 0.0
    assert plan(figures(*["ok"] * 4), cost=None).explore == 0.01  # nothing is known of capacity


def test_a_fixed_probability_is_what_is_published():
    settings = ExploreSettings(mode="fixed", explore=0.03)
    planned = plan(figures(*["censored"] * 4), settings=settings, load=steps(64))
    assert (planned.explore, planned.worth_a_version) == (0.03, True)
    assert not plan(figures(*["ok"] * 4), in_force=0.03, settings=settings).worth_a_version


def test_floor_and_ceiling_of_the_operator_bound_it():
    settings = ExploreSettings(floor=0.02, ceiling=0.03)
    assert plan(figures(*["censored"] * 4), settings=settings).explore == 0.03
    assert plan(figures(*["ok"] * 4), settings=settings).explore == 0.02
    # A ceiling below the service's own floor is the operator's word.
    assert plan(figures(*["ok"] * 4), settings=ExploreSettings(ceiling=0.005)).explore == 0.005


def test_the_price_is_part_of_the_evidence():
    priced = plan(figures("ok", "ok", "censored", "censored"), load=steps(40)).evidence
    assert priced["extra_verified"] == pytest.approx(0.04 * 2)
    assert priced["extra_share"] == pytest.approx(0.04)
    assert priced["relative_speed"] < 0.0  # 40 requests verify beyond the knee
    assert plan(figures(*["ok"] * 4), cost=None).evidence["tokens_per_second"] is None


def test_the_knee_is_where_twice_the_batch_takes_half_as_long_again():
    assert knee(CURVE) == 64
    assert knee(StepCost([1, 128], [0.01, 0.0101])) is None
    # t = a + b B: at a / b, where half of the time is the batch's.
    additive = np.array([1, 50, 100, 200, 400])
    assert knee(StepCost(additive, 0.01 + 0.0001 * additive)) == 100


def test_saturation_is_the_mean_over_engine_time():
    half = steps(32)
    assert saturation(half, 64) == pytest.approx(0.5)
    assert saturation(steps(640), 64) == 1.0
    assert saturation(half, None) is None
    none = StepSample(Steps.empty(), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.str_))
    assert saturation(none, 64) is None


def trimmed(explore: float, scheduled: int = 2) -> Rounds:
    full = recorded("typical").take(slice(0, 6000))
    return truncate(full, np.full(len(full), scheduled), explore)


def evidence(place: Place, index: int = 0):
    with place.store.read() as connection:
        found = deployments.get(connection, "chat")
        assert found is not None
        return refreshes.recent(connection, found.id)[index].evidence


def configure(place: Place, **settings) -> None:
    read_settings(settings)
    with place.store.write() as connection:
        found = deployments.get(connection, "chat")
        assert found is not None
        deployments.set_settings(connection, found.id, settings)


def test_a_deployment_that_trims_and_does_not_explore_is_told_to(place: Place) -> None:
    place.ingest(trimmed(0.0))
    place.report()
    outcome = place.refresher.refresh("chat")
    assert outcome.outcome == "published"
    assert outcome.document is not None
    assert outcome.document.explore == 0.01
    stored = evidence(place)["exploration"]
    assert stored["reason"] == "raised: position 3, 4, 5, 6, 7 are not known well enough"
    assert [c["status"] for c in stored["coverage"]][2:] == ["censored"] * 5
    assert [c["share"] for c in stored["coverage"]][:3] == [1.0, 1.0, 0.0]


def test_the_next_refresh_raises_it_by_a_factor_and_says_so(place: Place) -> None:
    place.ingest(trimmed(0.01, scheduled=5))
    place.report()
    first = place.refresher.refresh("chat").document
    assert first is not None
    assert first.explore == pytest.approx(0.02, rel=0.001)
    second = place.refresher.refresh("chat")
    assert second.outcome == "published"
    assert second.document is not None
    assert second.document.explore == pytest.approx(0.04, rel=0.001)
    assert any(reason.startswith("explore: ") for reason in second.reasons)
    # The parameters are those that were in force: only the exploration is news.
    assert second.document.temperatures == first.temperatures


def test_the_operators_settings_go_before_the_services(place: Place) -> None:
    place.ingest(trimmed(0.02))
    place.report()
    configure(
        place,
        explore={"mode": "fixed", "explore": 0.07},
        form="temperature",
        share=0.5,
        half_life_seconds=60.0,
    )
    document = place.refresher.refresh("chat").document
    assert document is not None
    assert (document.explore, document.share, document.form) == (0.07, 0.5, "temperature")
    assert decode_document(place.parameter_store.read("chat") or b"").explore == 0.07


def test_settings_that_cannot_be_read_publish_nothing_and_are_named(place: Place) -> None:
    place.ingest(trimmed(0.02))
    with place.store.write() as connection:
        found = deployments.get(connection, "chat")
        assert found is not None
        deployments.set_settings(connection, found.id, {"explore": {"floor": 7}})
    outcome = place.refresher.refresh("chat")
    assert (outcome.outcome, outcome.document) == ("unchanged", None)
    assert outcome.reasons == ("settings: explore.floor: got 7, expected a number <= 1.0",)
