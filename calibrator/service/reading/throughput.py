"""The throughput ledger over time and by load."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from calibrator.core.throughput_ledger import LedgerFigures, LedgerSums
from calibrator.service.reading.ranges import Steps
from calibrator.store import ledger_sums


@dataclass(frozen=True, slots=True)
class Ledger:
    """Figures of a range: all together, by load (ascending), and per point (None where nothing ran)."""

    total: LedgerFigures
    by_load: list[LedgerFigures]
    series: list[tuple[int, LedgerFigures | None]]


def throughput_ledger(connection: Connection, deployment_id: int, steps: Steps) -> Ledger:
    """Read the ledger of a range by one aggregate query."""
    points = ledger_sums.query(connection, deployment_id, steps.start, steps.end, steps.step)
    total = LedgerSums.zeros()
    for point in points:
        total = total + point.sums
    by_start = {point.start: point.sums.figures() for point in points}
    return Ledger(
        total=total.figures(),
        by_load=list(total.by_load()),
        series=[(start, by_start.get(start)) for start in steps.starts],
    )
