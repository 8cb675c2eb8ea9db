"""A published version as a file for one engine's loader; refitted where the file can say less than the set.

Files of SGLang and TensorRT-LLM hold temperatures only. What an affine set says cannot be said by its
temperatures alone, so such an export is fitted anew in the temperature form, once for each version
(:mod:`calibrator.service.temperature_export`): a version never changes, nor does a file of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from calibrator.core.candidate import ProposalOptions
from calibrator.formats.cost_files import encode_cost_curve
from calibrator.formats.sglang_cost import encode_sglang_table
from calibrator.formats.temperatures import FileFormat, FormatError, encode_file
from calibrator.formats.tensorrt_cost import encode_tensorrt_table
from calibrator.formats.vllm_cost import VllmCurves
from calibrator.service.temperature_export import ExportRefusedError, TemperatureExport
from calibrator.store import deployments, parameters, sample
from calibrator.store.deployments import Deployment
from calibrator.store.store import Store
from serving_adapter.contract import CostCurve, ParameterDocument, encode_document
from serving_adapter.step_cost import StepCost

ExportFormat = Literal[
    "document", "sglang", "tensorrt", "tensorrt-llm", "cost", "sglang-cost", "tensorrt-cost", "vllm-cost"
]
EXPORT_FORMATS: tuple[ExportFormat, ...] = (
    "document", "sglang", "tensorrt", "tensorrt-llm", "cost", "sglang-cost", "tensorrt-cost", "vllm-cost",
)  # fmt: skip

_TEMPERATURE_FILES: dict[str, FileFormat] = {
    "sglang": "sglang", "tensorrt": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm",
}  # fmt: skip
_COST_FILES: dict[str, Callable[[StepCost], bytes]] = {
    "sglang-cost": encode_sglang_table,
    "tensorrt-cost": encode_tensorrt_table,
    "vllm-cost": lambda cost: VllmCurves.from_step_cost(cost).encode(),
}


@dataclass(frozen=True, slots=True)
class Export:
    """A file: its bytes, how to serve it, and what a reader must know (such as a refit)."""

    content: bytes
    media_type: str
    filename: str
    notes: tuple[str, ...] = ()


def export_version(
    store: Store,
    deployment: str,
    version: int,
    file_format: ExportFormat,
    *,
    now: float,
    options: ProposalOptions | None = None,
    half_life_seconds: float | None = None,
) -> Export:
    """Export one stored version.

    Parameters
    ----------
    store
        Where versions and rows are.
    deployment, version
        Which.
    file_format
        ``document`` is exactly what replicas read. ``sglang`` and ``tensorrt`` are temperature files, the
        others the cost curve.
    now
        Seconds since 1970. A version that was not made by a refresh is refitted when it is first asked for,
        and that fit is kept: rows are weighed by their age then.
    options, half_life_seconds
        Of a refit; the refresh's.

    Raises
    ------
    KeyError
        No such deployment or version.
    ExportRefusedError
        With the reason: no rows to refit from, too few, or no curve.
    """
    with store.read() as connection:
        known = deployments.get(connection, deployment)
        document = None if known is None else parameters.get(connection, known.id, version)
    if known is None or document is None:
        raise KeyError(deployment if known is None else version)
    name = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', deployment).strip('-') or 'parameters'}-v{version}"
    if file_format == "document":
        return Export(encode_document(document), "application/json", f"{name}.json")
    if file_format not in _TEMPERATURE_FILES:
        return Export(_cost(document.cost, file_format), "application/json", f"{name}-{file_format}.json")

    notes: list[str] = []
    dataset = f"{deployment} version {version}"
    if document.segments:
        notes.append(f"{len(document.segments)} sets per segment are left out: the format holds one set")
    if document.form != "temperature":
        kept = _kept_refit(store, known, document, now, options, half_life_seconds)
        document = kept.document(document)
        dataset = f"{dataset}: {kept.dataset}"
        notes += kept.notes
    content = encode_file(
        document,
        _TEMPERATURE_FILES[file_format],
        dataset=dataset,
        num_samples=document.evidence.rounds if document.evidence else 0,
    )
    return Export(content, "application/json", f"{name}-{file_format}.json", tuple(notes))


def _kept_refit(
    store: Store,
    deployment: Deployment,
    document: ParameterDocument,
    now: float,
    options: ProposalOptions | None,
    half_life_seconds: float | None,
) -> TemperatureExport:
    """The refit of that version: made with it, or now and for good. Of two at once the first is kept."""
    with store.read() as connection:
        kept = parameters.temperature_export(connection, deployment.id, document.version)
        if kept is not None:
            return TemperatureExport.from_builtins(kept)
        rows = sample.load(
            connection, deployment.id, document.gamma, now,
            fingerprint=document.fingerprint, half_life_seconds=half_life_seconds,
        )  # fmt: skip
    made = TemperatureExport.fit(document, rows.rounds, rows.weights, options, at=now, when="first export")
    with store.write() as connection:
        parameters.keep_temperature_export(connection, deployment.id, document.version, made.to_builtins())
        kept = parameters.temperature_export(connection, deployment.id, document.version)
    assert kept is not None
    return TemperatureExport.from_builtins(kept)


def _cost(curve: CostCurve | None, file_format: ExportFormat) -> bytes:
    if curve is None:
        raise ExportRefusedError("the version carries no cost curve")
    if file_format == "cost":
        return encode_cost_curve(curve)
    cost = StepCost.from_curve(curve)
    if cost is None:
        raise ExportRefusedError("the curve of the version holds nothing that was measured")
    try:
        return _COST_FILES[file_format](cost)
    except FormatError as error:
        raise ExportRefusedError(str(error)) from error
