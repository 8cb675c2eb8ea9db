"""Rows of one request repeat each other: how much is estimated, and evidence is tempered by it."""

import numpy as np
import pytest

from benchmarks import drift_streams
from calibrator.core.drift import PROCESSES, DriftRules, DriftSums, Tempering, Watch, tempering
from calibrator.core.drift.dependence import MIN_REQUESTS, UNKNOWN_TEMPERING
from calibrator.core.drift.segment_watch import SegmentWatch
from calibrator.core.drift.sums import bet_index, bet_table
from serving_adapter.contract import Rounds


def lucky(seed, requests, length, spread=0.15):
    """Labels of chance 0.6 plus the luck of their request, shape ``[rows, 1]``, and the requests."""
    random = np.random.default_rng(seed)
    request = np.repeat(np.arange(requests), length)
    chance = 0.6 + random.choice([-spread, spread], requests)[request]
    return (random.random(len(request)) < chance)[:, None].astype(float), request


def everything(labels):
    return np.ones(labels.shape, dtype=bool)


def test_the_power_is_one_over_the_design_effect():
    labels, request = lucky(0, requests=2000, length=20)
    effect = 1 + 19 * 0.15**2 / 0.24
    (power,) = tempering(labels - 0.6, everything(labels), request)
    assert 0.85 / effect < power < 1.02 / effect


def test_independent_rows_bear_nearly_all_their_evidence():
    labels, request = lucky(1, requests=2000, length=20, spread=0.0)
    assert tempering(labels - 0.6, everything(labels), request)[0] > 0.85


def test_a_gap_is_no_dependence():
    labels, request = lucky(2, requests=500, length=20)
    mask = everything(labels)
    assert tempering(labels - 0.9, mask, request) == pytest.approx(tempering(labels - 0.6, mask, request))


def test_a_thin_sample_does_not_hide_what_its_rows_have_in_common():
    labels, request = lucky(3, requests=8000, length=20)
    kept = np.random.default_rng(4).random(len(labels)) < 0.2
    whole = tempering(labels - 0.6, everything(labels), request)[0]
    thin = tempering((labels - 0.6)[kept], everything(labels)[kept], request[kept], np.full(kept.sum(), 0.2))[
        0
    ]
    assert whole / 1.5 < thin < whole * 1.1


def test_few_requests_never_say_that_rows_bear_more_than_is_assumed_without_any():
    labels, request = lucky(5, requests=MIN_REQUESTS - 1, length=20, spread=0.0)
    assert tempering(labels - 0.6, everything(labels), request)[0] <= UNKNOWN_TEMPERING
    nothing = np.zeros(labels.shape, dtype=bool)
    assert tempering(labels, nothing, request).tolist() == [UNKNOWN_TEMPERING]


def test_tempered_evidence_raises_few_false_alarms_where_rows_of_a_request_share_their_luck():
    rules = DriftRules(false_alarm_rounds=10_000 / 0.05)
    table = bet_table(rules.tolerance)
    runs = [lucky(10 + run, requests=200, length=50) for run in range(10)]
    (power,) = tempering(runs[0][0] - 0.6, everything(runs[0][0]), runs[0][1])

    def alarms(power):
        found = 0
        for labels, _ in runs:
            evidence = table[bet_index(np.full(labels.shape, 0.6), labels)]
            found += bool(
                Watch.start(1).extend(evidence, np.arange(len(labels)), rules.log_threshold(), power)[1]
            )
        return found

    assert alarms(1.0) > 5
    assert alarms(power) <= 1
    assert alarms(1.0 / 50) == 0


def test_the_benchmark_takes_many_streams_in_as_the_watch_takes_one():
    served = drift_streams.Served.load("typical")
    random = np.random.default_rng(0)
    rows, owner = served.streams(3, 3000, 2, random)
    bets = served.bets(served.predicted, DriftRules())
    powers = drift_streams.powers_of(served, served.labels - served.predicted, rows, owner, "service", random)
    found = drift_streams.first_alarms([(0, bets)], rows, powers, log_threshold=2.0)
    assert 0 < np.count_nonzero(found >= 0) < found.size
    ends = [at for at, _ in powers[1:]] + [len(rows)]
    for run in range(3):
        watch, first = Watch.start(served.gamma), {}
        for (start, power), end in zip(powers, ends, strict=True):
            evidence = bets[rows[start:end, run]].reshape(-1, served.gamma, PROCESSES)
            watch, events = watch.extend(evidence, np.arange(start, end), 2.0, power[run])
            for event in events:
                if event.kind == "start":
                    first.setdefault(event.stream, int(event.at))
        assert found[run].tolist() == [first.get(stream, -1) for stream in range(served.gamma)]


def test_tempering_scales_what_a_look_adds():
    evidence = np.full((1, 2, PROCESSES), 4.0)
    watch, _ = Watch.start(2).extend(evidence, [1.0], 100.0, [0.5, 1.0])
    assert watch.log_evidence[:, 0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("power", [0.0, 1.5])
def test_a_power_that_would_make_evidence_of_nothing_is_refused(power):
    with pytest.raises(ValueError, match="tempering"):
        Watch.start(1).extend(np.zeros((1, 1, PROCESSES)), [1.0], 15.0, power)


def test_powers_survive_being_stored():
    powers = Tempering(np.array([0.3, 1.0]), np.array([0.1, 0.7]))
    again = Tempering.from_builtins(powers.to_builtins())
    assert (again.calibration == powers.calibration).all()
    assert (again.acceptance == powers.acceptance).all()


def test_a_fallen_acceptance_of_uncalibrated_predictions_is_kept_only_if_labels_say_so():
    def fallen(verified):
        rows = 2000
        rounds = Rounds.build(np.zeros((rows, 1)), np.ones(rows) * verified, verified=[verified] * rows)
        watch = SegmentWatch.start(1, 0.0).look(
            DriftSums.fold(rounds, np.full((rows, 1), 0.9)), 1.0, DriftRules(), 15.0, 1000
        )
        worse = Rounds.build(np.zeros((rows, 1)), np.zeros(rows), verified=[verified] * rows)
        total = watch.read + DriftSums.fold(worse, np.full((rows, 1), 0.3))
        return watch.look(total, 2.0, DriftRules(), 15.0, 1000)

    seen, said = fallen(1), fallen(0)
    assert seen.acceptance.direction[0] == said.acceptance.direction[0] == -1
    assert (bool(seen.rests_on_predictions[0]), bool(said.rests_on_predictions[0])) == (False, True)
    assert seen.restart(3.0, calibrated=False).acceptance.direction[0] == -1
    assert said.restart(3.0, calibrated=False).acceptance.direction[0] == 0
    assert said.restart(3.0).acceptance.direction[0] == -1
