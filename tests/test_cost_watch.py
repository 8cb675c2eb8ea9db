"""Cost drift from counts: alarms per load regime and context, remedies, and a state that survives JSON."""

import json

import numpy as np
import pytest

from calibrator.core.cost import CostAlarm, DriftCells
from calibrator.core.cost.counted_alarm import CountedAlarm
from calibrator.core.cost.watch import MAX_LOOKS, CostRules, CostWatch
from serving_adapter.contract import Steps

RULES = CostRules()


def steps(count, seed, factor=1.0, context=1000, requests=(1, 4, 16, 64)):
    random = np.random.default_rng(seed)
    load = random.choice(requests, count)
    slow = factor(load) if callable(factor) else factor
    promised = 0.03 + 0.001 * load * random.integers(1, 9, count)
    return Steps.build(
        step_seconds=promised * slow * np.exp(random.normal(0, 0.08, count)),
        requests=load,
        batch_tokens=load * 5,
        context_tokens=np.full(count, context),
        predicted_seconds=promised,
    )


class Watched:
    """A watch over growing totals, looked at every ten seconds, stored as JSON in between."""

    def __init__(self):
        self.watch, self.totals, self.now = CostWatch(), DriftCells.empty(), 0.0

    def take(self, *batches):
        for batch in batches:
            self.totals = self.totals + DriftCells.fold(batch, 0)
            before, self.now = self.now, self.now + 10.0
            stored = json.loads(json.dumps(self.watch.to_builtins()))
            self.watch = CostWatch.from_builtins(stored).look(self.totals, before, self.now, RULES)
        return self.watch.findings(RULES)


def test_a_slower_machine_is_one_finding_although_every_regime_is_slower():
    watched = Watched()
    assert watched.take(*(steps(60, seed) for seed in range(20))) == []
    (finding,) = watched.take(*(steps(60, 100 + seed, 1.4) for seed in range(10)))
    assert (finding.stream, finding.direction, finding.remedy) == (("all", 0), "slower", "rescale")
    assert finding.began == 200.0
    assert finding.bias == pytest.approx(0.4, abs=0.03)


def test_a_change_under_load_only_names_the_regimes_and_asks_for_a_profile():
    watched = Watched()
    watched.take(*(steps(60, seed) for seed in range(20)))
    found = watched.take(
        *(steps(60, 100 + s, lambda load: np.where(load >= 16, 1.6, 1.0)) for s in range(20))
    )
    assert {f.stream for f in found if f.stream[0] == "regime"} == {("regime", 16), ("regime", 64)}
    assert {f.remedy for f in found} == {"profile"}
    assert all(f.bias == pytest.approx(0.6, abs=0.05) for f in found if f.stream[0] == "regime")


def test_a_change_of_a_rare_regime_is_found_although_all_steps_together_are_right():
    watched = Watched()
    shares = (1,) * 9 + (64,)
    watched.take(*(steps(60, seed, requests=shares) for seed in range(20)))
    found = watched.take(
        *(steps(60, 100 + s, lambda load: np.where(load >= 16, 1.6, 1.0), requests=shares) for s in range(20))
    )
    assert [(f.stream, f.remedy) for f in found] == [(("regime", 64), "profile")]


def test_longer_contexts_name_their_bucket():
    watched = Watched()
    watched.take(*(steps(60, seed) for seed in range(20)))
    found = watched.take(*(steps(60, 100 + seed, 1.35, context=9000) for seed in range(5)))
    assert [(f.stream, f.remedy) for f in found] == [
        (("all", 0), "by_context"),
        (("context", 8192), "by_context"),
    ]


def test_looks_of_any_size_find_the_same_direction_and_end():
    for size in (20, 100, 400):
        watched = Watched()
        calm = steps(2000, 0)
        slow = steps(800, 1, 1.4)
        again = steps(800, 2)

        def looks(batch, size=size):
            return [batch.take(slice(i, i + size)) for i in range(0, len(batch), size)]

        assert watched.take(*looks(calm)) == []
        assert [f.direction for f in watched.take(*looks(slow))] == ["slower"]
        assert watched.take(*looks(again)) == []


def test_the_counted_alarm_of_single_steps_is_the_alarm_of_steps():
    batch = Steps.concatenate([steps(300, 0), steps(60, 1, 1.4)])
    ratio = batch.step_seconds / batch.predicted_seconds
    alarm = CountedAlarm.start(-1.0)
    raised = None
    for i, each in enumerate(ratio.tolist()):
        alarm = alarm.extend(1, each > 1.05, each < 1 / 1.05, float(i), float(np.log(2e6)))
        if alarm.open is not None:
            raised = i
            break
    (episode,) = CostAlarm().extend(batch).episodes
    assert raised == episode.raised
    assert alarm.began == episode.start - 1


def test_false_alarms_stay_below_the_nominal_share():
    # The worst case that is no deviation: half of all steps beyond the tolerance.
    random = np.random.default_rng(0)
    alarmed = 0
    for _ in range(300):
        alarm = CountedAlarm.start(0.0)
        for look in range(50):
            slower = int(random.binomial(20, 0.5))
            alarm = alarm.extend(20, slower, 20 - slower, look, float(np.log(2 * 5000.0)))
            if alarm.open is not None:
                alarmed += 1
                break
    assert alarmed / 300 <= 1000 / 5000


def test_stalls_are_no_drift():
    watched = Watched()
    for seed in range(30):
        batch = steps(100, seed)
        stalled = Steps.build(
            step_seconds=batch.step_seconds * np.where(np.arange(100) % 50 == 0, 50.0, 1.0),
            requests=batch.requests,
            batch_tokens=batch.batch_tokens,
            predicted_seconds=batch.predicted_seconds,
        )
        assert watched.take(stalled) == []


def test_the_state_stays_small():
    watched = Watched()
    watched.take(*(steps(10, seed) for seed in range(MAX_LOOKS + 10)))
    assert len(np.unique(watched.watch.recent.keys[:, 0])) == MAX_LOOKS
    assert int(watched.watch.read.sums[:, 0].sum()) >> 24 == 10 * (MAX_LOOKS + 10)


def test_no_new_steps_change_nothing():
    watched = Watched()
    watched.take(steps(50, 0))
    before = watched.watch
    assert before.look(watched.totals, 10.0, 20.0, RULES) is before
