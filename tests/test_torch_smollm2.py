"""The real small language model: both packaged drafters, and greedy equality in a corner of the matrix."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.adapter import ServingAdapter  # noqa: E402
from serving_adapter.contract import EngineIdentity, Rounds  # noqa: E402
from serving_adapter.engines.torch.building import (  # noqa: E402
    EngineOptions,
    build_drafter,
    identity_of,
    stop_tokens_of,
)
from serving_adapter.engines.torch.engine import TorchEngine  # noqa: E402
from serving_adapter.engines.torch.loading import ModelNotFoundError, load_target  # noqa: E402
from serving_adapter.engines.torch.packed_model import PackedModel  # noqa: E402
from serving_adapter.engines.torch.profile import StepProfile  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from serving_adapter.scheduler import scheduler_from_name  # noqa: E402
from tests.test_torch_toy import DEVICES  # noqa: E402

QUESTIONS = (
    "How many minutes are there in three hours?",
    "Write a Python function that reverses a list.",
    "Name two rivers in France.",
    "What is 17 + 25? Think step by step.",
)
TOKENS = 12


class Recorder(ServingAdapter):
    """Keeps what the engine observes."""

    def __init__(self, gamma: int) -> None:
        identity = EngineIdentity(target="t", drafter="d", gamma=gamma, engine="torch")
        super().__init__(identity, "live", "replica")
        self.columns: list[dict] = []

    def observe(self, logits, accepted, **columns):
        if len(logits):
            self.columns.append({"logits": logits, "accepted": accepted, **columns})

    def rounds(self) -> Rounds:
        names = (
            "logits",
            "accepted",
            "verified",
            "scheduled",
            "resolved",
            "resolved_accepted",
            "request",
            "step",
        )
        joined = {name: np.concatenate([c[name] for c in self.columns]) for name in names}
        return Rounds.build(**joined)


@pytest.fixture(scope="module")
def loaded():
    try:
        return load_target("smollm2")
    except ModelNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plain(loaded):
    """The same weights in transformers' own attention and cache; it stays on the CPU."""
    shared = {id(p): p for p in loaded.model.parameters()} if DEVICES == ["cpu"] else {}
    return copy.deepcopy(loaded.model, shared).eval()


@pytest.fixture(scope="module", params=DEVICES)
def target(request, loaded, plain):
    loaded.model.to(request.param)
    return PackedModel(loaded.model, rows=4, limit=256)


@pytest.fixture(scope="module")
def prompts(loaded):
    return [
        tuple(
            loaded.tokenizer.apply_chat_template(
                [{"role": "user", "content": q}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for q in QUESTIONS
    ]


@pytest.fixture(scope="module")
def expected(plain, prompts):
    """The target's own greedy output, by transformers' own generation."""
    outputs = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        done = plain.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=TOKENS, do_sample=False
        )
        outputs.append(done[0, len(prompt) :].tolist())
    return outputs


def serve(target, loaded, prompts, drafter_name, scheduler, temperature=0.0, tokens=TOKENS):
    options = EngineOptions(drafter=drafter_name, max_requests=4, max_context=256)
    drafter = build_drafter(options, target)
    profile = StepProfile((1, 4, 16, 32), (1.0, 1.2, 2.0, 3.4), (1,), (0.1,))
    recorder = Recorder(drafter.gamma)
    engine = TorchEngine(
        target, drafter, scheduler_from_name(scheduler), recorder, max_requests=4, profile=profile
    )
    running = []
    for i, prompt in enumerate(prompts):  # one after the other: they join while others run
        request = GenerationRequest(
            request_id=f"{i}", prompt=prompt, max_tokens=tokens, temperature=temperature, seed=i,
            stop_tokens=stop_tokens_of(loaded),
        )  # fmt: skip
        running.append(engine.submit(request))
        engine.step()
    engine.run()
    return [r.output for r in running], recorder.rounds()


@pytest.mark.parametrize(
    ("drafter", "scheduler"), [("self", "early-stop"), ("dspark", "asynchronous"), ("dspark:joint", "off")]
)
def test_greedy_output_is_the_models_own(target, loaded, prompts, expected, drafter, scheduler):
    outputs, _ = serve(target, loaded, prompts, drafter, scheduler)
    assert outputs == expected


def test_the_self_draft_is_accepted_as_in_the_recorded_traffic(target, loaded, prompts):
    _, rounds = serve(target, loaded, prompts, "self", "off", temperature=0.7, tokens=16)
    at_risk = np.arange(7) <= rounds.accepted[:, None]
    accepted = np.arange(7) < rounds.accepted[:, None]
    assert 0.65 < accepted.sum() / at_risk.sum() < 0.95  # recorded: about 0.80
    assert 0.5 < rounds.logits.mean() < 4.0


def test_the_identity_names_what_the_calibration_belongs_to(loaded, target):
    options = EngineOptions(drafter="dspark", max_requests=4, max_context=256)
    identity = identity_of(options, loaded, build_drafter(options, target))
    assert (identity.target, identity.drafter, identity.gamma) == ("SmolLM2-135M-Instruct", "dspark", 7)
    assert (identity.engine, identity.accelerator, identity.precision) == ("torch", "cpu", "float32")
    other = identity_of(options, loaded, build_drafter(EngineOptions(drafter="dspark:joint"), target))
    assert other.fingerprint() != identity.fingerprint()


def test_the_model_ends_its_turn_with_its_stop_token(loaded):
    assert stop_tokens_of(loaded) == {2}


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load_target(str(tmp_path / "nowhere"))
