"""Shards of SGLang's calibration collector: torch files ``{"logits", "prefix_mask"}``, both [n, gamma]."""

from __future__ import annotations

import importlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.formats.record_checks import check_records
from calibrator.formats.temperatures import FormatError
from collectors.errors import RecordError
from serving_adapter.contract import ContractError, Rounds

TRIMMED_NOTE = (
    "SGLang shards do not say what was verified: every position is taken as verified. Labels are wrong where "
    "the planner trimmed drafts; use shards that were recorded with full verification."
)


def read_shard(path: Path) -> tuple[Rounds, list[str], bool]:
    """Read one shard; only tensors are loaded, no pickled code runs.

    Raises
    ------
    RecordError
        When PyTorch is missing, or naming the field, row and position.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise RecordError(
            path, "reading .pt files needs PyTorch: pip install 'dspark-calibrator[torch]'"
        ) from error
    try:
        with warnings.catch_warnings():
            # What PyTorch remarks about a damaged pickle is said below, in one line.
            warnings.simplefilter("ignore")
            shard = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, TypeError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise RecordError(path, f"not a torch file of tensors ({reason})") from error
    except Exception as error:  # the unpickler raises whatever a damaged file leads it to
        raise RecordError(path, f"not a torch file of tensors ({type(error).__name__})") from error
    if not isinstance(shard, dict):
        raise RecordError(path, f"got {type(shard).__name__}, expected a dict with logits and prefix_mask")
    logits = _matrix(path, torch, shard, "logits")
    mask = _matrix(path, torch, shard, "prefix_mask")
    if logits.shape != mask.shape:
        raise RecordError(path, f"prefix_mask: got shape {mask.shape}, expected {logits.shape} as logits")
    if not len(logits):
        raise RecordError(path, "logits: got no rows, expected at least one")
    wrong = (mask != 0) & (mask != 1)
    _refuse(path, mask, wrong, "expected 0 or 1")
    rising = np.zeros_like(wrong)
    rising[:, 1:] = mask[:, 1:] > mask[:, :-1]
    _refuse(path, mask, rising, "expected a prefix mask, never rising")
    try:
        check_records(logits, mask, where="logits")
    except FormatError as error:
        raise RecordError(path, str(error)) from error
    try:
        rounds = Rounds.build(logits, mask.sum(axis=1).astype(np.int64))
    except ContractError as error:
        raise RecordError(path, str(error)) from error
    return rounds, [TRIMMED_NOTE], True


def _matrix(path: Path, torch: Any, shard: dict[Any, Any], name: str) -> NDArray[np.float64]:
    tensor = shard.get(name)
    if not isinstance(tensor, torch.Tensor):
        raise RecordError(path, f"{name}: got {type(tensor).__name__}, expected a tensor [rows, gamma]")
    if tensor.ndim != 2 or tensor.is_complex() or tensor.layout != torch.strided:
        raise RecordError(path, f"{name}: got shape {tuple(tensor.shape)}, expected [rows, gamma]")
    # Expanded tensors are small on disk and large in memory.
    if tensor.numel() > 4 * path.stat().st_size:
        raise RecordError(path, f"{name}: got shape {tuple(tensor.shape)}, more than the file holds")
    array: NDArray[np.float64] = tensor.detach().to(torch.float64).numpy()
    return array


def _refuse(path: Path, mask: NDArray[np.float64], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        row, position = (int(i) for i in np.argwhere(wrong)[0])
        raise RecordError(
            path, f"prefix_mask: row {row}, position {position + 1}: got {mask[row, position]:g}, {expected}"
        )
