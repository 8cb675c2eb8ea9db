"""The torch engine around its core: what it reports, what it applies, who comes and goes."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.adapter import ServingAdapter  # noqa: E402
from serving_adapter.contract import (  # noqa: E402
    NO_STOP,
    CostCurve,
    EngineIdentity,
    ParameterDocument,
    Rounds,
    Steps,
    encode_document,
    seal,
)
from serving_adapter.engines.torch.engine import TorchEngine, generate  # noqa: E402
from serving_adapter.engines.torch.measuring import measure_profile  # noqa: E402
from serving_adapter.engines.torch.profile import StepProfile  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from serving_adapter.engines.torch.self_draft import SelfDrafter, rounded, rounded_copy  # noqa: E402
from serving_adapter.mirror import ParameterMirror  # noqa: E402
from serving_adapter.ring_reader import RingReader  # noqa: E402
from serving_adapter.scheduler import scheduler_from_name  # noqa: E402
from serving_adapter.shared_memory import Segment, segment_path  # noqa: E402
from tests.rings import a_ring_name  # noqa: E402
from tests.test_torch_toy import TableDrafter, greedy_output, packed, tiny_llama  # noqa: E402

GAMMA = 4
IDENTITY = EngineIdentity(target="toy", drafter="table", gamma=GAMMA, engine="torch")


@pytest.fixture(scope="module")
def model():
    return tiny_llama(40, seed=2)


@pytest.fixture
def ring():
    with a_ring_name() as name:
        yield name


def an_engine(model, scheduler="off", adapter=None, **options) -> TorchEngine:
    """With a self-draft: greedy drafts are accepted often and not always."""
    target = packed(copy.deepcopy(model), rows=8)
    drafter = SelfDrafter(rounded_copy(target, rows=8, limit=256, levels=24), None, gamma=GAMMA)
    return TorchEngine(target, drafter, scheduler_from_name(scheduler), adapter, max_requests=8, **options)


def an_adapter(ring, **options) -> ServingAdapter:
    return ServingAdapter(IDENTITY, "toy", "replica", ring, soft_labels=True, **options)


def some_requests(count=12, **options) -> list[GenerationRequest]:
    random = np.random.default_rng(3)
    return [
        GenerationRequest(
            **{
                "request_id": f"{i}",
                "prompt": tuple(random.integers(0, 40, 5).tolist()),
                "max_tokens": 14,
                "seed": i,
            }
            | options
        )
        for i in range(count)
    ]


def read(ring) -> tuple[Rounds, Steps]:
    """Through the checks of the contract."""
    reader = RingReader(Segment.attach(segment_path(ring)))
    rounds, steps = reader.read_rounds(10_000), reader.read_steps(10_000)
    columns = {name: column for name, column in rounds.columns.items() if name != "share"}
    found = Rounds.build(**columns, segments=reader.labels()), Steps.build(**steps.columns)
    reader.close()
    return found


def served(model, ring, requests, scheduler="threshold:0.5", **options) -> tuple[Rounds, Steps]:
    adapter = an_adapter(ring, **options)
    engine = an_engine(model, scheduler, adapter)
    generate(engine, requests)
    engine.close()
    assert adapter.rejected == 0, adapter.last_rejection
    adapter.close()
    return read(ring)


def test_every_round_is_reported_once_and_numbered(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "threshold:0.5", adapter)
    running = [engine.submit(r) for r in some_requests(temperature=0.8)]
    engine.run()
    adapter.close()
    rounds, steps = read(ring)
    for r in running:
        mine = rounds.take(rounds.request == r.hash)
        assert mine.step.tolist() == list(range(r.rounds))
    assert int(steps.rows.sum()) == len(rounds) == sum(r.rounds for r in running)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_leave_with_their_own_rounds_however_late_the_labels_come(model, ring, temperature):
    rounds, steps = served(model, ring, some_requests(12, temperature=temperature))
    assert steps.rows.tolist() == steps.requests.tolist()
    assert int(steps.rows.sum()) == len(rounds)
    ends = np.cumsum(steps.rows.astype(int))
    verified = [int(part.sum(dtype=int)) for part in np.split(rounds.verified, ends[:-1])]
    assert verified == (steps.batch_tokens.astype(int) - steps.requests.astype(int)).tolist()


def test_a_cancelled_request_leaves_no_step_behind(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "fixed:1", adapter)
    running = engine.submit(some_requests(1)[0])
    engine.step()
    engine.cancel(running.request.request_id)
    assert engine.step() is None
    adapter.close()
    rounds, steps = read(ring)
    assert (len(rounds), steps.rows.tolist()) == (1, [1])


def test_rounds_that_wait_for_labels_are_not_lost_when_requests_are_abandoned(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "fixed:1", adapter)
    running = engine.submit(some_requests(1)[0])
    engine.step()
    engine.step()
    engine.abandon()
    assert engine.idle
    adapter.close()
    rounds, steps = read(ring)
    assert running.rounds == 2
    assert (len(rounds), steps.rows.tolist()) == (2, [1, 1])


def test_steps_tell_size_and_time(model, ring):
    rounds, steps = served(model, ring, some_requests(8, temperature=0.8))
    per_step = steps.requests.astype(int)
    assert int(steps.batch_tokens.sum()) == int(per_step.sum()) + int(rounds.verified.sum(dtype=int))
    assert np.all(steps.step_seconds > 0)
    assert np.all(steps.draft_seconds + steps.verify_seconds <= steps.step_seconds * 1.001)
    assert np.all(steps.context_tokens >= 5)


def test_accepted_and_bonus_tokens_are_the_output(model, ring):
    rounds, _ = served(model, ring, some_requests(8, temperature=0.8))
    for request in np.unique(rounds.request):
        mine = rounds.take(rounds.request == request)
        committed = int(mine.accepted.sum(dtype=int)) + len(mine)
        assert committed >= 14 > committed - (GAMMA + 1)  # the last round may go beyond the limit


def test_exploration_verifies_in_full_and_logs_what_was_scheduled(model, ring):
    rounds, _ = served(model, ring, some_requests(8, temperature=0.8), "fixed:1", explore=0.5)
    assert set(rounds.scheduled.tolist()) == {1}
    assert set(rounds.verified.tolist()) == {1, GAMMA}
    assert 0.3 < np.mean(rounds.verified == GAMMA) < 0.7
    assert set(rounds.explore.tolist()) == {0.5}


def test_nothing_is_explored_while_requests_wait(model, ring):
    adapter = an_adapter(ring, explore=1.0)
    engine = an_engine(model, "fixed:1", adapter)
    for request in some_requests(9, temperature=0.8):
        engine.submit(request)
    assert engine.step().plan.explore == 0.0
    while engine.waiting:
        engine.step()
    assert engine.step().plan.explore == 1.0


def test_a_sampled_round_resolves_one_position_more_than_it_verified(model, ring):
    rounds, _ = served(model, ring, some_requests(temperature=0.8), "fixed:2")
    assert set(rounds.resolved.tolist()) == {3}
    assert np.all(rounds.accepted <= 2)
    assert np.any(rounds.resolved_accepted == 3)
    soft = np.asarray(rounds.accept_probability)
    assert np.isfinite(soft[:, :2]).all()
    assert np.isnan(soft[:, 2:]).all()


def test_acceptance_is_as_frequent_as_its_probability(model, ring):
    rounds, _ = served(model, ring, some_requests(60, temperature=1.0), "off")
    first = np.asarray(rounds.accept_probability)[:, 0].astype(float)
    accepted = rounds.accepted >= 1
    spread = np.sqrt(np.sum(first * (1 - first)))
    assert abs(accepted.sum() - first.sum()) < 4 * spread


def test_a_greedy_round_is_labelled_in_full_by_the_text_that_follows(model, ring):
    requests = some_requests(8, max_tokens=40)
    trimmed, _ = served(model, ring, requests, "fixed:1")
    with a_ring_name() as other:
        full, _ = served(model, other, requests, "off")
    ends = {r: int(trimmed.step[trimmed.request == r].max()) for r in np.unique(trimmed.request)}
    settled = np.array([trimmed.step[i] < ends[trimmed.request[i]] - GAMMA for i in range(len(trimmed))])
    assert settled.sum() > 50
    assert set(trimmed.resolved[settled].tolist()) == {GAMMA}
    # As often as full verification finds, over rounds that start elsewhere in the same texts.
    assert np.mean(trimmed.resolved_accepted[settled]) == pytest.approx(np.mean(full.accepted), abs=0.6)


def test_labels_of_greedy_rounds_are_those_of_full_verification(model):
    """Round by round: what the text says about a trimmed draft is what verifying it would have said."""
    for seed in range(3):
        with a_ring_name() as ring:
            rounds, _ = served(model, ring, some_requests(1, max_tokens=30, prompt=(seed, 4)), "fixed:0")
        target = copy.deepcopy(model)
        text = [seed, 4, *greedy_output(target, (seed, 4), 30)]
        drafter_model = rounded_copy(packed(copy.deepcopy(model)), rows=1, limit=256, levels=24)
        drafter = SelfDrafter(drafter_model, None, gamma=GAMMA)
        zeros = torch.zeros(1, GAMMA, dtype=torch.float64)
        for step in range(len(rounds)):  # nothing verified: round `step` starts at token `step`
            anchor = 1 + step
            with torch.inference_mode():
                draft = drafter.propose([text[: anchor + 1]], zeros[:, 0], zeros).tokens[0].tolist()
            drafter._held = [0]
            agreed = next((k for k, t in enumerate(draft) if text[anchor + 1 :][k : k + 1] != [t]), GAMMA)
            known = min(GAMMA, len(text) - 1 - anchor)
            assert rounds.resolved[step] == max(known, 1)
            assert rounds.resolved_accepted[step] == min(agreed, known)


def test_what_lies_beyond_the_length_limit_stays_unknown_whatever_was_drafted(model, ring):
    rounds, _ = served(model, ring, some_requests(8, max_tokens=2), "fixed:0")
    assert set(rounds.resolved[rounds.step == 0].tolist()) == {2}
    assert set(rounds.resolved[rounds.step == 1].tolist()) == {1}


def test_stop_tokens_end_the_output_and_are_marked_in_drafts(model, ring):
    requests = some_requests(30, stop_tokens=frozenset({3, 9, 17}), max_tokens=30)
    adapter = an_adapter(ring)
    engine = an_engine(model, "off", adapter)
    running = [engine.submit(r) for r in requests]
    engine.run()
    adapter.close()
    stopped = [r for r in running if r.finished == "stop"]
    assert stopped
    assert all(r.output[-1] in {3, 9, 17} and not {3, 9, 17} & set(r.output[:-1]) for r in stopped)
    rounds, _ = read(ring)
    assert np.any(rounds.draft_stop != NO_STOP)


def test_the_same_seed_gives_the_same_tokens_in_another_batch(model):
    alone = [generate(an_engine(model, "fixed:2"), [r])[0] for r in some_requests(4, temperature=1.0)]
    together = generate(an_engine(model, "fixed:2"), some_requests(4, temperature=1.0))
    assert alone == together


def test_another_seed_gives_other_tokens(model):
    one = generate(an_engine(model), some_requests(6, temperature=1.0))
    other = generate(an_engine(model), some_requests(6, temperature=1.0, seed=99))
    assert one != other


def test_tokens_come_as_they_are_committed(model):
    came = []
    request = GenerationRequest(
        request_id="a",
        prompt=(1, 2),
        max_tokens=9,
        on_tokens=lambda tokens, end: came.append((list(tokens), end)),
    )
    output = generate(an_engine(model), [request])[0]
    assert [t for tokens, _ in came for t in tokens] == output
    assert [end for _, end in came] == [None] * (len(came) - 1) + ["length"]


def test_cancelled_requests_leave_running_or_waiting(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "fixed:0", adapter)
    running = [engine.submit(r) for r in some_requests(10)]
    engine.step()
    engine.cancel("3")
    engine.cancel("9")
    engine.cancel("nobody")
    engine.run()
    assert (running[3].finished, len(running[3].output)) == ("cancelled", 1)
    assert (running[9].finished, running[9].output) == ("cancelled", [])
    assert [r.finished for i, r in enumerate(running) if i not in (3, 9)] == ["length"] * 8
    adapter.close()
    rounds, _ = read(ring)
    assert int((rounds.request == running[3].hash).sum()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ()}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_requests_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GenerationRequest(**{"request_id": "a", "prompt": (1,), "max_tokens": 1} | change)


def test_a_request_that_does_not_fit_is_refused_at_once(model):
    engine = an_engine(model)
    with pytest.raises(ValueError, match="expected at most 252"):
        engine.submit(GenerationRequest(request_id="a", prompt=(1,) * 200, max_tokens=53))
    with pytest.raises(ValueError, match="got token 40"):
        engine.submit(GenerationRequest(request_id="a", prompt=(40,), max_tokens=1))
    fits = engine.submit(GenerationRequest(request_id="a", prompt=(1,) * 200, max_tokens=52))
    engine.run()
    assert len(fits.output) == 52


def test_an_adapter_of_another_gamma_is_refused(model):
    adapter = ServingAdapter(EngineIdentity(target="t", drafter="d", gamma=5, engine="torch"), "toy", "r")
    with pytest.raises(ValueError, match="gamma"):
        an_engine(model, adapter=adapter)


def a_document(version=1, **changes) -> ParameterDocument:
    body = {
        "deployment": "toy",
        "fingerprint": IDENTITY.fingerprint(),
        "version": version,
        "gamma": GAMMA,
        "form": "affine",
        "temperatures": [1.0] * GAMMA,
        "offsets": [0.0] * GAMMA,
        "created_at": "2026-01-01T00:00:00Z",
    }
    return seal(ParameterDocument(**body | changes))


def publish(ring, document):
    mirror = ParameterMirror.open(ring)
    mirror.write(document.version, encode_document(document))
    mirror.close()


def test_a_new_document_holds_from_the_next_step_on(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "threshold:0.5", adapter)
    for request in some_requests(8, temperature=0.8, max_tokens=40):
        engine.submit(request)
    assert engine.step().plan.version == 0
    publish(ring, a_document(offsets=[-20.0] * GAMMA))
    plan = engine.step().plan
    assert (plan.version, plan.scheduled.tolist()) == (1, [0] * 8)
    publish(ring, a_document(2, offsets=[20.0] * GAMMA))
    plan = engine.step().plan
    assert (plan.version, plan.scheduled.tolist()) == (2, [GAMMA] * 8)
    assert adapter.report.applied == 2
    engine.run()
    engine.close()
    adapter.close()
    rounds, _ = read(ring)
    assert set(rounds.version.tolist()) == {0, 1, 2}


def test_a_published_cost_curve_replaces_the_measured_profile(model, ring):
    adapter = an_adapter(ring)
    cheap = StepProfile((1, 100), (1.0, 1.0), (1,), (0.1,))
    engine = an_engine(model, "early-stop", adapter, profile=cheap)
    for request in some_requests(8, temperature=0.8, max_tokens=40):
        engine.submit(request)
    assert engine.step().plan.scheduled.tolist() == [GAMMA] * 8
    dear = CostCurve(batch_tokens=[8, 9, 40], seconds=[1.0, 10.0, 20.0], status=["measured"] * 3)
    publish(ring, a_document(cost=dear))
    result = engine.step()
    assert result.plan.scheduled.tolist() == [0] * 8
    assert result.plan.predicted_seconds == 1.0


def test_document_for_another_engine_changes_nothing(model, ring):
    adapter = an_adapter(ring)
    engine = an_engine(model, "threshold:0.5", adapter)
    engine.submit(some_requests(1)[0])
    publish(ring, a_document(fingerprint="another"))
    assert engine.step().plan.version == 0
    assert "fingerprint" in adapter.report.reason


def test_output_does_not_depend_on_the_adapter(model, ring):
    requests = some_requests(6, temperature=1.0)
    alone = generate(an_engine(model, "fixed:2"), requests)
    assert generate(an_engine(model, "fixed:2", an_adapter(ring)), requests) == alone


def test_the_profile_is_measured_monotone_and_covers_every_batch(model):
    engine = an_engine(model)
    profile = measure_profile(engine.target, engine.drafter, max_requests=8, context=20, repetitions=2)
    assert profile.verify_tokens[0] == 1
    assert profile.verify_tokens[-1] == 8 * (GAMMA + 1)
    assert profile.draft_requests[-1] == 8
    assert all(b >= a > 0 for a, b in zip(profile.verify_seconds, profile.verify_seconds[1:], strict=False))
    curve = profile.curve(4)
    assert curve.seconds[0] == pytest.approx(
        profile.verify_seconds[0] + np.interp(4, profile.draft_requests, profile.draft_seconds)
    )
    # Measuring leaves no trace in what is generated afterwards.
    expected = [greedy_output(model, r.prompt, r.max_tokens) for r in some_requests(4)]
    assert generate(engine, some_requests(4)) == expected


def test_medians_are_taken_by_the_given_clock():
    ticks = iter(np.arange(0.0, 1000.0, 0.5))
    profile = StepProfile.measure(
        lambda _: None, lambda _: None, gamma=1, max_requests=2, clock=lambda: next(ticks)
    )
    assert profile.verify_tokens == (1, 2, 4)
    assert set(profile.verify_seconds) == set(profile.draft_seconds) == {0.5}


@pytest.mark.parametrize(
    ("budget", "tokens", "runs"), [(0.0, (1,), 2), (4.0, (1, 2, 4), 6), (100.0, (1, 2, 4), 20)]
)
def test_a_profile_ends_with_its_budget_and_keeps_what_it_has(budget, tokens, runs):
    ticks, told = iter(np.arange(0.0, 1000.0, 0.5)), []
    profile = StepProfile.measure(
        lambda _: None,
        lambda _: None,
        gamma=1,
        max_requests=2,
        clock=lambda: next(ticks),
        budget_seconds=budget,
        progress=lambda done, total: told.append((done, total)),
    )
    assert profile.verify_tokens == tokens
    assert len(profile.verify_seconds) == len(tokens)
    assert set(profile.verify_seconds) == {0.5}
    assert profile.cost(1).measured_to == tokens[-1]
    assert {total for _, total in told} == {20}
    assert len(told) >= min(runs, 20)


def test_rounding_has_sixteen_levels_between_least_and_largest_of_each_group():
    weight = torch.randn(3, 130, generator=torch.Generator().manual_seed(0))
    coarse = rounded(weight)
    for group in (slice(0, 64), slice(64, 128), slice(128, 130)):
        for row in range(3):
            assert len(coarse[row, group].unique()) <= 16
            assert coarse[row, group].min() == weight[row, group].min()
            assert coarse[row, group].max() == pytest.approx(float(weight[row, group].max()), abs=1e-6)
            step = (weight[row, group].max() - weight[row, group].min()) / 15
            assert (coarse[row, group] - weight[row, group]).abs().max() <= step / 2 + 1e-6


def test_rows_that_move_take_their_draft_state_along(model):
    """Short requests in front of long ones: the long ones change rows while they run."""
    requests = [
        GenerationRequest(request_id=f"{i}", prompt=(i + 1, 2, 3), max_tokens=n)
        for i, n in enumerate((1, 25, 2, 25, 3, 25))
    ]
    engine = an_engine(model)
    table = TorchEngine(packed(copy.deepcopy(model), rows=8), TableDrafter.random(3, 40, 20), max_requests=8)
    expected = [greedy_output(model, r.prompt, r.max_tokens) for r in requests]
    assert generate(engine, requests) == expected
    assert generate(table, requests) == expected


def test_long_prompts_are_processed_apart_and_short_ones_together(model, monkeypatch):
    monkeypatch.setattr("serving_adapter.engines.torch.engine.PREFILL_TOKENS", 40)
    engine = an_engine(model)
    passes = []
    prefill = engine._prefill
    monkeypatch.setattr(
        engine, "_prefill", lambda p, row: passes.append([len(x) for x in p]) or prefill(p, row)
    )
    random = np.random.default_rng(1)
    lengths = (10, 20, 1, 90, 5, 33)
    requests = [
        GenerationRequest(request_id=f"{n}", prompt=tuple(random.integers(0, 40, n).tolist()), max_tokens=9)
        for n in lengths
    ]
    expected = [greedy_output(model, r.prompt, 9) for r in requests]
    assert generate(engine, requests) == expected
    assert passes == [[9, 19, 0], [89], [4, 32]]


CHECK = """
import sys
for name in {modules!r}:
    __import__(name)
assert "transformers" not in sys.modules, "transformers"
assert {torch} or "torch" not in sys.modules, "torch"
if "torch" in sys.modules:
    assert not sys.modules["torch"].cuda.is_initialized()
"""


def test_importing_the_engine_initialises_no_cuda_and_loads_no_transformers():
    root = Path(__file__).parent.parent
    folder = root / "serving_adapter" / "engines" / "torch"
    modules = [".".join(p.relative_to(root).with_suffix("").parts) for p in folder.rglob("*.py")]
    subprocess.run([sys.executable, "-c", CHECK.format(modules=modules, torch=True)], check=True, cwd=root)


def test_the_rest_of_the_adapter_imports_no_torch():
    root = Path(__file__).parent.parent
    modules = [
        ".".join(p.relative_to(root).with_suffix("").parts)
        for p in (root / "serving_adapter").rglob("*.py")
        if "torch" not in p.parts and "__main__" not in p.name
    ]
    subprocess.run([sys.executable, "-c", CHECK.format(modules=modules, torch=False)], check=True, cwd=root)
