"""Reading drafters from disk: the packaged small one and DeepSpec checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from serving_adapter.engines.torch.dspark.config import CheckpointError, DSparkConfig
from serving_adapter.engines.torch.dspark.model import DSparkModel

MINI_FORMAT = "dspark-mini-v1"
ConfidenceHead = Literal["refitted", "joint"]
"""Of the packaged drafter: refitted on other prompts, or as trained with it, which is overfit."""


def packaged_drafter() -> Path:
    """Folder of the packaged drafter of SmolLM2-135M-Instruct."""
    with resources.as_file(resources.files("serving_adapter.engines.torch") / "data" / "drafter") as folder:
        return folder


def load_drafter_model(
    folder: Path,
    embedding: Tensor,
    lm_head: Tensor,
    *,
    confidence: ConfidenceHead = "refitted",
) -> DSparkModel:
    """Load a drafter for a target.

    Parameters
    ----------
    folder
        Holds ``config.json`` and safetensors: of DeepSpec, or in the packaged format.
    embedding, lm_head
        The target's, ``[V, hidden]``; a DeepSpec checkpoint brings copies of its own, which are used.
    confidence
        Which head of the packaged drafter; DeepSpec checkpoints have one.

    Raises
    ------
    CheckpointError
        Naming what is missing or does not fit.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no config.json") from error
    weights = _read_weights(folder)
    if config.get("format") == MINI_FORMAT:
        return _mini(folder, config, weights, embedding, lm_head, confidence)
    return _deepspec(config, weights, embedding, lm_head)


def _deepspec(
    raw: Mapping[str, Any], weights: dict[str, Tensor], embedding: Tensor, lm_head: Tensor
) -> DSparkModel:
    config = DSparkConfig.from_deepspec(raw)
    # Frozen copies of the target's: taken from the checkpoint when it has them, as DeepSpec's evaluator does.
    own_embedding = weights.pop("embed_tokens.weight", embedding).to(embedding)
    own_head = weights.pop("lm_head.weight", lm_head).to(lm_head)
    _expect_hidden(config, own_embedding)
    model = DSparkModel(config, own_embedding, own_head)
    renamed = {
        name.replace("confidence_head.proj.", "confidence_head."): value for name, value in weights.items()
    }
    return _filled(model, renamed, embedding)


def _mini(
    folder: Path,
    raw: Mapping[str, Any],
    weights: dict[str, Tensor],
    embedding: Tensor,
    lm_head: Tensor,
    confidence: ConfidenceHead,
) -> DSparkModel:
    config = DSparkConfig.from_mini(raw)
    _expect_hidden(config, embedding)
    if embedding.shape[0] != config.vocabulary:
        raise CheckpointError(f"vocab_size: got {embedding.shape[0]} tokens, expected {config.vocabulary}")
    ids = np.load(folder / raw["draft_vocab_file"])
    vocabulary = torch.from_numpy(ids.astype(np.int64)).to(embedding.device)
    model = DSparkModel(config, embedding, lm_head[vocabulary].clone(), vocabulary)
    taken, left = ("confidence", "confidence_joint")[:: 1 if confidence == "refitted" else -1]
    renamed = {}
    for name, value in weights.items():
        owner, _, rest = name.partition(".")
        if owner == left:
            continue
        if owner == taken:
            name = f"confidence_head.{rest}"
        elif owner.startswith("markov_w"):
            name = f"markov_head.{name}"
        renamed[name] = value
    return _filled(model, renamed, embedding)


def _filled(model: DSparkModel, weights: dict[str, Tensor], like: Tensor) -> DSparkModel:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(" ".join(str(error).split())) from error
    model.to(device=like.device, dtype=like.dtype).eval()
    for layer in model.modules():  # frequencies stay exact in single precision whatever the weights are in
        if hasattr(layer, "frequencies"):
            layer.frequencies = layer.frequencies.float()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def _expect_hidden(config: DSparkConfig, embedding: Tensor) -> None:
    if embedding.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"hidden_size: got a target of {embedding.shape[1]}, expected {config.hidden_size}"
        )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    load = import_module("safetensors.torch").load_file
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load(str(file)))
    if not weights:
        raise CheckpointError(f"{folder}: no safetensors")
    return weights
