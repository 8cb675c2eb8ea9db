"""What a drafter learns from: texts of the target itself, with the features and odds that go with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from serving_adapter.engines.torch.engine import TorchEngine
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.prompts import DOMAINS, prompts
from serving_adapter.engines.torch.requests import GenerationRequest


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One text, ``T`` tokens: features ``[T, F]`` and final hidden states ``[T, hidden]`` in half precision.

    ``log_normaliser`` ``[T]`` is that of the target's distribution at the training temperature;
    ``first_output`` is where the target's own tokens begin.
    """

    tokens: Tensor
    features: Tensor
    hidden: Tensor
    log_normaliser: Tensor
    first_output: int


def read_questions(path: Path | None, count: int) -> list[str]:
    """Questions to answer: our templates, or of a file (plain lines, or JSON lines with ``turns``)."""
    if path is None:
        each = -(-count // len(DOMAINS))
        by_domain = [prompts(domain, each) for domain in DOMAINS]
        return [text for texts in zip(*by_domain, strict=True) for text in texts][:count]
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line)["turns"][0] if line.startswith("{") else line for line in lines[:count]]


def answers(
    target: PackedModel,
    questions: Sequence[tuple[int, ...]],
    *,
    max_tokens: int,
    temperature: float,
    stop_tokens: frozenset[int],
    batch: int,
) -> list[list[int]]:
    """What the target says to each question, question included; question ``i`` is sampled with seed ``i``."""
    engine = TorchEngine(target, None, max_requests=batch)
    running = [
        engine.submit(
            GenerationRequest(
                request_id=f"{i}",
                prompt=question,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=i,
                stop_tokens=stop_tokens,
            )
        )
        for i, question in enumerate(questions)
    ]
    engine.run()
    return [r.tokens for r in running]


@torch.no_grad()
def read_text(
    target: PackedModel, tokens: Sequence[int], first_output: int, layers: tuple[int, ...], temperature: float
) -> Text:
    """Run the target over a whole text once."""
    batch = PackedBatch.build([list(tokens)], [0], target.device)
    output = target.forward(batch, feature_layers=layers, last_hidden=True)
    assert output.features is not None
    assert output.last_hidden is not None
    return Text(
        tokens=batch.tokens.clone(),
        features=output.features.half(),
        hidden=output.last_hidden.half(),
        log_normaliser=torch.logsumexp(output.logits / temperature, dim=-1),
        first_output=first_output,
    )


def frequent_tokens(texts: Sequence[Sequence[int]], size: int, vocabulary: int) -> np.ndarray[Any, Any]:
    """The ``size`` most frequent tokens in rising order; the lowest ids fill up what never occurred."""
    counts = np.bincount(np.concatenate([np.asarray(t) for t in texts]), minlength=vocabulary)
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:size])
