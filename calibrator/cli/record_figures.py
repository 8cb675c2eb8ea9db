"""Figures of record for commands: beside the plain ECE, or the bounds where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrator.cli.output import figure, table
from calibrator.core.explored_share import explored_share
from calibrator.core.record import RecordFigure
from calibrator.core.report import PositionReport
from calibrator.core.status import Status
from serving_adapter.contract import Rounds

_SEVERITY: dict[Status, int] = {"ok": 0, "degenerate": 1, "insufficient": 2, "censored": 3}


def explore_notes(rounds: Rounds) -> tuple[str, ...]:
    """What is wrong with the exploration that rows claim; empty if nothing is."""
    share = explored_share(rounds)
    return (share.note,) if share.contradicted else ()


def status_of(plain: PositionReport, record: RecordFigure) -> Status:
    """The worse of the two: what a position says of the traffic."""
    rank = {name: _SEVERITY.get(name, 1) for name in (plain.status, record.status)}
    return plain.status if rank[plain.status] >= rank[record.status] else record.status


def shown(plain: PositionReport, record: RecordFigure) -> tuple[str, str]:
    """Figure of record and its interval as text; without one the bounds that missing labels allow."""
    if record.ece is None and plain.ece_low is not None:
        return "-", f"bounds [{figure(plain.ece_low)}, {figure(plain.ece_high)}]"
    if record.ece_low is None:
        return figure(record.ece), "-"
    return figure(record.ece), f"[{figure(record.ece_low)}, {figure(record.ece_high)}]"


def mean_of_record(records: Sequence[RecordFigure]) -> float | None:
    """Mean over the positions that have one; None if none has."""
    values = [r.ece for r in records if r.ece is not None]
    return float(np.mean(values)) if values else None


def record_table(
    plain: Sequence[PositionReport],
    records: Sequence[RecordFigure],
    before: Sequence[RecordFigure] | None = None,
) -> object:
    """Lay out figures of record, one row per position; ``before`` adds those under other parameters."""
    columns = ["pos", "requests", "explored", "ECE of record", "interval", "status"]
    rows = [
        [str(r.position), f"{r.requests:,}", f"{r.explored:,.0f}", *shown(p, r), status_of(p, r)]
        for p, r in zip(plain, records, strict=True)
    ]
    if before is not None:
        columns.insert(3, "before")
        for row, earlier in zip(rows, before, strict=True):
            row.insert(3, figure(earlier.ece))
    return table("figure of record: doubly robust, noise taken out, 95 % intervals", columns, rows)
