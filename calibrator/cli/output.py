"""What the commands print: one JSON object for machines, tables for people, progress on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

EXIT_WRONG_INPUT = 2

_TABLE_WIDTH = 140
"""Columns of a table in a pipe or file, where no terminal says how wide it is."""

out = Console(highlight=False, emoji=False)
if not out.is_terminal:
    out = Console(highlight=False, emoji=False, width=_TABLE_WIDTH)
err = Console(stderr=True, highlight=False, emoji=False)


class UsageError(Exception):
    """Wrong input of a user: printed as one line on stderr, exit code 2."""


def print_json(value: object) -> None:
    """One JSON object on stdout; figures that are not finite become null."""
    sys.stdout.write(json.dumps(_clean(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that an option names, text as UTF-8.

    Raises
    ------
    UsageError
        Naming the file, whether it could not be opened or the disk is full.
    """
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"{path}: not written: {error.strerror or error}") from error


def print_note(text: str) -> None:
    """Something worth knowing that is no error."""
    err.print(f"note: {text}", markup=False, soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table of figures; status and form are words."""
    built = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for name in columns:
        built.add_column(name, justify="left" if name in ("status", "form") else "right", no_wrap=True)
    for row in rows:
        built.add_row(*row)
    return built


def figure(value: float | None, digits: int = 4) -> str:
    """Format a figure, a dash where it is undefined."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def progress(quiet: bool) -> Progress:
    """Progress bar on stderr; nothing when quiet or when stderr is not a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
