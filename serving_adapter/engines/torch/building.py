"""From names to a running engine: target, drafter, identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import EngineIdentity
from serving_adapter.engines.torch.checks import check_drafter, check_model, check_scheduler
from serving_adapter.engines.torch.dspark.checkpoint import load_drafter_model, packaged_drafter
from serving_adapter.engines.torch.dspark.drafter import DSparkDrafter
from serving_adapter.engines.torch.engine import TorchEngine
from serving_adapter.engines.torch.loading import SMOLLM2, LoadedTarget, load_target
from serving_adapter.engines.torch.measuring import measure_profile
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.proposal import Drafter
from serving_adapter.engines.torch.self_draft import SelfDrafter, SelfDraftHead, rounded_copy
from serving_adapter.scheduler import Scheduler

DRAFTERS = ("self", "self:second", "dspark", "dspark:joint", "none")
"""Drafters by name; anything else is the folder of a DeepSpec checkpoint."""

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What to build.

    Parameters
    ----------
    model
        See :func:`load_target`.
    drafter
        ``self`` (the target with rounded weights; its overfit head, or ``self:second`` the milder one),
        ``dspark`` (the packaged drafter; ``dspark:joint`` with the head as trained), ``none``, or the
        folder of a checkpoint.
    device, precision
        Where everything runs and in which precision, see ``PRECISIONS``.
    threads
        CPU threads; 0 leaves the number to PyTorch.
    max_requests, max_context
        Most requests in a batch; most positions of one, draft included.
    profile
        Whether to measure what a step costs before serving.
    profile_seconds
        Most seconds that this may take; what is measured by then stands.
    """

    model: str = SMOLLM2
    drafter: str = "self"
    device: str = "cpu"
    precision: str = "float32"
    threads: int = 0
    max_requests: int = 16
    max_context: int = 2048
    profile: bool = True
    profile_seconds: float = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class BuiltEngine:
    """A ready engine with its tokenizer; ``stop_tokens`` end a text of this model."""

    engine: TorchEngine
    tokenizer: Any
    name: str
    stop_tokens: frozenset[int]


def build_engine(
    options: EngineOptions,
    scheduler: Scheduler,
    adapter_for: Callable[[EngineIdentity], ServingAdapter | None] = lambda _identity: None,
    report: Callable[[str], None] = lambda _text: None,
) -> BuiltEngine:
    """Load everything and put it together.

    Parameters
    ----------
    options
        What to build.
    scheduler
        How much of each draft to verify.
    adapter_for
        Makes the adapter once the identity of the engine is known; not asked when nothing is drafted.
        Asked last: a start that fails earlier leaves the ring to whoever writes it.
    report
        Called with what is going on.

    Raises
    ------
    ModelNotFoundError, CheckpointError, ValueError
        Saying what is missing or does not fit.
    """
    if options.precision not in PRECISIONS:
        raise ValueError(f"precision: got {options.precision!r}, expected {', '.join(PRECISIONS)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device: got {options.device!r}, but PyTorch finds no CUDA device")
    check_scheduler(scheduler, check_drafter(options.drafter, DRAFTERS), options.drafter)
    check_model(options.model)
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype: torch.dtype = getattr(torch, options.precision)
    report(f"loading {options.model}")
    loaded = load_target(options.model, device=options.device, dtype=dtype)
    limit = min(options.max_context, int(loaded.model.config.max_position_embeddings))
    target = PackedModel(loaded.model, rows=options.max_requests, limit=limit)
    drafter = build_drafter(options, target)
    profile = None
    if options.profile and drafter is not None:
        profile = measure_profile(
            target,
            drafter,
            max_requests=options.max_requests,
            budget_seconds=options.profile_seconds,
            progress=lambda done, total: report(f"profiling {done} of {total}") if done % 10 == 1 else None,
        )
    adapter = None if drafter is None else adapter_for(identity_of(options, loaded, drafter))
    engine = TorchEngine(
        target, drafter, scheduler, adapter, max_requests=options.max_requests, profile=profile
    )
    return BuiltEngine(engine, loaded.tokenizer, loaded.name, stop_tokens_of(loaded))


def build_drafter(options: EngineOptions, target: PackedModel) -> Drafter | None:
    """Make the drafter that the options name, for a target; None for ``none``."""
    kind, _, variant = options.drafter.partition(":")
    rows, limit = options.max_requests, target.limit
    if options.drafter == "none":
        return None
    if options.drafter in ("self", "self:second"):
        # The packaged head belongs to the small model; for any other the draft's own certainty stands in.
        head = None
        if options.model == SMOLLM2:
            head = SelfDraftHead.packaged("second" if variant else "overfit", target.device)
        name = options.drafter if head is not None else "self"
        return SelfDrafter(rounded_copy(target, rows=rows, limit=limit), head, name=name)
    if options.drafter in ("dspark", "dspark:joint"):
        model = load_drafter_model(
            packaged_drafter(),
            target.embedding,
            target.lm_head,
            confidence="joint" if variant else "refitted",
        )
    else:
        kind = Path(options.drafter).name
        model = load_drafter_model(Path(options.drafter), target.embedding, target.lm_head)
    if max(model.config.target_layer_ids) >= target.layers:
        raise ValueError(
            f"target_layer_ids: got {list(model.config.target_layer_ids)}, "
            f"expected layers of a target with {target.layers}"
        )
    return DSparkDrafter(model, rows=rows, limit=limit, name=kind if not variant else options.drafter)


def identity_of(options: EngineOptions, loaded: LoadedTarget, drafter: Drafter) -> EngineIdentity:
    """What the calibration of this engine belongs to."""
    device = torch.device(options.device)
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return EngineIdentity(
        target=loaded.name,
        target_revision=loaded.revision,
        drafter=drafter.name,
        gamma=drafter.gamma,
        engine="torch",
        engine_version=str(torch.__version__),
        accelerator=accelerator,
        precision=options.precision,
    )


def stop_tokens_of(loaded: LoadedTarget) -> frozenset[int]:
    """Tokens that end a text: those of the model's generation settings and of the tokenizer."""
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(int(t) for t in (*several, loaded.tokenizer.eos_token_id) if t is not None)
