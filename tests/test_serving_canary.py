"""Which replicas take a candidate, and what a subscriber does about one."""

import numpy as np
import pytest

from calibrator.service.rollout.replicas import splitting_share
from serving_adapter.canary import place, takes_candidate
from serving_adapter.contract import decode_document
from serving_adapter.mirror import EngineReport, ParameterMirror
from serving_adapter.ports import Candidate
from tests.test_subscriber import Store, a_subscriber, clock, mirrored, payload, ring  # noqa: F401

HERE = place("chat", "pod-1")


class TrialStore(Store):
    """Also offers a candidate."""

    def __init__(self, clock=None):  # noqa: F811
        super().__init__(clock)
        self.trial = None

    def candidate(self, deployment):
        self._reach()
        return self.trial


@pytest.fixture
def store(clock):  # noqa: F811
    return TrialStore(clock)


@pytest.fixture
def subscriber(ring, store, clock):  # noqa: F811
    made = a_subscriber(ring, store, clock)
    yield made
    made.close()


def step(store, subscriber):
    store.hints = 1
    assert subscriber.step()


def test_a_share_takes_its_part_of_the_replicas_and_always_the_same():
    names = [f"pod-{i}" for i in range(4000)]
    taken = {name for name in names if takes_candidate("chat", name, 0.1)}
    assert 320 < len(taken) < 480
    assert taken < {name for name in names if takes_candidate("chat", name, 0.3)}
    assert all(takes_candidate("chat", name, 1.0) for name in names)
    assert np.corrcoef([place("a", n) for n in names], [place("b", n) for n in names])[0, 1] < 0.1


@pytest.mark.parametrize("count", [2, 3, 5, 20])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 1.0])
def test_a_splitting_share_leaves_replicas_on_both_sides(count, share):
    for seed in range(20):
        names = [f"pod-{seed}-{i}" for i in range(count)]
        chosen = splitting_share("chat", names, share)
        taken = sum(takes_candidate("chat", name, chosen) for name in names)
        assert 0 < taken < count


def test_a_candidate_is_taken_by_those_that_its_share_chooses(ring, store, subscriber):  # noqa: F811
    store.payload = payload(1)
    store.trial = Candidate(payload(2, temperatures=[2.0, 2.0]), HERE / 2)
    step(store, subscriber)
    assert subscriber.version == 1
    store.trial = Candidate(store.trial.document, HERE)
    step(store, subscriber)
    assert subscriber.version == 2
    assert decode_document(mirrored(ring).payload).temperatures == [2.0, 2.0]


def test_while_a_trial_lasts_the_older_document_in_force_is_no_refusal(store, subscriber):
    store.payload, store.trial = payload(1), Candidate(payload(2), 1.0)
    for _ in range(3):
        step(store, subscriber)
    assert (subscriber.version, subscriber.refusal) == (2, (0, ""))


def test_a_trial_ends_with_a_newer_document_in_force(ring, store, subscriber):  # noqa: F811
    store.payload, store.trial = payload(1), Candidate(payload(2, temperatures=[2.0, 2.0]), 1.0)
    step(store, subscriber)
    store.payload = payload(3)
    step(store, subscriber)  # the candidate is still there
    assert subscriber.version == 3
    store.trial = None
    step(store, subscriber)
    assert (subscriber.version, subscriber.refusal) == (3, (0, ""))
    assert decode_document(mirrored(ring).payload).temperatures == [1.5, 1.0]


def test_a_promoted_candidate_changes_nothing_where_it_ran_even_signed_anew(ring, store, clock):  # noqa: F811
    subscriber = a_subscriber(ring, store, clock)
    store.payload, store.trial = payload(1), Candidate(payload(2), 1.0)
    step(store, subscriber)
    before = mirrored(ring)
    store.payload = payload(2, key=b"rotated")
    step(store, subscriber)
    assert mirrored(ring) == before
    assert subscriber.refusal == (0, "")
    subscriber.close()


def test_a_bad_candidate_is_refused_with_a_reason_and_the_document_in_force_serves(ring, store, clock):  # noqa: F811
    engine = ParameterMirror.open(ring)
    engine.write_report(EngineReport(applied=1))
    subscriber = a_subscriber(ring, store, clock)
    store.payload = payload(1)
    store.trial = Candidate(payload(2).replace(b"1.5", b"1.6"), 1.0)
    step(store, subscriber)
    step(store, subscriber)
    assert subscriber.version == 1
    assert subscriber.refusal[0] == 2
    assert "digest" in subscriber.refusal[1]
    assert store.reported[-1][1].refused == 2
    assert subscriber.counters.refused == 1
    subscriber.close()
    engine.close()
