"""Our own file format: one array per column of the verify events."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from collectors.errors import RecordError
from serving_adapter.contract import ContractError, Rounds
from serving_adapter.contract.rounds import MAX_GAMMA, POSITION_COLUMNS, ROUND_COLUMNS

_COLUMNS = (*ROUND_COLUMNS, *POSITION_COLUMNS)
_MAX_LABELS = 65_536


def read_npz(path: Path, max_bytes: int) -> tuple[Rounds, list[str], bool]:
    """Read the contract's columns of an ``.npz``; other arrays are left alone.

    Headers are compared with each other and with the sizes in the archive before anything is unpacked, and
    nothing is ever unpickled.

    Raises
    ------
    RecordError
        Naming the column, and the row and position where there is one.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = [name for name in (*_COLUMNS, "segments") if name in members]
            for name in ("logits", "accepted"):
                if name not in members:
                    raise RecordError(path, f"{name}: missing, expected an array of that name")
            declared = sum(members[name].file_size for name in wanted)
            if declared > max_bytes:
                raise RecordError(path, f"got {declared} bytes unpacked, expected at most {max_bytes}")
            headers = {name: _read_header(path, archive, members[name], name) for name in wanted}
            _check_shapes(path, {name: header.shape for name, header in headers.items()})
            arrays = {name: _read_array(path, archive, members[name], name, headers[name]) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise RecordError(path, f"not a readable .npz archive ({error})") from error
    labels = arrays.pop("segments", None)
    try:
        rounds = Rounds.build(**arrays, segments=_labels(path, labels))
    except ContractError as error:
        raise RecordError(path, str(error)) from error
    if not len(rounds):
        raise RecordError(path, "logits: got no rows, expected at least one")
    return rounds, [], "request" not in arrays


class _Header(NamedTuple):
    """What a ``.npy`` says of itself; its data begins at ``offset``."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    size: int


def _read_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> _Header:
    with archive.open(info) as file:
        stream = cast("BinaryIO", file)
        try:
            version = npy.read_magic(stream)
            if version == (1, 0):
                shape, fortran, dtype = npy.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, fortran, dtype = npy.read_array_header_2_0(stream)
            else:
                raise RecordError(path, f"{name}: got .npy version {version}, expected 1.0 or 2.0")
        except ValueError as error:
            raise RecordError(path, f"{name}: not a .npy array ({error})") from error
        if dtype.hasobject:
            raise RecordError(path, f"{name}: got an array of Python objects, expected numbers")
        if dtype.kind not in ("U" if name == "segments" else "biuf") or dtype.itemsize == 0:
            raise RecordError(
                path, f"{name}: got type {dtype}, expected {'labels' if name == 'segments' else 'numbers'}"
            )
        if any(length < 0 for length in shape):
            raise RecordError(path, f"{name}: got shape {shape}, expected lengths of at least 0")
        size = math.prod(shape) * dtype.itemsize
        if file.tell() + size != info.file_size:
            raise RecordError(
                path, f"{name}: got {info.file_size} bytes, expected {file.tell() + size} for shape {shape}"
            )
        return _Header(shape, fortran, dtype, file.tell(), size)


def _check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the columns, as :meth:`Rounds.build` does; here a few bytes of each are enough."""
    logits = shapes["logits"]
    try:
        if len(logits) != 2:
            raise ContractError("logits", f"shape {logits}", "shape [rows, gamma]")
        rows, gamma = logits
        if not 1 <= gamma <= MAX_GAMMA:
            raise ContractError("gamma", gamma, f"1 to {MAX_GAMMA} draft positions")
        for name, shape in shapes.items():
            if name in ROUND_COLUMNS and shape not in ((), (rows,)):
                raise ContractError(name, f"shape {shape}", f"shape [{rows}]")
            if name in POSITION_COLUMNS and shape != logits:
                raise ContractError(name, f"shape {shape}", f"shape [{rows}, {gamma}]")
    except ContractError as error:
        raise RecordError(path, str(error)) from error
    labels = shapes.get("segments", (0,))
    if len(labels) != 1 or labels[0] > _MAX_LABELS:
        raise RecordError(path, f"segments: got shape {labels}, expected at most {_MAX_LABELS} labels")


def _read_array(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, header: _Header
) -> NDArray[Any]:
    with archive.open(info) as file:
        file.read(header.offset)
        data = file.read(header.size)
    if len(data) != header.size:
        raise RecordError(path, f"{name}: got {len(data)} bytes, expected {header.size}")
    order = "F" if header.fortran else "C"
    return np.frombuffer(data, dtype=header.dtype).reshape(header.shape, order=cast("Any", order))


def _labels(path: Path, labels: NDArray[Any] | None) -> list[str]:
    if labels is None:
        return []
    try:
        return [str(label) for label in labels.tolist()]
    except ValueError as error:  # code points that do not exist
        raise RecordError(path, f"segments: not text ({error})") from error
