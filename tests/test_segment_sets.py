"""Sets per segment in the adapter: row by row without a loop, alike on every rank, bounded, and reported."""

import dataclasses
import secrets

import numpy as np
import pytest

from calibrator.core.document_survival import document_survival
from serving_adapter.adapter import ServingAdapter
from serving_adapter.batches import BatchBuilder
from serving_adapter.contract import EngineIdentity, Rounds, encode_document, seal
from serving_adapter.contract.events import CONTENT_TYPE_MSGPACK, decode
from serving_adapter.mirror import EngineReport, ParameterMirror, mirror_path
from serving_adapter.parameters import Parameters
from serving_adapter.ports import ReplicaReport
from serving_adapter.ring_reader import RingReader
from serving_adapter.segment_labels import MAX_LABELS
from serving_adapter.shared_memory import Segment, segment_path
from serving_adapter.subscriber import Subscriber
from tests.test_contract_segments import document, entry

IDENTITY = EngineIdentity(target="t", drafter="d", gamma=2, engine="e", accelerator="cpu", precision="f32")
SETS = [entry("code", offset=1.0), entry("code", "high", offset=2.0), entry("*", "high", offset=3.0)]


def published(entries=SETS, version=1, **changes):
    return seal(document(entries, version=version, fingerprint=IDENTITY.fingerprint(), **changes))


@pytest.fixture
def ring():
    name = f"sets-{secrets.token_hex(6)}"
    yield name
    for path in (segment_path(name), mirror_path(name)):
        path.unlink(missing_ok=True)


def offsets(survival):
    """What was added to a logit of 0 at position 1."""
    return np.log(survival[:, 0] / (1 - survival[:, 0])).round(6).tolist()


def test_every_row_gets_the_set_of_its_segment_and_sampling():
    parameters = Parameters.from_document(published(), ["default", "chat", "code"])
    segment = np.array([2, 2, 1, 1, 0])
    sampling = np.array([0.0, 1.5, 0.0, 1.5, 0.7])
    assert offsets(parameters.survival(np.zeros((5, 2)), segment, sampling)) == [1.0, 2.0, 0.0, 3.0, 0.0]
    assert offsets(parameters.survival(np.zeros((2, 2)), 2, 1.5)) == [2.0, 2.0]
    assert offsets(parameters.survival(np.zeros((1, 2)))) == [0.0]  # default, greedy, as in observe


def test_an_engine_without_sets_uses_the_pooled_one():
    parameters = Parameters.from_document(published())
    assert parameters.sets is None
    assert offsets(parameters.survival(np.zeros((2, 2)), [2, 2], [0.0, 1.5])) == [0.0, 0.0]


def test_labels_that_come_later_find_their_set():
    labels = ["default"]
    parameters = Parameters.from_document(published(), labels)
    labels.append("code")
    assert offsets(parameters.survival(np.zeros((1, 2)), [1])) == [1.0]


def adapter_with(ring, written, **options):
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", ring, **options)
    mirror = ParameterMirror.open(ring)
    mirror.write(written.version, encode_document(written))
    mirror.close()
    return adapter


def test_what_the_engine_used_is_what_its_rows_say(ring):
    adapter = adapter_with(ring, published(), segment_sets=True)
    code = adapter.segment("code")
    served = adapter.current().survival(np.ones((2, 2)), [code, 0], [0.0, 1.2])
    adapter.observe(
        np.ones((2, 2), dtype=np.float32), [1, 0], request=[1, 2], segment=np.array([code, 0]),
        sampling=np.array([0.0, 1.2]),
    )  # fmt: skip
    reader = RingReader(Segment.attach(segment_path(ring)))
    messages = BatchBuilder(reader).build(*reader.read(10, 10), 1)
    batch = decode(messages[0].message.value, CONTENT_TYPE_MSGPACK)
    assert batch.segment_sets
    assert batch.rounds.version.tolist() == [1, 1]
    assert np.allclose(document_survival(published(), batch.rounds), served)
    reader.close()
    adapter.close()


def test_an_adapter_of_an_engine_without_sets_says_so(ring):
    adapter = adapter_with(ring, published())
    assert adapter.current().version == 1  # taken, with its pooled set
    assert adapter.current().sets is None
    assert not adapter.report.segment_sets
    adapter.observe(np.ones((1, 2), dtype=np.float32), [1], request=[1])
    reader = RingReader(Segment.attach(segment_path(ring)))
    messages = BatchBuilder(reader).build(*reader.read(10, 10), 1)
    assert not decode(messages[0].message.value, CONTENT_TYPE_MSGPACK).segment_sets
    assert b"segment_sets" not in messages[0].message.value
    reader.close()
    adapter.close()


def test_a_set_in_a_form_that_the_engine_cannot_apply_refuses_the_document(ring):
    pooled = {"form": "temperature", "temperatures": [2.0, 2.0]}
    adapter = adapter_with(ring, published(**pooled), forms=("temperature",), segment_sets=True)
    assert adapter.current().version == 0
    assert "segments[0].form" in adapter.report.reason
    adapter.close()


def test_an_engine_that_ignores_the_sets_ignores_their_form(ring):
    pooled = {"form": "temperature", "temperatures": [2.0, 2.0]}
    adapter = adapter_with(ring, published(**pooled), forms=("temperature",))
    assert adapter.current().version == 1
    adapter.close()


def test_every_rank_finds_the_same_set_though_one_only_has_a_ring(ring):
    first = adapter_with(ring, published(), segment_sets=True)
    second = ServingAdapter(IDENTITY, "chat", "pod-1", ring, emit=False, segment_sets=True)
    logits = np.linspace(-1, 1, 8).reshape(4, 2)
    found = []
    for rank in (first, second):
        segment = [rank.segment(label) for label in ("math", "code", "chat", "code")]
        found.append(rank.current().survival(logits, segment, [0.0, 0.0, 1.4, 1.4]))
    assert np.array_equal(*found)
    second.close()
    first.close()


def test_ten_thousand_labels_stay_bounded_in_the_adapter(ring):
    adapter = adapter_with(ring, published(), segment_sets=True)
    indices = [adapter.segment(f"tenant {i}") for i in range(10_000)]
    assert adapter.segment("code") == max(indices) == MAX_LABELS - 1  # too late: it is other now
    assert len(adapter.ring.segments.names) == len(adapter.ring.segments.known) == MAX_LABELS
    assert adapter.ring.labels == MAX_LABELS
    sets = adapter.current().sets
    assert sets.index(np.array(indices), 0.0).tolist() == [0] * 10_000
    adapter.observe(
        np.ones((10_000, 2), dtype=np.float32), np.ones(10_000, dtype=int), request=np.arange(10_000),
        segment=np.array(indices),
    )  # fmt: skip
    reader = RingReader(Segment.attach(segment_path(ring)))
    messages = BatchBuilder(reader).build(*reader.read(10_000, 10), 1)
    batch = decode(messages[0].message.value, CONTENT_TYPE_MSGPACK)
    assert batch.rounds.segments == tuple(adapter.ring.segments.names)
    assert batch.rounds.segments[-1] == "other"
    reader.close()
    adapter.close()


def test_a_label_that_cannot_be_encoded_leaves_the_dictionary_as_it_was(ring):
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", ring)
    with pytest.raises(ValueError, match="surrogates"):
        adapter.segment("\ud800")
    assert (adapter.segment("code"), adapter.ring.labels) == (1, 2)
    adapter.close()


class OneStore:
    """A parameter store that keeps the last report."""

    def __init__(self):
        self.reported = None

    def report(self, deployment, report, expire_seconds):
        self.reported = report


@pytest.mark.parametrize("segment_sets", [False, True])
def test_the_sidecar_passes_on_what_the_engine_can(ring, segment_sets):
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", ring, segment_sets=segment_sets)
    store = OneStore()
    subscriber = Subscriber(ring, lambda: store, "chat", "pod-1")
    subscriber._connected()
    subscriber.forward_report(store)
    assert isinstance(store.reported, ReplicaReport)
    assert store.reported.segment_sets is segment_sets
    subscriber._store = None
    subscriber.close()
    adapter.close()


def test_a_report_of_an_older_engine_cannot():
    assert not EngineReport().segment_sets


def test_rounds_outside_their_dictionary_are_other():
    parameters = Parameters.from_document(published([entry("other", offset=2.0)]), [])
    known = Rounds.build([[0.0, 0.0]] * 2, [1, 1], segments=("chat",))
    rounds = dataclasses.replace(known, segment=np.array([0, 5], dtype=np.uint16))
    assert offsets(parameters.survival_of(rounds)) == [0.0, 2.0]


def test_a_verification_plan_goes_by_the_sets():
    from serving_adapter.engines.torch.plan import VerificationPlan
    from serving_adapter.scheduler import Threshold

    sets = [entry("code", offset=3.0), entry("*", "high", offset=-3.0)]
    parameters = Parameters.from_document(published(sets), ["default", "code"])
    plan = VerificationPlan.make(
        np.zeros((3, 2), dtype=np.float32), parameters, Threshold(0.4), None, np.zeros(3, dtype=bool), 0.0,
        [0, 1, 0], [0.0, 1.5, 1.5],
    )  # fmt: skip
    assert plan.scheduled.tolist() == [1, 2, 0]
