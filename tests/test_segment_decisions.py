"""Which segments get a set of their own, what is kept, and why; bounded, whatever labels there are."""

import dataclasses

import numpy as np
import pytest

from calibrator.core.candidate import ProposalOptions
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from calibrator.core.segment_proposal import propose_segment
from calibrator.service.segments import SegmentSupport, decide_segments
from calibrator.store import deployments, parameters, refreshes
from serving_adapter.contract import Rounds, sigmoid
from serving_adapter.contract.segments import MAX_SEGMENT_SETS
from serving_adapter.ports import ReplicaReport
from tests.refresh_support import Place, open_place
from tests.test_contract_segments import entry

GAMMA = 3


@pytest.fixture
def place(tmp_path, valkey):
    opened = open_place(tmp_path / "store.db", valkey)
    yield opened
    opened.store.close()


OPTIONS = ProposalOptions(resamples=60, folds=3)
ALL_APPLY = SegmentSupport(reported=True, cannot=())


def traffic(sizes, offsets, seed=0, sampling=None):
    """Rows of segments (five a request) whose heads are off by these offsets."""
    random = np.random.default_rng(seed)
    names = tuple(sizes)
    kind = np.repeat(np.arange(len(names)), [sizes[name] for name in names])
    z = random.normal(0.5, 1.2, (kind.size, GAMMA)).astype(np.float16)
    off = np.array([offsets.get(name, 0.0) for name in names])[kind]
    heat = np.zeros(kind.size) if sampling is None else np.where(np.arange(kind.size) // 5 % 2, sampling, 0.0)
    if sampling is not None:
        off = np.where(heat > 0, -off, off)
    accepted = np.cumprod(random.random(z.shape) < sigmoid(z + off[:, None]), axis=1).sum(axis=1)
    return Rounds.build(
        z, accepted, request=np.arange(kind.size) // 5, segment=kind, segments=names, sampling=heat
    )


def decide(rounds, in_force=(), support=ALL_APPLY, options=OPTIONS):
    weights = np.ones(len(rounds))
    proposal = propose(rounds, ParameterSet.identity(GAMMA), options, weights)
    chosen = proposal.parameters if proposal.publish else ParameterSet.identity(GAMMA)
    return decide_segments(rounds, weights, chosen, proposal, in_force, support, options)


def keys(decided):
    return {(each.segment, each.sampling) for each in decided.entries}


OPPOSITE = traffic({"code": 2000, "chat": 2000, "rare": 30}, {"code": 1.0, "chat": -1.0, "rare": -1.0})


def test_segments_that_differ_are_told_apart_and_a_sparse_one_borrows():
    decided = decide(OPPOSITE)
    assert {("code", "*"), ("chat", "*")} <= keys(decided)
    assert decided.changed
    evidence = decided.evidence["segments"]
    assert set(evidence["code"]) >= {
        "form", "rows", "n_eff", "own_share", "before", "after", "published", "reasons",
    }  # fmt: skip
    assert evidence["code"]["after"]["mean_ece"] < evidence["code"]["before"]["mean_ece"]
    assert np.mean(evidence["rare"]["own_share"]) < np.mean(evidence["code"]["own_share"])
    assert decided.reasons[0].startswith("segments: own set from now on: ")


def test_the_same_rows_again_change_nothing():
    first = decide(OPPOSITE)
    again = decide(OPPOSITE, first.entries)
    assert not again.changed
    assert again.entries == first.entries
    assert again.evidence["segments"]["code"]["action"] == "keep"
    fresh = decide(traffic({"code": 2000, "chat": 2000}, {"code": 1.0, "chat": -1.0}, seed=1), first.entries)
    assert keys(fresh) == keys(first)


def test_segments_that_are_alike_share_the_pooled_set():
    decided = decide(traffic({f"s{i}": 300 for i in range(8)}, {}))
    assert decided.entries == ()
    assert not decided.changed
    assert any("no gain" in r for r in decided.evidence["segments"]["s0"]["reasons"])


def test_a_set_that_no_longer_pays_is_dropped_with_its_reason():
    first = decide(OPPOSITE)
    moved = traffic({"code": 2000, "chat": 2000}, {"code": -1.0, "chat": -1.0}, seed=2)
    decided = decide(moved, first.entries)
    assert ("code", "*") not in keys(decided)
    assert decided.evidence["segments"]["code"]["action"] == "drop"
    assert any("no longer pays" in reason for reason in decided.evidence["segments"]["code"]["reasons"])
    assert any("own set dropped" in reason and "code/*" in reason for reason in decided.reasons)


def test_a_set_without_rows_to_judge_it_by_stays():
    decided = decide(OPPOSITE, [entry("gone", gamma=GAMMA)])
    assert ("gone", "*") in keys(decided)


def test_buckets_within_one_segment_are_told_apart_too():
    rounds = traffic({"code": 3000, "chat": 3000}, {"code": 1.0}, sampling=1.4)
    decided = decide(rounds)
    within = decided.evidence["segments"]["code"]["samplings"]
    assert set(within) == {"greedy", "high"}
    code = {key for key in keys(decided) if key[0] in ("code", "*")}
    assert code & {("code", "greedy"), ("code", "high"), ("*", "greedy"), ("*", "high")}
    served = decided.entries
    before = ParameterSet.identity(GAMMA)
    after = dataclasses.replace(before, entries=served)
    mine = rounds.take((rounds.segment == 0) & (rounds.sampling == 0))
    gap = abs(float(after.survival(mine)[:, 0].mean()) - float((mine.accepted > 0).mean()))
    assert gap < 0.02


def test_the_form_is_chosen_segment_by_segment():
    random = np.random.default_rng(0)
    kind = np.repeat([0, 1], 4000)
    z = random.normal(0.0, 1.5, (8000, GAMMA)).astype(np.float16)
    # One head wants another temperature at each position, which the affine form has not; the other is off
    # by an offset that no temperature removes.
    c = sigmoid(np.where(kind[:, None] == 0, z / np.array([3.0, 1.0, 0.4]), z + 1.5))
    accepted = np.cumprod(random.random(z.shape) < c, axis=1).sum(axis=1)
    decided = decide(
        Rounds.build(z, accepted, request=np.arange(8000) // 5, segment=kind, segments=("spread", "off"))
    )
    forms = {each.segment: each.form for each in decided.entries}
    assert forms == {"spread": "temperature", "off": "affine"}
    only = decide(OPPOSITE, options=dataclasses.replace(OPTIONS, supported_forms=("temperature",)))
    assert all(each.form == "temperature" for each in only.entries)


def test_a_set_in_a_form_that_a_replica_cannot_apply_any_more_is_dropped():
    affine = decide(OPPOSITE).entries
    assert any(each.form == "affine" for each in affine)
    narrowed = dataclasses.replace(OPTIONS, supported_forms=("temperature",))
    assert all(each.form == "temperature" for each in decide(OPPOSITE, affine, options=narrowed).entries)


def test_overflowing_labels_are_served_by_the_pooled_set():
    rounds = traffic({"other": 2000, "*": 2000, "chat": 2000}, {"other": 1.5, "*": 1.5, "chat": -1.0})
    decided = decide(rounds)
    assert keys(decided) <= {("chat", "*")}
    assert decided.evidence["segments"]["other"] == {
        "rows": 2000,
        "published": False,
        "reasons": ["labels beyond the bound: the pooled set serves them"],
    }


def test_sets_are_published_only_while_every_live_replica_applies_them():
    reports = {
        "pod-1": ReplicaReport("pod-1", 0, 0.0, segment_sets=True),
        "pod-2": ReplicaReport("pod-2", 0, 0.0),
    }
    support = SegmentSupport.of(reports)
    assert support == SegmentSupport(reported=True, cannot=("pod-2",))
    in_force = decide(OPPOSITE).entries
    decided = decide(OPPOSITE, in_force, support)
    assert (decided.entries, decided.changed) == ((), True)
    assert "pod-2 cannot apply any other" in decided.reasons[0]
    silent = decide(OPPOSITE, in_force, SegmentSupport.of({}))
    assert (silent.entries, silent.changed) == (in_force, False)


def test_too_few_requests_say_nothing_and_keep_what_there_is():
    rows = OPPOSITE.take(slice(0, 5))
    fallback = ParameterSet.identity(GAMMA).survival(rows)
    centres = {"affine": ParameterSet("affine", np.ones(GAMMA), np.zeros(GAMMA))}
    nothing = propose_segment(rows, fallback, centres, None, OPTIONS, np.ones(5))
    assert (nothing.action, nothing.parameters) == ("none", None)
    own = ParameterSet("affine", np.ones(GAMMA), np.ones(GAMMA))
    kept = propose_segment(rows, fallback, centres, own, OPTIONS, np.ones(5))
    assert (kept.action, kept.parameters) == ("keep", own)
    assert "too few" in kept.reasons[0]


def test_a_document_never_has_more_sets_than_fit():
    sizes = {f"s{i:02d}": 60 for i in range(62)}
    offsets = {name: (1.5 if i % 2 else -1.5) for i, name in enumerate(sizes)}
    rounds = traffic(sizes, offsets, sampling=1.4)
    decided = decide(rounds, [entry(f"old{i}", gamma=GAMMA) for i in range(MAX_SEGMENT_SETS)])
    assert len(decided.entries) == MAX_SEGMENT_SETS


def test_ten_thousand_segment_names_keep_store_and_documents_bounded(place: Place) -> None:
    names = [f"tenant {i}" for i in range(10_000)]
    rounds = traffic({"code": 3000, "chat": 3000}, {"code": 1.0, "chat": -1.0})
    place.ingest(rounds)
    random = np.random.default_rng(0)
    many = Rounds.build(
        random.normal(0.5, 1.2, (10_000, GAMMA)).astype(np.float16), random.integers(0, GAMMA + 1, 10_000),
        request=10**6 + np.arange(10_000), segment=np.arange(10_000) % 1000, segments=names[:1000],
    )  # fmt: skip
    for start in range(0, 10_000, 1000):
        part = many.take(slice(start, start + 1000))
        place.ingest(dataclasses.replace(part, segments=tuple(names[start : start + 1000])))
    place.report(segment_sets=True)
    document = place.refresher.refresh("chat").document
    assert document is not None
    assert {("code", "*"), ("chat", "*")} <= {(e.segment, e.sampling) for e in document.segments}
    assert len(document.segments) <= MAX_SEGMENT_SETS
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        assert len(deployments.segments(connection, known.id)) <= deployments.MAX_SEGMENTS
        evidence = refreshes.recent(connection, known.id)[0].evidence
        stored = parameters.get(connection, known.id, document.version)
    assert stored == document
    assert len(evidence["segments"]) <= deployments.MAX_SEGMENTS
    assert not evidence["segments"]["other"]["published"]
    assert [each["position"] for each in evidence["temperature_limited"]] == [1, 2, 3]


def test_a_replica_that_cannot_join_in_ends_the_sets_of_all(place: Place) -> None:
    place.ingest(traffic({"code": 3000, "chat": 3000}, {"code": 1.0, "chat": -1.0}))
    place.report(segment_sets=True)
    first = place.refresher.refresh("chat").document
    assert first is not None
    assert len(first.segments) == 2
    assert place.refresher.refresh("chat").outcome == "unchanged"
    place.report(replica="pod-1")
    second = place.refresher.refresh("chat").document
    assert second is not None
    assert second.segments == []
    assert any("pod-1 cannot apply any other" in reason for reason in second.evidence.reasons)  # type: ignore[union-attr]
    assert second.temperatures == pytest.approx(first.temperatures)
