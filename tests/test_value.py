"""Does it pay: replay of logged rounds under other parameters."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.candidate import ProposalOptions
from calibrator.core.offline import fit_offline
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.value import Policy, monotone_survival, value_report
from calibrator.core.value.batches import (
    asynchronous_lengths,
    best_lengths,
    draw_batches,
    early_stop_lengths,
)
from calibrator.core.value.outcome import Outcomes
from calibrator.core.value.replay import policy_lengths, replay
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay.cost import knee_curve, measured_curve
from serving_adapter.engines.replay.records import load_recording, split_requests
from serving_adapter.scheduler import Candidates, EarlyStop, GlobalSearch
from serving_adapter.step_cost import StepCost

LINE = StepCost([1, 2048], [0.03107, 0.03 + 0.00107 * 2048])
"""The recorded machine as its note describes it: 30 ms and 1.07 ms a token."""
KNEE = StepCost.from_curve(knee_curve())


@cache
def recorded(name="typical"):
    """Rounds to fit on and rounds to judge on, of different prompts."""
    recording = load_recording(name)
    fit, judge = split_requests(recording, 0.5)
    return recording.rows_of(fit), recording.rows_of(judge)


@cache
def fitted(form, name="typical"):
    return fit_offline(recorded(name)[0], ProposalOptions(form=form)).parameters


@cache
def recorded_report(name="typical", cost=LINE):
    forms = {form: fitted(form, name) for form in ("temperature", "affine")}
    return value_report(recorded(name)[1], cost, forms, (4, 32, 128), scheduler="asynchronous", resamples=200)


def truncated(rounds, survival, explore, seed=0):
    """What a log holds when a threshold on the survival trims, and some rounds are verified in full."""
    random = np.random.default_rng(seed)
    scheduled = (survival >= 0.5).sum(axis=1)
    verified = np.where(random.random(len(rounds)) < explore, rounds.gamma, scheduled)
    return Rounds.build(
        rounds.logits,
        np.minimum(rounds.accepted, verified),
        verified=verified,
        scheduled=scheduled,
        explore=np.full(len(rounds), explore),
        request=rounds.request,
        draft_stop=rounds.draft_stop,
    )


survivals = st.integers(0, 2**32 - 1).map(
    lambda seed: np.minimum.accumulate(
        np.random.default_rng(seed).choice([0.0, 0.2, 0.5, 0.5, 0.9, 1.0], size=(5, 3, 4)), axis=2
    )
)
costs = st.integers(0, 2**32 - 1).map(
    lambda seed: StepCost(
        [1, 4, 6, 9, 9 + seed % 7],
        np.cumsum(np.random.default_rng(seed).choice([0.0, 0.01, 0.05], size=5) + 1e-3),
    ) if seed % 7 else StepCost([1, 20], [0.1, 0.3], "floor")
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(survivals, costs)
def test_batches_at_once_are_scheduled_as_the_scheduler_does_one_by_one(survival, cost):
    for at_once, one in ((early_stop_lengths, EarlyStop()), (best_lengths, GlobalSearch())):
        expected = [one.lengths(a, cost) for a in survival]
        assert at_once(survival, cost).tolist() == np.array(expected).tolist()


@settings(max_examples=50, deadline=None)
@given(survivals, costs)
def test_the_asynchronous_replay_takes_its_capacity_from_the_batch_before(survival, cost):
    ranked = [Candidates.rank(a, cost) for a in survival]
    expected = [r.lengths(ranked[i - 1].best()).tolist() for i, r in enumerate(ranked)]
    assert asynchronous_lengths(survival, cost).tolist() == expected


def test_every_round_is_drawn_equally_often():
    drawn = draw_batches(np.ones(1000), 8, np.random.default_rng(0))
    counts = np.bincount(drawn.ravel(), minlength=1000)
    assert drawn.shape == (375, 8)
    assert counts.min() == counts.max() == 3


def test_rounds_are_drawn_in_proportion_to_their_weights():
    weights = np.array([0.0, 1.0, 3.0])
    counts = np.bincount(draw_batches(weights, 4, np.random.default_rng(0)).ravel(), minlength=3)
    assert counts[0] == 0
    assert counts[2] == pytest.approx(3 * counts[1], rel=0.01)


@pytest.mark.parametrize("requests", [1, 8, 40])
def test_with_full_labels_the_replay_is_a_direct_simulation(requests):
    rounds = recorded()[1].take(slice(0, 2000))
    policy = Policy("identity", survival=ParameterSet.identity(7).survival(rounds))
    outcomes = Outcomes.build(rounds, monotone_survival(rounds), "keep")
    batches = draw_batches(np.ones(len(rounds)), requests, np.random.default_rng(5))
    result = replay(policy, batches, KNEE, outcomes)

    tokens = seconds = 0.0
    scheduler = EarlyStop()
    for batch in batches:
        lengths = scheduler.lengths(policy.survival[batch], KNEE)
        tokens += requests + int(np.minimum(rounds.accepted[batch], lengths).sum())
        seconds += float(KNEE.seconds(requests + lengths.sum()))
    assert result.tokens.sum() == tokens
    assert result.seconds.sum() == pytest.approx(seconds, rel=1e-9)
    report = value_report(rounds, KNEE, concurrencies=[requests], end_of_sequence="keep", resamples=20)
    rate = report.value("identity", requests).tokens_per_second.estimate
    assert rate == pytest.approx(tokens / seconds, rel=0.03)  # other company, same rounds


def test_a_position_behind_the_end_of_the_sequence_yields_nothing():
    rounds = Rounds.build(np.zeros((1, 4)), [4], draft_stop=[1])
    assert Outcomes.build(rounds, np.full((1, 4), 0.5)).accepted.tolist() == [[0, 1, 2, 2, 2]]
    assert Outcomes.build(rounds, np.full((1, 4), 0.5), "keep").accepted.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("model", ["fitted", "wrong"])
def test_under_truncation_the_yield_is_unbiased_whatever_the_model_says(model):
    _, rounds = recorded()
    survival = ParameterSet.identity(7).survival(rounds)
    truth = Outcomes.build(rounds, np.zeros(survival.shape)).accepted.mean(axis=0)
    wrong = np.full(survival.shape, 0.9)
    means = []
    for seed in range(40):
        log = truncated(rounds, survival, explore=0.1, seed=seed)
        guess = wrong if model == "wrong" else monotone_survival(log)
        means.append(Outcomes.build(log, guess).accepted.mean(axis=0))
    error = np.std(means, axis=0) / np.sqrt(len(means))
    assert (np.abs(np.mean(means, axis=0) - truth) <= 4 * error + 1e-9).all()


def test_a_model_of_the_labels_makes_the_yield_precise():
    _, rounds = recorded()
    survival = ParameterSet.identity(7).survival(rounds)
    spread = {"model": [], "inverse weights alone": []}
    for seed in range(30):
        log = truncated(rounds, survival, explore=0.05, seed=seed)
        for name, guess in (
            ("model", monotone_survival(log)),
            ("inverse weights alone", np.zeros(survival.shape)),
        ):
            spread[name].append(Outcomes.build(log, guess).accepted[:, -1].mean())
    assert np.std(spread["model"]) < 0.8 * np.std(spread["inverse weights alone"])


def test_under_truncation_a_report_agrees_with_the_full_labels_within_its_interval():
    _, rounds = recorded()
    survival = ParameterSet.identity(7).survival(rounds)
    sets = {"affine": fitted("affine")}
    whole = value_report(rounds, LINE, sets, [32], scheduler="asynchronous")
    part = value_report(truncated(rounds, survival, 0.1), LINE, sets, [32], scheduler="asynchronous")
    assert not part.notes
    for name in ("verify all", "identity", "affine", "perfect foresight"):
        true = whole.value(name, 32).tokens_per_second.estimate
        interval = part.value(name, 32).tokens_per_second
        assert interval.low <= true <= interval.high, name


def test_without_exploration_the_report_says_that_it_cannot_know():
    _, rounds = recorded()
    log = truncated(rounds, ParameterSet.identity(7).survival(rounds), explore=0.0)
    report = value_report(log, LINE, concurrencies=[8], resamples=20)
    assert any(note.startswith("verified traffic only") for note in report.notes)
    assert report.value("verify all", 8).supported < 0.95
    assert report.value("verify none", 8).supported == 1.0


def test_counting_trimmed_positions_as_rejected_would_call_verify_all_worse_than_it_is():
    _, rounds = recorded()
    log = truncated(rounds, ParameterSet.identity(7).survival(rounds), explore=0.05)
    honest = Outcomes.build(log, monotone_survival(log)).accepted[:, -1].mean()
    naive = log.accepted.mean()
    true = Outcomes.build(rounds, np.zeros(rounds.logits.shape)).accepted[:, -1].mean()
    assert honest == pytest.approx(true, rel=0.03)
    assert naive < 0.95 * true


def test_intervals_are_those_of_a_bootstrap_that_replays_every_resample():
    _, rounds = recorded()
    report = value_report(rounds, LINE, concurrencies=[32], resamples=400, seed=3)
    ids = np.unique(rounds.request)
    rows = {r: np.flatnonzero(rounds.request == r) for r in ids}
    policy = Policy("identity", survival=ParameterSet.identity(7).survival(rounds))
    outcomes = Outcomes.build(rounds, np.zeros(rounds.logits.shape))
    random = np.random.default_rng(1)
    rates = []
    for _ in range(60):
        chosen = np.concatenate([rows[r] for r in random.choice(ids, len(ids))])
        batches = chosen[draw_batches(np.ones(len(chosen)), 32, random)]
        one = replay(policy, batches, LINE, outcomes)
        rates.append(one.tokens.sum() / one.seconds.sum())
    interval = report.value("identity", 32).tokens_per_second
    width = (interval.high - interval.low) / (2 * 1.96)
    assert width == pytest.approx(np.std(rates), rel=0.35)
    assert interval.estimate == pytest.approx(np.mean(rates), abs=2 * np.std(rates))


def test_the_table_of_the_design_on_the_recorded_machine():
    report = recorded_report()
    expected = {  # tokens per second relative to raw confidences, at 4, 32 and 128 requests
        "verify all": ((0.97, 1.00), (0.76, 0.80), (0.60, 0.64)),
        "verify none": ((0.25, 0.48), (0.37, 0.85), (0.99, 1.00)),
        "temperature": ((1.00, 1.00), (1.00, 1.01), (1.00, 1.01)),
        "affine": ((1.00, 1.02), (1.01, 1.03), (1.00, 1.01)),
    }
    for policy, ranges in expected.items():
        for concurrency, (low, high) in zip((4, 32, 128), ranges, strict=True):
            interval = report.value(policy, concurrency).against_identity
            assert interval.low - 0.005 <= high, (policy, concurrency, interval)
            assert interval.high + 0.005 >= low, (policy, concurrency, interval)
    assert 1.25 <= report.value("perfect foresight", 32).against_identity.estimate <= 1.35


def test_the_table_of_the_design_on_hard_rows():
    report = recorded_report("hard")
    assert report.value("verify all", 32).against_identity.estimate == pytest.approx(0.36, abs=0.01)
    affine = report.value("affine", 32).against_identity
    assert affine.low <= 1.05 <= affine.high + 0.005


def test_the_best_monotone_map_bounds_every_temperature_and_offset():
    report = recorded_report()
    for concurrency in (4, 32, 128):
        change = report.compare("affine", "best monotone map", concurrency)
        assert change.low < 0.003


def test_regret_is_what_foresight_would_have_added():
    report = recorded_report()
    for entry in report.values:
        if entry.policy == "perfect foresight":
            assert entry.regret.estimate == 0.0
        else:
            assert entry.regret.estimate > 0.0


def test_a_candidate_that_costs_throughput_is_named_and_one_that_does_not_is_not():
    _, rounds = recorded()
    sets = {
        "in force": fitted("affine"),
        "same": fitted("affine"),
        "candidate": ParameterSet("affine", np.ones(7), np.full(7, -4.0)),
    }
    report = value_report(rounds, LINE, sets, [32], resamples=100)
    assert report.worse("candidate", "in force").startswith(
        "replayed throughput of candidate against in force at 32 requests: -"
    )
    assert report.worse("same", "in force") is None
    assert report.worse("in force", "candidate") is None
    assert report.compare("same", "in force", 32).estimate == 0.0


def test_the_monotone_map_is_never_taught_by_the_request_it_maps():
    random = np.random.default_rng(0)
    logits = random.normal(0, 1, (400, 2))
    accepted = random.integers(0, 3, 400)
    request = np.repeat(np.arange(40), 10)
    before = monotone_survival(Rounds.build(logits, accepted, request=request))
    flipped = np.where(request == 7, 2 - accepted, accepted)
    after = monotone_survival(Rounds.build(logits, flipped, request=request))
    mine = request == 7
    assert (before[mine] == after[mine]).all()
    assert (before != after).any()


def test_weights_make_a_sample_stand_for_the_traffic():
    _, rounds = recorded()
    chat = np.array([name == "chat" for name in rounds.segment_names()])
    kept = ~chat | (np.random.default_rng(0).random(len(rounds)) < 0.25)
    sample = rounds.take(kept)
    weights = np.where(chat[kept], 4.0, 1.0)
    whole = value_report(rounds, LINE, concurrencies=[16], resamples=50)
    weighted = value_report(sample, LINE, concurrencies=[16], weights=weights, resamples=50)
    true = whole.value("verify all", 16).tokens_per_second.estimate
    assert weighted.value("verify all", 16).tokens_per_second.estimate == pytest.approx(true, rel=0.02)


def test_cost_may_depend_on_the_number_of_requests():
    rounds = recorded()[1].take(slice(0, 500))
    report = value_report(
        rounds, lambda r: StepCost([1, 4096], [0.01 * r, 0.01 * r + 1.0]), concurrencies=[2, 4], resamples=10
    )
    none = [report.value("verify none", r).tokens_per_second.estimate for r in (2, 4)]
    assert none == pytest.approx([2 / (0.02 + 1 / 4095), 4 / (0.04 + 3 / 4095)])


def test_cost_beyond_what_was_measured_is_noted():
    curve = measured_curve()
    cost = StepCost(curve.batch_tokens, curve.seconds)
    notes = value_report(recorded()[1].take(slice(0, 300)), cost, concurrencies=[64], resamples=10).notes
    assert notes == ("64 requests: cost beyond 256 batch tokens is extrapolated",)


def test_policies_that_need_no_confidence():
    rounds = recorded()[1].take(slice(0, 64))
    outcomes = Outcomes.build(rounds, np.zeros(rounds.logits.shape))
    batches = np.arange(64).reshape(8, 8)
    assert (policy_lengths(Policy("a", "all"), batches, LINE, outcomes) == 7).all()
    assert (policy_lengths(Policy("n", "none"), batches, LINE, outcomes) == 0).all()
    cheap = StepCost([1, 2048], [0.03, 0.031])
    foreseen = policy_lengths(Policy("f", "foresight"), batches, cheap, outcomes)
    assert (foreseen == outcomes.true_accepted[batches]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concurrencies": [0]}, "concurrencies"),
        ({"concurrencies": []}, "concurrencies"),
        ({"weights": [1.0]}, "weights"),
        ({"weights": np.zeros(10)}, "no weight"),
        ({"scheduler": "best"}, "scheduler: got 'best'"),
        ({"policies": {"identity": ParameterSet.identity(7)}}, "the name 'identity'"),
        ({"policies": {"mine": ParameterSet.identity(3)}}, "mine: got 3 positions, expected gamma = 7"),
    ],
)
def test_wrong_input_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        value_report(recorded()[1].take(slice(0, 10)), LINE, resamples=5, **change)


def test_a_handful_of_rounds_is_enough_to_run():
    rounds = Rounds.build(np.zeros((2, 3)), [1, 0])
    report = value_report(rounds, LINE, concurrencies=[1], resamples=5)
    assert "too few rounds were verified in full for perfect foresight" in report.notes
    with pytest.raises(KeyError):
        report.value("perfect foresight", 1)


def test_without_exploration_there_are_bounds_that_hold_the_truth_and_no_point():
    _, rounds = recorded()
    whole = value_report(rounds, LINE, concurrencies=[8], resamples=20)
    log = truncated(rounds, ParameterSet.identity(7).survival(rounds), explore=0.0)
    report = value_report(log, LINE, concurrencies=[8], resamples=20)
    with pytest.raises(KeyError):
        report.value("perfect foresight", 8)
    assert any("perfect foresight and regret are not known" in note for note in report.notes)
    assert all(entry.regret is None for entry in report.values)
    entry, true = report.value("verify all", 8), whole.value("verify all", 8)
    for found, expected in (
        (entry.tokens_per_second, true.tokens_per_second),
        (entry.against_identity, true.against_identity),
    ):
        assert found.estimate is None
        assert found.low <= expected.estimate <= found.high
    assert entry.accepted is None
    assert entry.wasted is None
