"""Parameter files: ours, SGLang's STS file and TensorRT-LLM's.

SGLang: ``{"temperatures": [...], "dataset", "num_samples", "ece_before", "ece_after"}``. TensorRT-LLM
reads the same file with ``sts_temperatures`` (both keys are written) and ``max_draft_len``. Both hold
temperatures only: an affine set is refused here rather than truncated.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrator.core.parameter_set import ParameterSet
from serving_adapter.contract import ContractError, ParameterDocument, decode_document, encode_document, seal
from serving_adapter.contract.parameter_set import MAX_TEMPERATURE, MIN_TEMPERATURE
from serving_adapter.contract.parameters import MAX_DOCUMENT_BYTES
from serving_adapter.contract.rounds import MAX_GAMMA

FileFormat = Literal["native", "sglang", "tensorrt-llm"]
FILE_FORMATS: tuple[FileFormat, ...] = ("native", "sglang", "tensorrt-llm")


class FormatError(ValueError):
    """A file that is not what it should be, or a set that a format cannot hold."""


def encode_file(
    document: ParameterDocument, file_format: FileFormat, *, dataset: str = "", num_samples: int = 0
) -> bytes:
    """Encode a parameter set for one engine's loader.

    Raises
    ------
    FormatError
        When the set has offsets and the format cannot hold them.
    """
    if file_format == "native":
        return encode_document(seal(document)) + b"\n"
    if document.form != "temperature":
        raise FormatError(
            f"form: got {document.form}, expected temperature: {file_format} files hold no offsets; "
            "fit again with --form temperature"
        )
    evidence = document.evidence
    content: dict[str, Any] = {
        "temperatures": list(document.temperatures),
        "dataset": dataset,
        "num_samples": num_samples,
        "ece_before": _figures(evidence.ece_before if evidence else []),
        "ece_after": _figures(evidence.ece_after if evidence else []),
    }
    if file_format == "tensorrt-llm":
        content = {
            "sts_temperatures": content["temperatures"],
            "max_draft_len": document.gamma,
            **content,
        }
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_parameters(path: Path) -> ParameterSet:
    """Read any of the formats.

    Raises
    ------
    FormatError
        Naming file, field and value.
    """
    try:
        with path.open("rb") as file:
            payload = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    if len(payload) > MAX_DOCUMENT_BYTES:
        raise FormatError(f"{path}: more than {MAX_DOCUMENT_BYTES} bytes, expected a parameter file")
    return decode_parameters(str(path), payload)


def decode_parameters(where: str, payload: bytes) -> ParameterSet:
    """Decode any of the formats; ``where`` is what messages call it.

    Raises
    ------
    FormatError
        Naming field and value.
    """
    try:
        content = json.loads(payload, parse_int=read_integer)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise FormatError(f"{where}: got a JSON {type(content).__name__}, expected an object")
    if "schema" in content:
        try:
            document = decode_document(payload)
        except ContractError as error:
            raise FormatError(f"{where}: {error}") from error
        return ParameterSet.of(document)
    given = [name for name in ("temperatures", "sts_temperatures") if name in content]
    if given:
        return _only_set(where, content, given)
    raise FormatError(
        f"{where}: got keys {sorted(content)[:6]}, expected temperatures, sts_temperatures or schema"
    )


def read_integer(digits: str) -> int | float:
    """Read an integer of JSON; one beyond any use becomes a float, perhaps infinity, like other numbers.

    >>> read_integer("7"), read_integer("9" * 400)
    (7, inf)
    """
    return int(digits) if len(digits) < 19 else float(digits)


def _only_set(where: str, content: dict[str, Any], given: list[str]) -> ParameterSet:
    """What both keys, and the length beside them, agree on."""
    sets = [_temperatures(where, name, content[name]) for name in given]
    first = sets[0].temperatures
    if any(not np.array_equal(first, other.temperatures) for other in sets[1:]):
        raise FormatError(
            f"{where}: temperatures and sts_temperatures differ, expected the same list in both"
        )
    if "max_draft_len" in content:
        length = content["max_draft_len"]
        if isinstance(length, bool) or not isinstance(length, int) or length != len(first):
            raise FormatError(
                f"{where}: max_draft_len: got {length!r:.60}, expected {len(first)}, one per temperature"
            )
    return sets[0]


def _temperatures(where: str, name: str, value: Any) -> ParameterSet:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_GAMMA:
        raise FormatError(
            f"{where}: {name}: got {value!r:.60}, expected a list of 1 to {MAX_GAMMA} temperatures"
        )
    for k, item in enumerate(value, start=1):
        usable = isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
        if not usable or not MIN_TEMPERATURE <= item <= MAX_TEMPERATURE:
            raise FormatError(
                f"{where}: {name}: position {k}: got {item!r:.60}, "
                f"expected a number in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
            )
    return ParameterSet("temperature", np.array(value, dtype=np.float64), np.zeros(len(value)))


def _figures(values: list[float | None]) -> list[float]:
    """Peers' loaders know no null: without a figure for every position the list stays empty."""
    known = [v for v in values if v is not None]
    return known if len(known) == len(values) else []
