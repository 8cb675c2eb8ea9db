"""Recorded rounds served as a live engine: exact books, fair truncation, parameters between steps."""

from itertools import pairwise

import numpy as np
import pytest

from serving_adapter.clock import ManualClock
from serving_adapter.contract import (
    CostCurve,
    Rounds,
)
from serving_adapter.engines.replay import (
    DriftScript,
    Machine,
    ReplayEngine,
    Traffic,
    knee_curve,
    load_recording,
    split_requests,
)
from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import EarlyStop, FixedLength, Threshold, VerifyAll
from tests.replay_doubles import RecordingAdapter, parameters, tiny_recording


def test_requests_that_were_held_out_are_never_served():
    recording = load_recording("typical")
    served, held_out = split_requests(recording, 0.5)
    adapter = RecordingAdapter()
    ReplayEngine(adapter, recordings={"typical": recording.keep(served)}, concurrency=16).run(steps=200)
    seen = {row.tobytes() for call in adapter.calls for row in call["logits"]}
    held = {row.tobytes() for row in recording.rows_of(held_out).logits}
    assert len(seen) > 1000
    assert not seen & held


def test_labels_are_truncated_exactly_as_scheduled():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, scheduler=Threshold(0.5), concurrency=16)
    for _ in range(100):
        result = engine.step()
        survival = Parameters.identity(7).survival(result.rounds.logits)
        assert result.rounds.scheduled.tolist() == (survival >= 0.5).sum(axis=1).tolist()
        assert result.rounds.verified.tolist() == result.rounds.scheduled.tolist()
        assert (result.rounds.accepted == np.minimum(result.true_accepted, result.rounds.verified)).all()
    assert 0 < engine.ledger.verified < engine.ledger.drafted


def test_what_is_emitted_keeps_the_contract():
    adapter = RecordingAdapter(explore=0.1)
    ReplayEngine(adapter, soft_labels=True, concurrency=8).run(steps=60)
    for call in adapter.calls:
        names = ("verified", "scheduled", "resolved", "resolved_accepted", "draft_stop", "step", "sampling")
        Rounds.build(
            call["logits"],
            call["accepted"],
            request=call["request"],
            accept_probability=call["accept_probability"],
            **{name: call[name] for name in names},
        )
        hidden = np.arange(7) >= call["verified"][:, None]
        assert np.isnan(call["accept_probability"][hidden]).all()


def test_outcomes_and_confidences_are_the_recorded_ones_in_recorded_order():
    recording = tiny_recording()
    adapter = RecordingAdapter(gamma=2)
    engine = ReplayEngine(
        adapter,
        recordings={"tiny": recording},
        script=DriftScript.steady("tiny"),
        scheduler=VerifyAll(),
        concurrency=1,
    )
    engine.run(steps=60)
    rows = {
        row.logits.tobytes(): i
        for i, row in enumerate(recording.rounds.take(slice(i, i + 1)) for i in range(6))
    }
    played = [rows[call["logits"].tobytes()] for call in adapter.calls]
    truth = recording.rounds.accepted.tolist()
    assert [int(call["accepted"][0]) for call in adapter.calls] == [truth[row] for row in played]
    for before, after in pairwise(played):
        assert after == before + 1 if before not in (2, 5) else after in (0, 3)
    assert set(played) == set(range(6))


def test_the_ledger_adds_up_with_what_was_emitted():
    adapter = RecordingAdapter(explore=0.05)
    engine = ReplayEngine(adapter, concurrency=12)
    ledger = engine.run(steps=150)
    verified, accepted = adapter.column("verified"), adapter.column("accepted")
    assert ledger.rounds == ledger.emitted == verified.size == 150 * 12
    assert ledger.steps == len(adapter.calls) == 150
    assert ledger.drafted == verified.size * 7
    assert ledger.scheduled == adapter.column("scheduled").sum(dtype=int)
    assert ledger.verified == verified.sum(dtype=int)
    assert ledger.accepted == accepted.sum(dtype=int)
    assert ledger.tokens == ledger.accepted + ledger.rounds
    assert ledger.batch_tokens == adapter.column("batch_tokens").sum() == ledger.rounds + ledger.verified
    assert ledger.seconds == pytest.approx(adapter.column("step_seconds").sum())
    assert ledger.tokens_per_second == pytest.approx(ledger.tokens / ledger.seconds)
    assert ledger.rounds_by_segment.total() == ledger.rounds_by_version.total() == ledger.rounds
    k = np.arange(1, 8)
    stop = np.where(adapter.column("draft_stop") == 255, 7, adapter.column("draft_stop").astype(int) + 1)
    labelled = (k <= verified[:, None]) & (k <= stop[:, None])
    assert ledger.labels.tolist() == labelled.sum(axis=0).tolist()
    assert ledger.label_sums.tolist() == (labelled & (k <= accepted[:, None])).sum(axis=0).tolist()
    assert (ledger.label_sums <= ledger.true_accepted_at).all()
    assert (ledger.labels <= ledger.drafted_at).all()


def test_full_verification_shows_every_label():
    ledger = ReplayEngine(RecordingAdapter(), scheduler=VerifyAll(), concurrency=12).run(steps=80)
    assert ledger.labels.tolist() == ledger.drafted_at.tolist()
    assert ledger.label_sums.tolist() == ledger.true_accepted_at.tolist()


def test_explored_rounds_are_verified_in_full_and_their_schedule_is_logged_all_the_same():
    adapter = RecordingAdapter(explore=0.1)
    engine = ReplayEngine(adapter, scheduler=FixedLength(2), concurrency=32)
    explored = np.concatenate([engine.step().explored for _ in range(400)])
    verified = adapter.column("verified")
    assert verified.tolist() == np.where(explored, 7, 2).tolist()
    assert set(adapter.column("scheduled").tolist()) == {2}
    assert engine.ledger.explored == explored.sum()
    assert explored.mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.1 * 0.9 / explored.size))
    assert adapter.calls[0]["explore"] == adapter.parameters.explore == np.float16(0.1)


def test_without_exploration_nothing_is_verified_beyond_the_schedule():
    adapter = RecordingAdapter()
    assert ReplayEngine(adapter, scheduler=FixedLength(2)).run(steps=50).explored == 0
    assert set(adapter.column("verified").tolist()) == {2}


def test_a_recorded_request_dealt_again_keeps_its_identity_and_numbers_its_rounds_on():
    adapter = RecordingAdapter(gamma=2)
    ReplayEngine(
        adapter, recordings={"tiny": tiny_recording()}, script=DriftScript.steady("tiny"), concurrency=3
    ).run(steps=200)
    rounds = list(zip(adapter.column("request").tolist(), adapter.column("step").tolist(), strict=True))
    assert len({request for request, _ in rounds}) == 2
    assert len(set(rounds)) == len(rounds)


def test_a_request_dealt_again_may_be_another_one_so_that_traffic_never_ends():
    adapter = RecordingAdapter(gamma=2)
    engine = ReplayEngine(
        adapter, recordings={"tiny": tiny_recording()}, script=DriftScript.steady("tiny"), concurrency=3
    )
    engine.deal_as_new_requests()
    engine.run(steps=200)
    assert len(set(adapter.column("request").tolist())) == engine.requests_started > 10


def test_a_trimmed_position_after_the_verified_ones_is_resolved_in_every_round_or_in_none():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, scheduler=FixedLength(3), concurrency=16)
    for _ in range(60):
        result = engine.step()
        assert set(result.rounds.resolved.tolist()) == {4}
        assert (result.rounds.resolved_accepted == np.minimum(result.true_accepted, 4)).all()


def test_free_labels_of_the_bonus_position_are_fair():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, scheduler=FixedLength(3), concurrency=16)
    results = [engine.step() for _ in range(100)]
    truth = np.concatenate([result.true_accepted for result in results])
    free = np.concatenate([result.rounds.resolved_accepted for result in results])
    accepted = np.concatenate([result.rounds.accepted for result in results])
    assert (free >= 4).mean() == (truth >= 4).mean()
    only_when_all_were_accepted = (free[accepted == 3] >= 4).mean()
    assert only_when_all_were_accepted > (truth >= 4).mean() + 0.2


def test_greedy_traffic_resolves_the_whole_draft():
    adapter = RecordingAdapter()
    engine = ReplayEngine(
        adapter, script=DriftScript.steady("typical-greedy"), scheduler=FixedLength(1), concurrency=8
    )
    result = engine.step()
    assert set(result.rounds.resolved.tolist()) == {7}
    assert (result.rounds.resolved_accepted == result.true_accepted).all()


def test_free_labels_can_be_left_out():
    engine = ReplayEngine(RecordingAdapter(), scheduler=FixedLength(1), free_labels=False)
    rounds = engine.step().rounds
    assert rounds.resolved.tolist() == rounds.verified.tolist()
    assert rounds.resolved_accepted.tolist() == rounds.accepted.tolist()


def test_parameters_are_applied_between_steps_and_reported_once():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, scheduler=Threshold(0.5), concurrency=4)
    engine.run(steps=2)
    adapter.parameters = parameters(3, offset=-2.0)
    lowered = engine.step()
    engine.run(steps=1)
    assert adapter.events == [
        ("applied", 0),
        ("observe", 0),
        ("observe", 0),
        ("applied", 3),
        ("observe", 3),
        ("observe", 3),
    ]
    survival = adapter.parameters.survival(lowered.rounds.logits)
    assert lowered.rounds.scheduled.tolist() == (survival >= 0.5).sum(axis=1).tolist()
    assert engine.parameters.version == 3
    assert engine.ledger.rounds_by_version == {0: 8, 3: 8}


def test_parameters_of_another_gamma_are_refused_and_the_old_ones_stay():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, concurrency=4)
    adapter.parameters = parameters(2, temperature=1.5)
    engine.run(steps=1)
    adapter.parameters = parameters(3, gamma=5)
    engine.run(steps=3)
    refusals = [event for event in adapter.events if event[0] == "refused"]
    assert [version for _, version, _ in refusals] == [3]
    assert "gamma: got 5, expected 7" in refusals[0][2]
    assert engine.parameters.version == 2
    assert engine.ledger.rounds_by_version == {2: 16}
    assert engine.ledger.refused == 1
    adapter.parameters = parameters(4)
    engine.run(steps=1)
    assert adapter.events[-2:] == [("applied", 4), ("observe", 4)]


def test_an_adapter_of_another_gamma_is_refused_at_once():
    with pytest.raises(ValueError, match="gamma: got 5 in the adapter, expected 7"):
        ReplayEngine(RecordingAdapter(gamma=5))


def test_recordings_of_different_gamma_cannot_be_mixed():
    recordings = {"a": tiny_recording(gamma=2, name="a"), "b": tiny_recording(gamma=3, name="b")}
    script = DriftScript.switch([Traffic("a")], [Traffic("b")], at=5)
    with pytest.raises(ValueError, match="gamma"):
        ReplayEngine(RecordingAdapter(gamma=2), recordings=recordings, script=script)


def test_a_published_curve_replaces_the_one_from_boot():
    adapter = RecordingAdapter()
    machine = Machine.with_knee(128)
    engine = ReplayEngine(adapter, scheduler=EarlyStop(), machine=machine, boot_cost=None, concurrency=64)
    blind = engine.step().rounds
    assert set(blind.verified.tolist()) == {7}
    assert adapter.calls[-1]["predicted_seconds"] == 0
    adapter.parameters = parameters(1, cost=knee_curve(128))
    assert engine.step().rounds.verified.mean() < 4
    call = adapter.calls[-1]
    assert call["predicted_seconds"] == pytest.approx(float(machine.cost.seconds(call["batch_tokens"])))
    stale = CostCurve(batch_tokens=[1, 9], seconds=[1.0, 9.0], status=["stale", "stale"])
    adapter.parameters = parameters(2, cost=stale)
    assert set(engine.step().rounds.verified.tolist()) == {7}


def test_predicted_accepted_is_the_sum_of_verified_survivals():
    adapter = RecordingAdapter()
    result = ReplayEngine(adapter, scheduler=FixedLength(2), concurrency=4).step()
    survival = Parameters.identity(7).survival(result.rounds.logits)
    assert adapter.calls[0]["predicted_accepted"] == pytest.approx(survival[:, :2].sum())


def test_rounds_outside_the_reported_share_are_booked_apart():
    adapter = RecordingAdapter()
    adapter.parameters = parameters(1, share=0.5)
    ledger = ReplayEngine(adapter, concurrency=64).run(steps=40)
    assert ledger.rounds == 64 * 40
    assert 0.2 < ledger.emitted / ledger.rounds < 0.8


def test_equal_seeds_serve_equal_rounds():
    def serve(seed, **options):
        adapter = RecordingAdapter(explore=0.02)
        engine = ReplayEngine(adapter, seed=seed, concurrency=8, **options)
        engine.run(steps=80)
        return engine, [c["logits"].tobytes() + c["verified"].tobytes() for c in adapter.calls], adapter

    one, rows, adapter = serve(5)
    two, same_rows, _ = serve(5)
    assert rows == same_rows
    assert one.ledger.seconds == two.ledger.seconds
    assert rows != serve(6)[1]
    other = serve(5, scheduler=VerifyAll())[2]
    assert [c["logits"].tobytes() for c in other.calls] == [c["logits"].tobytes() for c in adapter.calls]


def test_requests_come_and_go():
    engine = ReplayEngine(RecordingAdapter(), concurrency=8)
    engine.run(steps=200)
    assert engine.requests_finished > 20
    assert engine.requests_started == engine.requests_finished + 8


def test_time_passes_on_the_given_clock_by_speed():
    clock = ManualClock()
    engine = ReplayEngine(RecordingAdapter(), concurrency=4, speed=2.0, clock=clock)
    ledger = engine.run(steps=20)
    assert clock.monotonic() == pytest.approx(ledger.seconds / 2.0)
    still = ManualClock()
    ReplayEngine(RecordingAdapter(), concurrency=4, clock=still).run(steps=5)
    assert still.monotonic() == 0


def test_run_ends_after_steps_or_rounds_or_when_told():
    engine = ReplayEngine(RecordingAdapter(), concurrency=4)
    assert engine.run(steps=3).steps == 3
    assert engine.run(rounds=10).rounds == 24
    calls = iter([False, False, True])
    assert engine.run(stopped=lambda: next(calls)).steps == 8
    with pytest.raises(ValueError, match="no end"):
        engine.run()


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"speed": -1.0}, {"speed": float("nan")}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        ReplayEngine(RecordingAdapter(), **options)


def test_exploration_rests_under_saturation_and_the_rows_say_so() -> None:
    adapter = RecordingAdapter(explore=0.5)
    engine = ReplayEngine(adapter, concurrency=64, exploration_budget=1e-6)
    rounds = [engine.step().rounds for _ in range(5)]
    assert engine.ledger.explored == 0
    assert all((r.explore == 0).all() for r in rounds)
    free = ReplayEngine(RecordingAdapter(explore=0.5), concurrency=64)
    free.step()
    assert free.ledger.explored > 0
