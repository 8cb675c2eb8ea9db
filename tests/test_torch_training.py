"""The training recipe: a drafter for a small random target gets better, and its checkpoint serves."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.engines.torch.dspark.checkpoint import load_drafter_model  # noqa: E402
from serving_adapter.engines.torch.dspark.drafter import DSparkDrafter  # noqa: E402
from serving_adapter.engines.torch.engine import TorchEngine, generate  # noqa: E402
from serving_adapter.engines.torch.prompts import DOMAINS, prompts  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from tests.test_torch_toy import greedy_output, packed, tiny_llama  # noqa: E402
from tools.train_drafter import fresh_config, fresh_model, refit_confidence, save, train  # noqa: E402
from tools.train_drafter_corpus import answers, frequent_tokens, read_questions, read_text  # noqa: E402

VOCABULARY, LAYERS, TEMPERATURE = 30, (0, 1), 0.7


@pytest.fixture(scope="module")
def target():
    return packed(tiny_llama(VOCABULARY, layers=3, seed=8), rows=8)


@pytest.fixture(scope="module")
def texts(target):
    random = np.random.default_rng(0)
    questions = [tuple(random.integers(0, VOCABULARY, 4).tolist()) for _ in range(24)]
    return answers(
        target, questions, max_tokens=60, temperature=TEMPERATURE, stop_tokens=frozenset(), batch=8
    )


@pytest.fixture(scope="module")
def read(target, texts):
    return [read_text(target, tokens, 4, LAYERS, TEMPERATURE) for tokens in texts]


def a_run(target, texts, read, steps, seed=0):
    drafted = frequent_tokens(texts, 20, VOCABULARY)
    model = fresh_model(target, fresh_config(target, LAYERS, 20, rank=8), drafted, seed)
    history = train(
        model, read, temperature=TEMPERATURE, seconds=3600, max_steps=steps, learning_rate=3e-3, seed=seed
    )
    return model, drafted, history


def test_the_target_answers_with_its_own_text(target, texts):
    assert all(len(t) == 64 for t in texts)
    again = answers(
        target,
        [tuple(texts[0][:4])],
        max_tokens=60,
        temperature=TEMPERATURE,
        stop_tokens=frozenset(),
        batch=2,
    )
    assert again[0] == texts[0]


def test_loss_falls_and_the_checkpoint_serves_the_targets_own_text(target, texts, read, tmp_path):
    model, drafted, history = a_run(target, texts, read, 60)
    assert np.mean(history[-10:]) < 0.95 * np.mean(history[:10])
    joint = {key: value.clone() for key, value in model.confidence_head.state_dict().items()}
    before = {name: p.clone() for name, p in model.named_parameters()}
    refit_confidence(model, read[::5], temperature=TEMPERATURE, steps=5, seed=1)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"confidence_head.weight", "confidence_head.bias"}
    save(tmp_path, model, joint, drafted, "toy")
    own = greedy_output(tiny_llama(VOCABULARY, layers=3, seed=8), (1, 2, 3), 20)
    for head in ("refitted", "joint"):
        loaded = load_drafter_model(tmp_path, target.embedding, target.lm_head, confidence=head)
        engine = TorchEngine(target, DSparkDrafter(loaded, rows=8, limit=256), max_requests=8)
        request = GenerationRequest(request_id="a", prompt=(1, 2, 3), max_tokens=20)
        assert generate(engine, [request]) == [own]
    assert loaded.confidence_head.bias.item() == pytest.approx(joint["bias"].item(), abs=1e-3)


def test_the_same_seed_trains_the_same_drafter(target, texts, read):
    one, _, _ = a_run(target, texts, read, 3)
    same, _, _ = a_run(target, texts, read, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


def test_the_draft_vocabulary_is_what_occurs_most():
    assert frequent_tokens([[5, 5, 7], [7, 7, 2]], 2, 9).tolist() == [5, 7]
    assert frequent_tokens([[5]], 3, 9).tolist() == [0, 1, 5]


def test_questions_come_from_a_file_or_from_templates(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"turns": ["one?"]}\n\ntwo?\nthree?\n')
    assert read_questions(path, 2) == ["one?", "two?"]
    assert len(set(read_questions(None, 20))) == 20


@pytest.mark.parametrize("domain", DOMAINS)
def test_prompts_are_numbered_and_do_not_repeat_soon(domain):
    assert prompts(domain, 5, first=3) == prompts(domain, 8)[3:]
    assert len(set(prompts(domain, 36))) == 36


def test_a_domain_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="poetry"):
        prompts("poetry", 1)
