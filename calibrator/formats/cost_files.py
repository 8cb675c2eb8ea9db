"""Read a cost curve from any file that holds one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from calibrator.core.cost import CostCells, fit_curve
from calibrator.formats.cost_model import CostModel, checked_cost, read_numbers, read_sizes
from calibrator.formats.sglang_cost import decode_sglang_additive, decode_sglang_table
from calibrator.formats.temperatures import FormatError, read_integer
from calibrator.formats.tensorrt_cost import decode_tensorrt_table
from calibrator.formats.vllm_cost import VllmCurves
from serving_adapter.contract import ContractError, CostCurve, Steps, decode_document
from serving_adapter.step_cost import StepCost

MAX_COST_BYTES = 16 * 1024 * 1024


def encode_cost_curve(curve: CostCurve) -> bytes:
    """Encode a curve as it stands in a parameter document."""
    return msgspec.json.format(msgspec.json.encode(curve), indent=1) + b"\n"


def read_cost(path: Path) -> CostModel:
    """Read a cost curve, whatever the format.

    A table of measured steps (``.csv`` with columns ``batch_tokens``, ``seconds`` and perhaps
    ``requests``) is fitted; a parameter document or a bare cost curve, SGLang's two files,
    TensorRT-LLM's table and vLLM's curves are taken at their word, once checked.

    Raises
    ------
    FormatError
        One line with the file, the field and the reason.
    """
    try:
        with path.open("rb") as file:
            payload = file.read(MAX_COST_BYTES + 1)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    if len(payload) > MAX_COST_BYTES:
        raise FormatError(f"{path}: more than {MAX_COST_BYTES} bytes, expected a cost file")
    if path.suffix.lower() == ".csv":
        return CostModel.of(_samples(str(path), payload))
    return decode_cost(str(path), payload)


def decode_cost(where: str, payload: bytes) -> CostModel:
    """Decode any of the JSON formats; ``where`` is what messages call it.

    Raises
    ------
    FormatError
        One line with the field and the reason.
    """
    try:
        content = json.loads(payload, parse_int=read_integer)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: neither .csv nor JSON ({error})") from error
    if not isinstance(content, dict):
        raise FormatError(f"{where}: got a JSON {type(content).__name__}, expected an object")
    return _decode(where, payload, content)


def _decode(where: str, payload: bytes, content: dict[str, Any]) -> CostModel:
    if "schema" in content:
        try:
            curve = decode_document(payload).cost
        except ContractError as error:
            raise FormatError(f"{where}: {error}") from error
        return _curve(where, curve)
    if "sample_batch_tokens" in content:
        return decode_sglang_table(where, content)
    if "bias_seconds" in content:
        return decode_sglang_additive(where, content)
    if "token_counts" in content:
        return decode_tensorrt_table(where, content)
    if "verify_curve" in content:
        return VllmCurves.decode(where, content).model(where)
    if "batch_tokens" in content:
        sizes = read_sizes(where, content, "batch_tokens")
        read_numbers(where, content, "seconds", len(sizes))
        try:
            return _curve(where, msgspec.json.decode(payload, type=CostCurve))
        except (ContractError, msgspec.ValidationError) as error:
            raise FormatError(f"{where}: {error}") from error
    raise FormatError(
        f"{where}: got keys {sorted(content)[:6]}, expected a parameter document, batch_tokens (native), "
        "sample_batch_tokens or bias_seconds (SGLang), token_counts (TensorRT-LLM) or verify_curve (vLLM)"
    )


def _curve(where: str, curve: CostCurve | None) -> CostModel:
    cost = StepCost.from_curve(curve)
    if cost is None:
        status = "no cost curve" if curve is None else f"sizes are {', '.join(sorted(set(curve.status)))}"
        raise FormatError(f"{where}: {status}: nothing was measured")
    return CostModel.of(checked_cost(where, cost.batch_tokens.tolist(), cost.at_sizes, cost.interpolation))


def _samples(where: str, payload: bytes) -> StepCost:
    try:
        rows = list(csv.DictReader(io.StringIO(payload.decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{where}: not a table ({error})") from error
    if not rows or not {"batch_tokens", "seconds"} <= set(rows[0]):
        found = ", ".join(str(k) for k in (rows[0] if rows else []))
        raise FormatError(f"{where}: got columns {found or 'none'}, expected batch_tokens and seconds")
    columns: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
    for name in ("batch_tokens", "seconds", "requests"):
        if name not in rows[0]:
            continue
        try:
            columns[name] = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError) as error:
            raise FormatError(f"{where}: {name}: {error}") from error
    try:
        steps = Steps.build(
            step_seconds=columns["seconds"],
            batch_tokens=columns["batch_tokens"],
            requests=columns.get("requests", np.ones(len(rows))),
        )
    except ContractError as error:
        raise FormatError(f"{where}: {error}") from error
    fit = fit_curve(CostCells.fold(steps, epoch=0))
    if not fit.publishable:
        raise FormatError(f"{where}: no usable curve: {fit.reasons[0]}")
    cost = StepCost.from_curve(fit.to_contract())
    assert cost is not None  # publishable implies measured sizes
    return cost
