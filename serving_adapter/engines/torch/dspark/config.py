"""What a DSpark checkpoint says about itself: DeepSpec's keys, and those of the packaged small one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

MarkovHeadType = Literal["none", "vanilla", "gated", "rnn"]


class CheckpointError(ValueError):
    """A checkpoint that this engine cannot run, naming what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig:
    """Dimensions and rules of a drafter.

    Parameters
    ----------
    block_size
        Draft positions, gamma.
    target_layer_ids
        Zero-based target layers whose output is the context; -1 is the embedding.
    context_window
        Context positions a block attends to, None for all.
    draft_vocabulary
        Size of the reduced vocabulary; None for the target's.
    mask_token
        Token whose embedding fills slots 2 to gamma; None where the checkpoint brings a vector for it.
    markov_head, markov_rank
        Sequential block; rank 0 is none, which makes the drafter a DFlash.
    confidence_head, confidence_with_markov
        Whether there is one, and whether it sees the embedding of the previous token.
    """

    block_size: int
    target_layer_ids: tuple[int, ...]
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool = False
    query_key_norm: bool = False
    context_window: int | None = None
    vocabulary: int = 0
    draft_vocabulary: int | None = None
    mask_token: int | None = None
    markov_head: MarkovHeadType = "none"
    markov_rank: int = 0
    confidence_head: bool = True
    confidence_with_markov: bool = True

    def __post_init__(self) -> None:
        for name in ("block_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.heads % self.kv_heads:
            raise CheckpointError(f"heads: got {self.heads}, expected a multiple of {self.kv_heads}")
        ids = self.target_layer_ids
        if not ids or any(b <= a for a, b in pairwise(ids)) or ids[0] < -1:
            raise CheckpointError(f"target_layer_ids: got {list(ids)}, expected rising layer numbers")
        if self.markov_head not in get_args(MarkovHeadType):
            raise CheckpointError(
                f"markov_head_type: got {self.markov_head!r}, expected vanilla, gated, rnn or none"
            )
        if (self.markov_head == "none") != (self.markov_rank == 0):
            raise CheckpointError(f"markov_rank: got {self.markov_rank} with head {self.markov_head}")
        if self.confidence_head and self.confidence_with_markov and self.markov_rank == 0:
            raise CheckpointError("confidence_head_with_markov: got true, expected a Markov head with it")

    @classmethod
    def from_deepspec(cls, config: Mapping[str, Any]) -> DSparkConfig:
        """Read the ``config.json`` of a DeepSpec checkpoint (Qwen3 drafters).

        Raises
        ------
        CheckpointError
            A key is missing, or the drafter has a shape that this engine does not run.
        """
        nested = config.get("dspark_config") or config.get("dflash_config") or {}

        def get(name: str, default: Any = None) -> Any:
            value = config.get(name, nested.get(name, default))
            if value is None:
                raise CheckpointError(f"{name}: missing in config.json")
            return value

        kinds = set(config.get("layer_types") or ["full_attention"])
        if kinds != {"full_attention"}:
            raise CheckpointError(f"layer_types: got {sorted(kinds)}, expected full_attention throughout")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise CheckpointError(f"rope_type: got {kind!r}, expected default")
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise CheckpointError(f"hidden_act: got {activation!r}, expected silu")
        rank = int(get("markov_rank", 0))
        confidence = bool(get("enable_confidence_head", False))
        heads = int(get("num_attention_heads"))
        return cls(
            block_size=int(get("block_size")),
            target_layer_ids=tuple(int(i) for i in get("target_layer_ids")),
            hidden_size=int(get("hidden_size")),
            layers=int(get("num_hidden_layers")),
            heads=heads,
            kv_heads=int(get("num_key_value_heads", heads)),
            head_dim=int(get("head_dim", int(get("hidden_size")) // heads)),
            intermediate_size=int(get("intermediate_size")),
            rms_norm_eps=float(get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or get("rope_theta", 10_000.0)),
            attention_bias=bool(get("attention_bias", False)),
            query_key_norm=True,
            vocabulary=int(get("vocab_size")),
            mask_token=int(get("mask_token_id")),
            markov_head=str(get("markov_head_type")).lower() if rank else "none",  # type: ignore[arg-type]
            markov_rank=rank,
            confidence_head=confidence,
            confidence_with_markov=confidence and bool(get("confidence_head_with_markov")),
        )

    @classmethod
    def from_mini(cls, config: Mapping[str, Any]) -> DSparkConfig:
        """Read the ``config.json`` of the packaged small drafter (format ``dspark-mini-v1``)."""
        try:
            markov = config["markov"]
            return cls(
                block_size=int(config["block_size"]),
                target_layer_ids=tuple(int(i) for i in config["target_layer_ids"]),
                hidden_size=int(config["hidden_size"]),
                layers=int(config["num_draft_layers"]),
                heads=int(config["num_attention_heads"]),
                kv_heads=int(config["num_key_value_heads"]),
                head_dim=int(config["head_dim"]),
                intermediate_size=int(config["intermediate_size"]),
                rms_norm_eps=float(config["rms_norm_eps"]),
                rope_theta=float(config["rope_theta"]),
                context_window=int(config["context_window"]),
                vocabulary=int(config["target"]["vocab_size"]),
                draft_vocabulary=int(config["draft_vocab_size"]),
                markov_head=markov["type"],
                markov_rank=int(markov["rank"]),
            )
        except KeyError as error:
            raise CheckpointError(f"{error.args[0]}: missing in config.json") from error
