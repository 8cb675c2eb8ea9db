"""Drift: evidence that merges exactly, alarms that are rarely false, remedies that differ."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.drift import (
    ABOVE,
    BELOW,
    PROCESSES,
    STAKES,
    DriftRules,
    DriftSums,
    Watch,
    diagnose,
    fold_drift,
    kolmogorov_smirnov,
    population_stability_index,
    traffic_shift,
)
from calibrator.core.drift.sums import LEVELS, bet_index, bet_table
from calibrator.core.drift.watch import log_mean
from calibrator.core.labels import included, prefix_labels
from calibrator.core.windows import fold
from serving_adapter.contract import Rounds, prefix_survival, sigmoid
from tests.recorded import recorded, truncate

RULES = DriftRules()


def simulated(runs: int, rounds: int, gap: float, onset: int = 0, seed: int = 0):
    random = np.random.default_rng(seed)
    a = random.uniform(0.2, 0.9, size=(rounds, runs))
    return a, random.random((rounds, runs)) < a - np.where(np.arange(rounds) >= onset, gap, 0.0)[:, None]


def watched(a, y, rules):
    watch, events = Watch.start(a.shape[1]), []
    table = bet_table(rules.tolerance)
    for i in range(0, len(a), 500):
        evidence = table[bet_index(a[i : i + 500], y[i : i + 500])]
        watch, more = watch.extend(evidence, np.arange(i, i + len(evidence)), rules.log_threshold())
        events += more
    return watch, events


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_evidence_of_any_partition_in_any_order_adds_up_to_the_bit(seed):
    random = np.random.default_rng(seed)
    rounds = recorded("typical").take(random.integers(0, 13_000, size=60))
    rounds = truncate(rounds, random.integers(0, 8, size=60), explore=0.2, seed=seed)
    predicted = prefix_survival(sigmoid(rounds.logits))
    cells = random.integers(0, 3, size=60)
    whole = DriftSums.fold(rounds, predicted)
    by_cell = fold_drift(rounds, predicted, cells, 3)
    assert by_cell[0] + by_cell[1] + by_cell[2] == whole
    assert by_cell[2] + by_cell[0] + by_cell[1] == whole
    for i in range(3):
        assert by_cell[i] == DriftSums.fold(rounds.take(cells == i), predicted[cells == i])
    assert whole - by_cell[0] == by_cell[1] + by_cell[2]


def test_every_bet_is_fair_or_worse_at_every_prediction_within_the_tolerance():
    for tolerance in (0.0, 0.01):
        returns = np.exp(bet_table(tolerance))
        rejected, accepted = returns[:LEVELS], returns[LEVELS:]
        for shift in (-tolerance, 0.0, tolerance):
            for place in (0.0, 0.5, 1.0 - 1e-9):
                a = (np.arange(LEVELS) + place) / LEVELS
                p = np.clip(a + shift, 0.0, 1.0)[:, None]
                expected = p * accepted + (1.0 - p) * rejected
                assert expected.max() <= 1.0 + 1e-12


def test_only_verified_rows_bear_evidence_and_the_formula_is_the_published_one():
    rounds = truncate(recorded("typical").take(slice(0, 500)), np.full(500, 3))
    a = prefix_survival(sigmoid(rounds.logits))
    sums = DriftSums.fold(rounds, a)
    assert (sums.verified == included(rounds).sum(axis=0)).all()
    assert not sums.evidence[3:].any()
    seen = included(rounds)[:, 0]
    error = prefix_labels(rounds)[seen, 0] - a[seen, 0]
    for i, stake in enumerate(STAKES):
        above = np.log1p(stake * (error - RULES.tolerance)).sum()
        below = np.log1p(-stake * (error + RULES.tolerance)).sum()
        assert sums.evidence[0, i] <= above <= sums.evidence[0, i] + seen.sum() * 2.0 / LEVELS
        assert sums.evidence[0, len(STAKES) + i] <= below


def test_false_alarms_stay_below_the_nominal_share():
    rules = DriftRules(tolerance=0.0, false_alarm_rounds=50_000.0)
    a, y = simulated(400, 5_000, 0.0)
    _, events = watched(a, y, rules)
    alarmed = {event.stream for event in events}
    assert len(alarmed) / 400 <= 5_000 / 50_000


def test_evidence_after_n_looks_is_at_most_n_on_average():
    # What the bound rests on: the mean of max-restarted processes grows by at most one per look.
    a, y = simulated(4000, 40, 0.0, seed=3)
    watch, _ = watched(a, y, DriftRules(tolerance=0.0, false_alarm_rounds=1e12))
    assert np.exp(log_mean(watch.log_evidence)).mean() <= 40


@pytest.mark.parametrize(("gap", "direction"), [(0.1, BELOW), (-0.1, ABOVE)])
def test_a_gap_is_found_in_its_direction_and_dated(gap, direction):
    a, y = simulated(20, 12_000, gap, onset=4000)
    _, events = watched(a, y, RULES)
    starts = [event for event in events if event.kind == "start"]
    assert {event.stream for event in starts} == set(range(20))
    assert {event.direction for event in starts} == {direction}
    assert all(4000 < event.at < 9000 for event in starts)
    assert np.median([abs(event.since - 4000) for event in starts]) < 500


def test_a_larger_gap_is_found_sooner():
    when = []
    for gap in (0.05, 0.1, 0.2):
        a, y = simulated(20, 20_000, gap)
        _, events = watched(a, y, RULES)
        when.append(np.median([event.at for event in events if event.kind == "start"]))
    assert when[0] > when[1] > when[2]


def test_one_alarm_per_episode_with_an_end():
    random = np.random.default_rng(1)
    a = random.uniform(0.2, 0.9, size=(40_000, 10))
    drifting = (np.arange(40_000) // 10_000 == 1)[:, None]
    y = random.random(a.shape) < np.where(drifting, a - 0.15, a)
    watch, events = watched(a, y, RULES)
    for stream in range(10):
        mine = [event for event in events if event.stream == stream]
        assert [event.kind for event in mine] == ["start", "end"]
        assert 10_000 < mine[0].at < 12_000
        assert 20_000 < mine[1].at < 30_000
    assert not watch.direction.any()


def by_versions(gaps, streams=50, rows=400, anew=False, seed=2):
    """Serve ``rows`` with a gap of each of ``gaps``, a version for each; return the watch and its events."""
    random = np.random.default_rng(seed)
    table = bet_table(RULES.tolerance)
    watch, events, now = Watch.start(streams), [], 0.0
    for number, gap in enumerate(gaps):
        if number:
            watch = Watch.start(streams, now) if anew else watch.next_version(now)
        a = random.uniform(0.2, 0.9, size=(rows, streams))
        y = random.random(a.shape) < a - gap
        at = now + np.arange(1.0, rows + 1)
        watch, more = watch.extend(table[bet_index(a, y)], at, RULES.log_threshold())
        events, now = events + more, now + rows
    return watch, events


def test_versions_that_stay_wrong_do_not_put_the_alarm_off():
    gaps = [0.0] * 3 + [0.1] + [0.08] * 5
    _, events = by_versions(gaps)
    began = [event for event in events if event.kind == "start"]
    assert len({event.stream for event in began}) >= 45
    assert np.median([event.since for event in began]) == pytest.approx(1200.0, abs=150.0)
    _, anew = by_versions(gaps, anew=True)
    assert len({event.stream for event in anew if event.kind == "start"}) <= 10


def test_evidence_against_an_old_version_raises_no_alarm_under_one_that_is_right():
    wrong, _ = by_versions([0.1])
    watch, events = by_versions([0.1] + [0.0] * 8)
    suspected = log_mean(wrong.log_evidence)
    assert np.median(suspected) > 0.2 * RULES.log_threshold()
    assert all(event.at <= 400.0 for event in events if event.kind == "start")
    assert np.median(log_mean(watch.log_evidence)) < 1.0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_looks_may_be_taken_in_any_number_of_calls(seed):
    random = np.random.default_rng(seed)
    evidence = random.normal(0.0, 1.0, size=(60, 3, PROCESSES))
    at = np.arange(60.0)
    whole, events = Watch.start(3).extend(evidence, at, 4.0)
    watch, apart = Watch.start(3), []
    for i in range(0, 60, 7):
        stored = json.loads(json.dumps(watch.to_builtins()))
        watch, more = Watch.from_builtins(stored).extend(evidence[i : i + 7], at[i : i + 7], 4.0)
        apart += more
    assert apart == pytest.approx(events) or [(e.stream, e.kind, e.at) for e in apart] == [
        (e.stream, e.kind, e.at) for e in events
    ]
    assert watch.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    assert (watch.since == whole.since).all()
    assert (watch.leader == whole.leader).all()


def test_the_stored_form_is_the_difference_of_growing_totals():
    rounds = recorded("typical").take(slice(0, 4000))
    wrong = prefix_survival(sigmoid(rounds.logits + 2.0))
    total = DriftSums.zeros(7)
    read, watch = total, Watch.start(7)
    events = []
    for i in range(0, 4000, 200):
        part = slice(i, i + 200)
        # Two collectors fold halves of the same rows, in either order.
        for half in (slice(i + 100, i + 200), slice(i, i + 100)):
            total = total + DriftSums.fold(rounds.take(half), wrong[half])
        fresh = total - read
        assert fresh == DriftSums.fold(rounds.take(part), wrong[part])
        watch, more = watch.extend(fresh.evidence[None], [float(i + 200)], RULES.log_threshold(7))
        events += more
        read = total
    assert {event.direction for event in events} == {BELOW}
    assert total == DriftSums.fold(rounds, wrong)


def test_a_watch_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match="log_evidence"):
        Watch.from_builtins({"log_evidence": [[0.0]], "since": [[0.0]], "leader": [-1]})
    with pytest.raises(ValueError, match="evidence"):
        Watch.start(2).extend(np.zeros((1, 1, PROCESSES)), [0.0], 5.0)


def drafter(survival, rows, seed, scheduled=None):
    """Rows whose drafter is accepted with these conditional probabilities, and a head that says so."""
    random = np.random.default_rng(seed)
    c = np.clip(survival + random.normal(0.0, 0.1, size=(rows, 4)), 0.02, 0.98)
    accepted = np.cumprod(random.random((rows, 4)) < c, axis=1).sum(axis=1)
    verified = np.full(rows, 4) if scheduled is None else scheduled(prefix_survival(c))
    rounds = Rounds.build(np.log(c / (1 - c)), np.minimum(accepted, verified), verified=verified)
    return rounds, prefix_survival(c)


def drift_of(reference, rounds, predicted, rules=RULES):
    """Directions of calibration and acceptance drift, looking every 250 rows."""
    calibration = acceptance = Watch.start(4)
    for i in range(0, len(rounds), 250):
        sums = DriftSums.fold(rounds.take(slice(i, i + 250)), predicted[i : i + 250], rules)
        threshold = rules.log_threshold(4)
        calibration, _ = calibration.extend(sums.evidence[None], [float(i)], threshold)
        level = sums.acceptance_evidence(reference, rules.acceptance_tolerance)
        acceptance, _ = acceptance.extend(level[None], [float(i)], threshold)
    return calibration.direction, acceptance.direction


def test_a_worse_drafter_is_told_apart_from_a_wrong_head():
    good, predicted = drafter(0.8, 20_000, 0)
    reference = DriftSums.fold(good, predicted).acceptance
    calm = drift_of(reference, *drafter(0.8, 20_000, 1))
    assert not calm[0].any()
    assert not calm[1].any()

    worse, says_so = drafter(0.65, 20_000, 2)
    calibration, acceptance = drift_of(reference, worse, says_so)
    assert not calibration.any()
    assert (acceptance == BELOW).all()
    (finding,) = diagnose(calibration, acceptance)
    assert finding.kind == "acceptance"
    assert "drafter" in finding.remedy
    assert "say so" in finding.summary

    does_not_know = np.clip(says_so + 0.15, 0.0, 1.0)
    kinds = {f.kind: f for f in diagnose(*drift_of(reference, worse, does_not_know))}
    assert set(kinds) == {"calibration", "acceptance"}
    assert "do not know" in kinds["acceptance"].summary

    same, right = drafter(0.8, 20_000, 3)
    overconfident = np.clip(right + 0.1, 0.0, 1.0)
    (finding,) = diagnose(*drift_of(reference, same, overconfident))
    assert (finding.kind, finding.direction) == ("calibration", BELOW)
    assert finding.remedy.startswith("refit")


def test_more_load_is_not_less_acceptance():
    everything, predicted = drafter(0.8, 20_000, 0)
    reference = DriftSums.fold(everything, predicted).acceptance
    trimmed, predicted = drafter(0.8, 20_000, 4, scheduled=lambda a: (a > 0.6).sum(axis=1))
    calibration, acceptance = drift_of(reference, trimmed, predicted)
    assert not calibration.any()
    assert not acceptance.any()


def test_acceptance_evidence_is_fair_under_the_reference():
    random = np.random.default_rng(5)
    accepted = random.random((20_000, 25)) < 0.7
    values = []
    for run in accepted:
        rounds = Rounds.build(np.zeros((25, 1)), run.astype(int))
        values.append(DriftSums.fold(rounds, np.full((25, 1), 0.7)).acceptance_evidence([0.7], 0.0)[0])
        if len(values) == 2000:
            break
    assert np.exp(np.array(values)).mean(axis=0).max() < 1.1


def test_an_unknown_reference_is_no_evidence():
    sums = DriftSums.fold(*drafter(0.5, 100, 0))
    assert not sums.acceptance_evidence(np.full(4, np.nan), 0.02).any()


def test_traffic_drift_by_its_two_distances():
    assert population_stability_index([5, 5], [50, 50]) < 0.01
    assert kolmogorov_smirnov([1, 1, 1, 1], [1, 1, 1, 1]) == 0.0
    typical, hot = recorded("typical"), recorded("hard")
    a, b = (prefix_survival(sigmoid(r.logits)) for r in (typical, hot))
    same = traffic_shift(fold(typical, a), fold(typical.take(slice(0, 7000)), a[:7000]))
    moved = traffic_shift(fold(typical, a), fold(hot, b))
    quiet = np.zeros(7, dtype=np.int64)
    assert not diagnose(quiet, quiet, same)
    (finding,) = diagnose(quiet, quiet, moved)
    assert finding.kind == "traffic"
    assert "segment" in finding.remedy


def test_too_few_rows_say_nothing_about_the_traffic():
    rounds = Rounds.build([[0.0]] * 10, [1] * 10)
    sums = fold(rounds, np.full((10, 1), 0.5))
    assert traffic_shift(sums, sums)[0].stability_index is None


def test_rules_refuse_what_they_cannot_mean():
    with pytest.raises(ValueError, match="tolerance"):
        DriftRules(tolerance=-0.1)
    with pytest.raises(ValueError, match="false_alarm_rounds"):
        DriftRules(false_alarm_rounds=0.5)
