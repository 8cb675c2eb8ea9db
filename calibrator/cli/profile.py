"""``dspark-calibrator profile``: what does a step of every size cost on this machine?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.running import existing_store
from calibrator.core.cost import CostCells, fit_curve
from calibrator.formats.cost_files import encode_cost_curve
from calibrator.formats.sglang_cost import encode_sglang_table
from calibrator.formats.temperatures import FormatError
from calibrator.formats.tensorrt_cost import encode_tensorrt_table
from calibrator.formats.vllm_cost import VllmCurves
from calibrator.store import deployments, parameters
from serving_adapter.contract import CostCurve
from serving_adapter.engines.replay.cost import Machine
from serving_adapter.profiling import StepTimer, profile, unseen_sizes
from serving_adapter.settings import load_settings
from serving_adapter.step_cost import StepCost

ENGINES = ("replay", "torch")
_ENCODERS: dict[str, Callable[[StepCost], bytes]] = {
    "sglang": encode_sglang_table,
    "tensorrt-llm": encode_tensorrt_table,
    "vllm": lambda cost: VllmCurves.from_step_cost(cost).encode(),
}
COST_FORMATS = ("native", *_ENCODERS)


class ReplayTimer:
    """The recorded machine: its times are drawn, not waited for."""

    def __init__(self, seed: int = 0) -> None:
        self._machine = Machine.recorded()
        self._random = np.random.default_rng(seed)

    def time_step(self, requests: int, batch_tokens: int) -> float:  # noqa: ARG002 (its cost is by tokens)
        """Draw the time of a step of that size."""
        return self._machine.step_seconds(batch_tokens, self._random)


def profile_engine(
    engine: Annotated[str, typer.Option(help="Engine binding: replay or torch.")] = "replay",
    out: Annotated[Path | None, typer.Option(help="Write the curve to this file.")] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="Of --out: native, sglang, tensorrt-llm or vllm.")
    ] = "native",
    largest: Annotated[int, typer.Option(min=1, max=65536, help="Largest batch in tokens.")] = 256,
    budget: Annotated[float, typer.Option(min=0.1, help="Seconds that may be spent.")] = 60.0,
    repeats: Annotated[int, typer.Option(min=1, help="Times per size.")] = 15,
    deployment: Annotated[
        str | None,
        typer.Option(help="Drive only the sizes that this deployment's published curve has not measured."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Drive an engine through step sizes that its telemetry has never seen, within a budget of time.

    Examples:

      dspark-calibrator profile --engine replay --out curve.json

      dspark-calibrator profile --engine torch --largest 128 --budget 120 --out sps.json --format sglang
    """
    if engine not in ENGINES:
        raise output.UsageError(f"--engine: got {engine!r}, expected {', '.join(ENGINES)}")
    if file_format not in COST_FORMATS:
        raise output.UsageError(f"--format: got {file_format!r}, expected {', '.join(COST_FORMATS)}")
    sizes = unseen_sizes(largest, None if deployment is None else _published(deployment))
    if not sizes:
        output.out.print("every size is measured already")
        return
    with output.progress(as_json) as bar:
        task = bar.add_task("profiling", total=None)
        measured = profile(
            _timer(engine, largest),
            sizes,
            budget_seconds=budget,
            repeats=repeats,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    fit = fit_curve(CostCells.fold(measured.steps, epoch=0), largest=largest)
    curve = fit.to_contract()
    if out is not None:
        cost = StepCost.from_curve(curve)
        if curve is None or cost is None or not fit.publishable:
            raise output.UsageError(f"{out}: not written: {'; '.join(fit.reasons) or 'no step was timed'}")
        try:
            payload = encode_cost_curve(curve) if file_format == "native" else _ENCODERS[file_format](cost)
        except FormatError as error:
            raise output.UsageError(f"{out}: not written: {error}") from error
        output.write_file(out, payload)
    points: list[dict[str, Any]] = [
        {"batch_tokens": int(b), "seconds": float(s), "status": status, "n_eff": float(n)}
        for b, s, status, n in zip(fit.sizes, fit.seconds, fit.statuses, fit.n_eff, strict=True)
    ]
    if as_json:
        output.print_json(
            {
                "engine": engine,
                "steps": len(measured.steps),
                "skipped": list(measured.skipped),
                "publishable": fit.publishable,
                "reasons": list(fit.reasons),
                "curve": points,
            }
        )
        return
    f = output.figure
    rows = [
        (
            str(p["batch_tokens"]), f(p["seconds"], 5), f(1 / p["seconds"], 2), f(p["n_eff"], 0), p["status"],
        )
        for p in points
    ]  # fmt: skip
    output.out.print(
        output.table(
            f"{engine}: {len(measured.steps)} steps",
            ("batch tokens", "seconds", "steps/s", "n_eff", "status"),
            rows,
        )
    )
    if measured.skipped:
        output.out.print(f"the budget did not reach {', '.join(map(str, measured.skipped))} tokens")
    for reason in fit.reasons:
        output.out.print(f"not publishable: {reason}", markup=False)
    if out is not None:
        output.out.print(f"wrote {out}", markup=False)


def _timer(engine: str, largest: int) -> StepTimer:
    if engine == "replay":
        return ReplayTimer()
    try:
        from serving_adapter.engines.torch.step_timer import TorchStepTimer
    except ImportError as error:
        raise output.UsageError(
            f"--engine: torch needs more: pip install 'dspark-calibrator[engine]' ({error})"
        ) from error
    return TorchStepTimer(largest)


def _published(deployment: str) -> CostCurve | None:
    settings = load_settings()
    with existing_store(settings) as store, store.read() as connection:
        known = deployments.get(connection, deployment)
        if known is None:
            raise output.UsageError(f"--deployment: got {deployment!r}, which the store does not know")
        latest = parameters.in_force(connection, known.id)
    return None if latest is None else latest.document.cost
