"""Train a DSpark drafter for a small target on two cores, from nothing but the target itself.

The kind of recipe that the packaged drafter came from: the target answers questions at temperature 0.7; a
backbone of two layers, a vanilla Markov head of rank 64 and a confidence head are trained on blocks of seven
tokens of these answers; then the confidence head alone is fitted again on answers that were kept apart.
Everything is drawn with given seeds: with ``--steps`` as the limit, the same machine and versions give the
same checkpoint. The packaged one saw other questions, so this is one of its kind, not the same bytes.

    python -m tools.train_drafter --out drafter --questions 600 --minutes 60
    dspark-calibrator engine --drafter drafter
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from serving_adapter.engines.torch.building import stop_tokens_of
from serving_adapter.engines.torch.dspark.config import DSparkConfig
from serving_adapter.engines.torch.dspark.model import DSparkModel
from serving_adapter.engines.torch.loading import load_target
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.prompts import chat_tokens
from tools.train_drafter_corpus import Text, answers, frequent_tokens, read_questions, read_text
from tools.train_drafter_loss import cut, losses

STRETCH = 128
TEXTS_A_STEP = 6
ANCHORS_A_TEXT = 16
WARM_UP = 50


def fresh_config(
    target: PackedModel, layers: tuple[int, ...], drafted: int, *, rank: int = 64
) -> DSparkConfig:
    """Dimensions of the drafter: the target's widths, two layers."""
    config = target.model.config
    return DSparkConfig(
        block_size=7,
        target_layer_ids=layers,
        hidden_size=target.hidden_size,
        layers=2,
        heads=int(config.num_attention_heads),
        kv_heads=int(config.num_key_value_heads),
        head_dim=int(config.head_dim),
        intermediate_size=int(config.intermediate_size),
        rms_norm_eps=float(config.rms_norm_eps),
        rope_theta=10_000.0,
        context_window=96,
        vocabulary=target.vocab_size,
        draft_vocabulary=drafted,
        markov_head="vanilla",
        markov_rank=rank,
    )


def fresh_model(
    target: PackedModel, config: DSparkConfig, drafted: np.ndarray[Any, Any], seed: int
) -> DSparkModel:
    """A drafter before training: its Markov head adds nothing yet."""
    torch.manual_seed(seed)
    ids = torch.from_numpy(drafted.astype(np.int64))
    model = DSparkModel(config, target.embedding.detach(), target.lm_head.detach()[ids].clone(), ids)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.02)
            if name.startswith("markov_head.markov_w2") or name == "confidence_head.bias":
                parameter.zero_()
    return model


def train(
    model: DSparkModel,
    texts: Sequence[Text],
    *,
    temperature: float,
    seconds: float,
    max_steps: int,
    learning_rate: float,
    seed: int,
) -> list[float]:
    """Minimise until the time or the steps are up; returns the loss of every step."""
    random = torch.Generator().manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, history = time.monotonic(), []
    for step in range(max_steps):
        passed = max((time.monotonic() - began) / seconds, step / max_steps)
        if passed >= 1:
            break
        rate = learning_rate * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + float(np.cos(np.pi * passed)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        total, acceptance, used = 0.0, 0.0, 0
        for index in torch.randint(len(texts), (TEXTS_A_STEP,), generator=random).tolist():
            blocks = cut(texts[index], model.config.block_size, STRETCH, ANCHORS_A_TEXT, random)
            if blocks is None:
                continue
            found = losses(model, blocks, temperature)
            (found.total / TEXTS_A_STEP).backward()  # type: ignore[no-untyped-call]
            total, acceptance, used = (
                total + float(found.total.detach()),
                acceptance + float(found.acceptance),
                used + 1,
            )
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        history.append(total / max(used, 1))
        if step % 50 == 0:
            first = acceptance / max(used, 1)
            note(f"step {step}: loss {history[-1]:.3f}, acceptance at position 1 {first:.3f}")
    return history


def refit_confidence(
    model: DSparkModel, texts: Sequence[Text], *, temperature: float, steps: int, seed: int
) -> None:
    """Fit the confidence head alone, on texts that the rest was not trained on."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("confidence_head"))
    train(
        model, texts, temperature=temperature, seconds=3600.0, max_steps=steps, learning_rate=3e-3, seed=seed
    )


def save(
    folder: Path, model: DSparkModel, joint: dict[str, Tensor], drafted: np.ndarray[Any, Any], name: str
) -> None:
    """Write the checkpoint in the packaged format, weights in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for key, value in model.state_dict().items():
        key = key.removeprefix("markov_head.").replace("confidence_head.", "confidence.")
        weights[key] = value.half().contiguous()
    weights |= {f"confidence_joint.{key}": value.half().contiguous() for key, value in joint.items()}
    save_file(weights, str(folder / "drafter.safetensors"))
    np.save(folder / "draft_vocab_ids.npy", drafted.astype(np.int32))
    c = model.config
    description = {
        "format": "dspark-mini-v1",
        "target": {"name": name, "hidden_size": c.hidden_size, "vocab_size": c.vocabulary},
        "block_size": c.block_size,
        "context_window": c.context_window,
        "target_layer_ids": list(c.target_layer_ids),
        "hidden_size": c.hidden_size,
        "num_draft_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "draft_vocab_size": c.draft_vocabulary,
        "draft_vocab_file": "draft_vocab_ids.npy",
        "markov": {"type": c.markov_head, "rank": c.markov_rank},
        "dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m tools.train_drafter",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--model", default="smollm2", help="target")
    parser.add_argument("--file", type=Path, default=None, help="questions, see --questions")
    parser.add_argument("--questions", type=int, default=600, help="how many; a fifth is kept apart")
    parser.add_argument("--answer-tokens", type=int, default=160, help="most tokens of an answer")
    parser.add_argument("--minutes", type=float, default=60.0, help="time to train")
    parser.add_argument("--steps", type=int, default=20_000, help="most steps")
    parser.add_argument("--layers", default="2,10,20,28", help="target layers whose output is the context")
    parser.add_argument("--draft-vocabulary", type=int, default=8192)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=32, help="answers at a time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    loaded = load_target(options.model)
    target = PackedModel(loaded.model, rows=options.batch, limit=1024)
    questions = read_questions(options.file, options.questions)
    asked = [chat_tokens(loaded.tokenizer, question) for question in questions]
    note(f"{len(asked)} questions")
    texts = answers(
        target,
        asked,
        max_tokens=options.answer_tokens,
        temperature=options.temperature,
        stop_tokens=stop_tokens_of(loaded),
        batch=options.batch,
    )
    note(f"{sum(map(len, texts))} tokens in {len(texts)} texts")
    drafted = frequent_tokens(texts, options.draft_vocabulary, target.vocab_size)
    layers = tuple(int(layer) for layer in options.layers.split(","))
    read = [
        read_text(target, tokens, len(question), layers, options.temperature)
        for tokens, question in zip(texts, asked, strict=True)
    ]
    kept_apart, seen = read[::5], [text for i, text in enumerate(read) if i % 5]
    model = fresh_model(target, fresh_config(target, layers, len(drafted)), drafted, options.seed)
    train(
        model,
        seen,
        temperature=options.temperature,
        seconds=60 * options.minutes,
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    assert model.confidence_head is not None
    joint = {key: value.clone() for key, value in model.confidence_head.state_dict().items()}
    refit_confidence(model, kept_apart, temperature=options.temperature, steps=200, seed=options.seed + 1)
    save(options.out, model, joint, drafted, loaded.name)
    note(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
