"""Drift, step costs and the ledger in SQL: what is added, what is read back, what is kept."""

import numpy as np
import pytest

from calibrator.core.cost import DriftCells
from calibrator.core.drift import COLUMNS, DriftSums
from calibrator.core.throughput_ledger import LedgerSums
from calibrator.store import (
    StaleReadError,
    cost_drift,
    deployments,
    drift_state,
    drift_sums,
    episodes,
    ledger_sums,
    traffic,
)
from calibrator.store.episodes import Episode
from calibrator.store.retention import DAY, KEPT_VERSIONS, Retention, apply
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import Rounds, Steps
from tests.ingest_support import GAMMA, NOW, ListSink, make_batch, make_rounds, message

pytest_plugins = ["tests.store_fixtures"]

START = int(NOW) // 3600 * 3600


@pytest.fixture
def own(store):
    with store.write() as connection:
        return deployments.register(connection, "prod", GAMMA, "f", NOW).id


def episode(kind="calibration", **changes):
    fields = {
        "kind": kind, "segment": "code", "position": 2, "load_regime": None, "context_bucket": None,
        "direction": "below", "started_at": NOW, "alarmed_at": NOW + 60, "ended_at": None, "gap": 0.1,
        "summary": "the head is overconfident", "remedy": "refit", "version": 3,
    }  # fmt: skip
    return Episode(**(fields | changes))


def steps(count, seed=0, slow=1.0):
    random = np.random.default_rng(seed)
    promised = random.uniform(0.02, 0.1, count)
    return Steps.build(
        step_seconds=promised * slow,
        predicted_seconds=promised,
        requests=random.choice([1, 8, 40], count),
        context_tokens=random.choice([500, 4000], count),
        batch_tokens=np.full(count, 64),
    )


def test_an_episode_is_read_back_as_it_was_stored_and_ended(store, own):
    with store.write() as connection:
        first = episodes.start(connection, own, episode())
        second = episodes.start(connection, own, episode("traffic", segment=None, position=None))
        episodes.end(connection, first, NOW + 100)
    with store.read() as connection:
        assert [e.id for e in episodes.opened(connection, own)] == [second]
        (found,), _ = episodes.history(connection, own, state="closed")
    assert found == episode(id=first, ended_at=NOW + 100)


def test_history_is_filtered_and_comes_in_pages_newest_first(store, own):
    with store.write() as connection:
        ids = [
            episodes.start(connection, own, episode(kind)) for kind in ("calibration", "cost", "traffic") * 3
        ]
        for each in ids[:4]:
            episodes.end(connection, each, NOW + 100)
    with store.read() as connection:
        pages, cursor = [], None
        while True:
            page, cursor = episodes.history(connection, own, before=cursor, limit=4)
            pages.append([e.id for e in page])
            if cursor is None:
                break
        closed, _ = episodes.history(connection, own, state="closed")
        lasting, _ = episodes.history(connection, own, state="open", kinds=["cost", "traffic"])
        nothing, _ = episodes.history(connection, own + 1)
        kinds = episodes.open_kinds(connection)
    assert pages == [ids[:-5:-1], ids[-5:-9:-1], [ids[0]]]
    assert [e.id for e in closed] == ids[3::-1]
    assert {e.kind for e in lasting} == {"cost", "traffic"}
    assert nothing == []
    assert kinds == {own: {"calibration": 1, "cost": 2, "traffic": 2}}


def test_evidence_adds_up_per_version_segment_and_position(store, own):
    values = np.arange(GAMMA * len(COLUMNS)).reshape(GAMMA, -1)
    one = DriftSums(values)
    with store.write() as connection:
        segments = deployments.add_segments(connection, own, ["code", "chat"])
        drift_sums.add(connection, own, {(0, segments["code"]): one, (4, segments["chat"]): one})
        drift_sums.add(connection, own, {(4, segments["chat"]): one})
        drift_sums.add(connection, own, {})
    with store.read() as connection:
        everything = drift_sums.load(connection, own, GAMMA)
        later = drift_sums.load(connection, own, GAMMA, since_version=1)
    assert everything == {0: {"code": one}, 4: {"chat": one + one}}
    assert later == {4: {"chat": one + one}}


def test_figures_of_step_costs_by_regime_and_context(store, own):
    with store.write() as connection:
        for start, slow in ((START, 1.0), (START + 60, 1.5)):
            cost_drift.add(connection, own, DriftCells.fold(steps(300, seed=start, slow=slow), start))
    with store.read() as connection:
        first = cost_drift.figures(connection, own, START, START + 60)
        both = cost_drift.figures(connection, own, START, START + 120)
        nothing = cost_drift.figures(connection, own, START + 120, START + 180)
        totals = cost_drift.totals(connection, own)
    assert [(f.regime, f.context) for f in first] == [
        (None, None), (1, None), (4, None), (16, None), (None, 256), (None, 2048),
    ]  # fmt: skip
    assert all(f.bias == pytest.approx(0.0, abs=0.02) for f in first)
    assert both[0].n_eff == 600
    assert nothing == []
    whole = DriftCells.fold(Steps.concatenate([steps(300, START), steps(300, START + 60, slow=1.5)]), 0)
    assert totals == whole


def test_ledgers_are_added_and_queried_by_step(store, own):
    entry = LedgerSums.fold(make_rounds(8), steps(3))
    with store.write() as connection:
        ledger_sums.add(connection, own, {START: entry, START + 60: entry})
        ledger_sums.add(connection, own, {START + 60: entry})
        ledger_sums.add(connection, own, {})
    with store.read() as connection:
        by_minute = ledger_sums.query(connection, own, START, START + 3600, 60)
        by_hour = ledger_sums.query(connection, own, START, START + 3600, 3600)
        total = ledger_sums.total(connection, own, START, START + 3600)
        nothing = ledger_sums.total(connection, own, START + 3600, START + 7200)
    assert [(p.start, p.sums) for p in by_minute] == [(START, entry), (START + 60, entry + entry)]
    assert [(p.start, p.sums) for p in by_hour] == [(START, entry + entry + entry)]
    assert total == by_hour[0].sums
    assert nothing == LedgerSums.zeros()


def test_the_state_changes_by_compare_and_set(store, own):
    with store.read() as connection:
        fresh = drift_state.load(connection, own)
    assert fresh.revision == 0
    with store.write() as connection:
        drift_state.save(connection, own, fresh, NOW, {"a": [1.5, None]})
    with pytest.raises(StaleReadError), store.write() as connection:
        drift_state.save(connection, own, fresh, NOW, {"b": 1})
    with store.read() as connection:
        stored = drift_state.load(connection, own)
    assert (stored.revision, stored.evaluated_at, stored.state) == (1, NOW, {"a": [1.5, None]})
    with store.write() as connection:
        drift_state.save(connection, own, stored, NOW + 1, {})
    with pytest.raises(StaleReadError), store.write() as connection:
        drift_state.save(connection, own, stored, NOW + 1, {"c": 1})


def test_the_histogram_of_the_traffic_is_of_all_drafted_rows(store):
    pipeline = IngestPipeline(store, ListSink(), ManualClock(NOW))
    low, high = (Rounds.build(np.full((50, GAMMA), logit), [0] * 50, verified=0) for logit in (-3.0, 3.0))
    pipeline.ingest([message(make_batch(low, emitted_at=NOW - 120), 0)])
    pipeline.ingest([message(make_batch(high, 50), 1)])
    with store.read() as connection:
        own = deployments.get(connection, "prod").id
        first, last = traffic.span(connection, own)
        before = traffic.histogram(connection, own, GAMMA, first, last)
        after = traffic.histogram(connection, own, GAMMA, last, last + 60)
        assert traffic.span(connection, own, last + 1) is None
    assert last - first == 120
    assert before.bin_sum("drafted")[0].argmax() == 0
    assert after.bin_sum("drafted")[0].argmax() == 19
    assert before.bin_sum("drafted").sum() == 50 * GAMMA


def test_retention_keeps_what_alarms_need(store, own):
    now = NOW + 500 * DAY
    old, new = START, int(now) // 60 * 60
    one = DriftSums(np.ones((GAMMA, len(COLUMNS)), dtype=np.int64))
    with store.write() as connection:
        segment = deployments.add_segments(connection, own, ["code"])["code"]
        for start in (old, new):
            cost_drift.add(connection, own, DriftCells.fold(steps(20), start))
            ledger_sums.add(connection, own, {start: LedgerSums.fold(make_rounds(8), steps(3))})
        over = episodes.start(connection, own, episode())
        episodes.end(connection, over, NOW + 100)
        lasting = episodes.start(connection, own, episode())
        versions = range(KEPT_VERSIONS + 3)
        drift_sums.add(connection, own, {(version, segment): one for version in versions})
    deleted = apply(store, now, Retention())
    with store.read() as connection:
        assert cost_drift.figures(connection, own, 0, old + 60) == []
        assert cost_drift.figures(connection, own, new, new + 60) != []
        assert int(cost_drift.totals(connection, own).sums[:, 0].sum()) >> 24 == 40
        assert [p.start for p in ledger_sums.query(connection, own, 0, now + 60, 60)] == [new]
        assert [e.id for e in episodes.history(connection, own)[0]] == [lasting]
        assert list(drift_sums.load(connection, own, GAMMA)) == list(versions)[3:]
    assert deleted["drift_sums"] == 3 * GAMMA
    assert deleted["episodes"] == 1
