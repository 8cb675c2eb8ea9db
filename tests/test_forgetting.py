"""A cut takes old rows out for good, makes room for new ones, and leaves weights exact."""

import numpy as np
import pytest

from calibrator.store import Store, deployments, forgetting, retention, sample
from calibrator.store.bottom_k import Stratum
from calibrator.store.forgetting import Cut
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from tests.ingest_support import NOW, ListSink, cut, make_batch, make_rounds, message

pytest_plugins = ["tests.store_fixtures"]

OPTIONS = PipelineOptions(sample_rows=500, half_life_seconds=1e9)


def ingest(store: Store, rounds, at: float, offset: int, *, options=OPTIONS, **changes) -> None:
    """Fold rounds that arrived at ``at``; their numbers follow the offset."""
    pipeline = IngestPipeline(store, ListSink(), ManualClock(at), options)
    batch = make_batch(rounds, offset * 10_000, emitted_at=at, **changes)
    pipeline.ingest([message(batch, offset)])


def loaded(store: Store, now: float = NOW, **restrict):
    with store.read() as connection:
        found = deployments.get(connection, "prod")
        assert found is not None
        return sample.load(connection, found.id, found.gamma, now, **restrict)


def forget(store: Store, before: float, segment: str | None = None) -> int:
    with store.write() as connection:
        found = deployments.get(connection, "prod")
        assert found is not None
        return forgetting.forget(connection, found.id, Cut(segment, before, before, "drift"))


def test_old_rows_are_gone_and_the_cut_is_remembered(store):
    ingest(store, make_rounds(300), NOW, 0)
    ingest(store, make_rounds(200, 1), NOW + 100.0, 1)
    assert forget(store, NOW + 50.0) == 300
    assert len(loaded(store)) == 200
    with store.read() as connection:
        found = deployments.get(connection, "prod")
        assert found is not None
        assert forgetting.cuts(connection, found.id) == [Cut(None, NOW + 50.0, NOW + 50.0, "drift")]


def test_new_rows_are_taken_in_at_once_although_the_sample_was_full(store):
    for i in range(10):
        ingest(store, make_rounds(1000, i), NOW + i, i)
    ingest(store, make_rounds(400, 10), NOW + 20.0, 10)
    before = len(loaded(store).take(loaded(store).arrival >= NOW + 20.0))
    assert before < 50
    forget(store, NOW + 20.0)
    ingest(store, make_rounds(400, 11), NOW + 21.0, 11)
    after = loaded(store)
    assert (after.arrival >= NOW + 20.0).all()
    assert len(after) == before + 400


@pytest.mark.parametrize("seed", range(3))
def test_weights_still_stand_for_the_traffic_after_a_cut(tmp_path, seed):
    store = Store(f"sqlite:///{tmp_path}/store.db")
    store.migrate()
    for i in range(6):
        ingest(store, make_rounds(1000, i), NOW + i, i, boot=f"boot-{seed}", replica=f"pod-{seed}")
    forget(store, NOW + 3.0)
    for i in range(6, 8):
        ingest(store, make_rounds(1000, i), NOW + i, i, boot=f"boot-{seed}", replica=f"pod-{seed}")
    rows = loaded(store)
    assert len(rows) == 500
    # 3 000 rows from before the cut was made, thinned twice, and 2 000 after it.
    early = rows.arrival < NOW + 6.0
    assert rows.weights[early].sum() == pytest.approx(3000, rel=0.25)
    assert rows.weights[~early].sum() == pytest.approx(2000, rel=0.25)
    store.close()


def test_a_cut_of_one_segment_leaves_the_others(store):
    rounds = make_rounds(400, segment=np.arange(400) % 2, segments=("chat", "code"))
    ingest(store, rounds, NOW, 0)
    assert forget(store, NOW + 1.0, "chat") == 200
    assert set(loaded(store).rounds.segment_names()) == {"code"}


def test_rows_since_a_time_are_counted_by_segment_and_fingerprint(store):
    rounds = make_rounds(100, segment=np.arange(100) % 2, segments=("chat", "code"))
    ingest(store, rounds, NOW, 0)
    ingest(store, rounds.take(slice(0, 30)), NOW + 60.0, 1)
    with store.read() as connection:
        found = deployments.get(connection, "prod")
        assert found is not None

        def count(since, segment=None, fingerprint="f" * 32):
            return forgetting.rows_since(connection, found.id, since, segment, fingerprint)

        assert (count(NOW), count(NOW + 1.0), count(NOW + 61.0)) == (130, 30, 0)
        assert count(NOW + 1.0, "code") == 15
        assert count(NOW, fingerprint="another") == 0


def test_a_threshold_that_rose_is_noticed():
    earlier = Stratum(1, 60.0, 2.0, 10, 100)
    assert Stratum(1, 60.0, None, 0, 100).admits_more_than(earlier)
    assert Stratum(1, 60.0, 3.0, 10, 100).admits_more_than(earlier)
    assert not Stratum(1, 60.0, 1.0, 10, 100).admits_more_than(earlier)
    assert not Stratum(1, 60.0, None, 10, 100).admits_more_than(Stratum(1, 60.0, None, 0, 0))


class Interrupted(Store):
    """Does something once, right before the next transaction that writes."""

    def __init__(self, url):
        super().__init__(url)
        self.interruption = None

    def write(self):
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            interruption()
        return super().write()


def test_a_collector_that_chose_rows_before_the_cut_chooses_again(store_url):
    store = Interrupted(store_url)
    store.migrate()
    pipeline = IngestPipeline(store, ListSink(), ManualClock(NOW + 20.0), OPTIONS)
    pipeline.ingest(cut(make_rounds(8000), 1000))
    fresh = message(make_batch(make_rounds(400, 1), 8000, emitted_at=NOW + 10.0), 8)
    other = Store(store_url)
    store.interruption = lambda: forget(other, NOW + 5.0)
    pipeline.ingest([fresh])
    # By the threshold from before, about 25 of the 400 would have been offered.
    assert len(loaded(store)) == 400
    assert loaded(store).weights == pytest.approx(np.ones(400), rel=1e-6)
    other.close()
    store.close()


def test_retention_keeps_the_latest_cut_of_every_segment(store):
    ingest(store, make_rounds(10), NOW, 0)
    made = [(NOW, None), (NOW + 1.0, "chat"), (NOW + 2.0, "chat"), (NOW + 3.0, "code"), (NOW + 4.0, None)]
    for before, segment in made[:4]:
        forget(store, before, segment)

    def left(at):
        deleted = retention.apply(store, at)["sample_cuts"]
        with store.read() as connection:
            found = deployments.get(connection, "prod")
            assert found is not None
            cuts = forgetting.cuts(connection, found.id)
        return deleted, sorted((each.before, each.segment) for each in cuts)

    assert left(NOW + 399 * retention.DAY) == (0, made[:4])
    # A cut of all segments overtakes those of one, not the other way round.
    assert left(NOW + 401 * retention.DAY) == (1, [made[0], *made[2:4]])
    forget(store, *made[4])
    assert left(NOW + 401 * retention.DAY) == (3, [made[4]])
