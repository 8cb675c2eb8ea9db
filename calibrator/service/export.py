"""A published version as a file for one engine's loader; refitted where the file can say less than the set.

Files of SGLang and TensorRT-LLM hold temperatures only. What an affine set says cannot be said by its
temperatures alone, so such an export is fitted anew in the temperature form from the stored rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions, build_candidate
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import position_report
from calibrator.formats.cost_files import encode_cost_curve
from calibrator.formats.sglang_cost import encode_sglang_table
from calibrator.formats.temperatures import FileFormat, FormatError, encode_file
from calibrator.formats.tensorrt_cost import encode_tensorrt_table
from calibrator.formats.vllm_cost import VllmCurves
from calibrator.store import deployments, parameters, sample
from calibrator.store.store import Store
from serving_adapter.contract import CostCurve, Evidence, ParameterDocument, Rounds, encode_document
from serving_adapter.step_cost import StepCost

ExportFormat = Literal["document", "sglang", "tensorrt", "cost", "sglang-cost", "tensorrt-cost", "vllm-cost"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = (
    "document", "sglang", "tensorrt", "cost", "sglang-cost", "tensorrt-cost", "vllm-cost",
)  # fmt: skip

_TEMPERATURE_FILES: dict[str, FileFormat] = {"sglang": "sglang", "tensorrt": "tensorrt-llm"}
_COST_FILES: dict[str, Callable[[StepCost], bytes]] = {
    "sglang-cost": encode_sglang_table,
    "tensorrt-cost": encode_tensorrt_table,
    "vllm-cost": lambda cost: VllmCurves.from_step_cost(cost).encode(),
}


class ExportRefusedError(Exception):
    """The version cannot be said in that format; the message says why."""


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
        Seconds since 1970: a refit weighs rows by age.
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
    if document.segments:
        notes.append(f"{len(document.segments)} sets per segment are left out: the format holds one set")
    if document.form != "temperature":
        with store.read() as connection:
            rows = sample.load(
                connection, known.id, document.gamma, now,
                fingerprint=document.fingerprint, half_life_seconds=half_life_seconds,
            )  # fmt: skip
        document, refit_notes = refit_as_temperatures(document, rows.rounds, rows.weights, options)
        notes += refit_notes
    content = encode_file(
        document,
        _TEMPERATURE_FILES[file_format],
        dataset=f"{deployment} version {version}",
        num_samples=document.evidence.rounds if document.evidence else 0,
    )
    return Export(content, "application/json", f"{name}-{file_format}.json", tuple(notes))


def refit_as_temperatures(
    document: ParameterDocument,
    rounds: Rounds,
    weights: NDArray[np.float64],
    options: ProposalOptions | None = None,
) -> tuple[ParameterDocument, Sequence[str]]:
    """Fit the temperature form to the rows; positions without evidence keep the identity.

    Returns
    -------
    The document with that fit and its own evidence (not sealed: it is no version), and notes.

    Raises
    ------
    ExportRefusedError
        No rows, or no position that the rows say enough about.
    """
    refused = f"version {document.version} is affine, and temperatures alone would say something else"
    if not len(rounds):
        raise ExportRefusedError(f"{refused}: no rows are stored to refit from")
    options = replace(options or ProposalOptions(), max_log_step=np.inf)
    weights = weights / weights.mean()
    identity = ParameterSet.identity(rounds.gamma)
    candidate = build_candidate("temperature", rounds, weights, identity, options)
    kept = [f"position {g.position}: {reason}" for g in candidate.gates for reason in g.reasons]
    if not candidate.changed:
        raise ExportRefusedError(f"{refused}: no position can be refitted ({kept[0]})")

    def report(chosen: ParameterSet) -> list[float | None]:
        survival = chosen.survival(rounds)
        figures = position_report(
            survival, rounds, options.bins, options.end_of_sequence, options.clip, weights
        )
        return [figure.ece for figure in figures]

    chosen = candidate.parameters
    refitted = msgspec.structs.replace(
        document,
        form="temperature",
        temperatures=chosen.temperatures.tolist(),
        offsets=chosen.offsets.tolist(),
        segments=[],
        evidence=Evidence(
            window="refitted from the weighted sample",
            rounds=len(rounds),
            n_eff=[g.n_eff for g in candidate.gates],
            ece_before=report(identity),
            ece_after=report(chosen),
            status=[g.status for g in candidate.gates],
        ),
        digest="",
        signature="",
    )
    note = f"refitted in the temperature form from {len(rounds)} rows, for the version is affine"
    return refitted, [note, *(f"{reason}, so it keeps temperature 1" for reason in kept)]


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
