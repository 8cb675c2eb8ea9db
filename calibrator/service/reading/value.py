"""What calibration is worth, as the newest refresh that had rows replayed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from calibrator.store import fleet

NO_CURVE = "no throughput curve could be measured, so there is nothing to replay with"
NO_JUDGEMENT = "too few labels to judge a set, so nothing was replayed"


@dataclass(frozen=True, slots=True)
class ValueReading:
    """Rows of the evidence, and why there are none or with which curve they were replayed.

    ``refresh`` and ``at`` (seconds since 1970) are None before the first refresh that had rows.
    """

    refresh: int | None
    at: float | None
    rows: list[dict[str, Any]]
    reasons: list[str]


def read_value(connection: Connection, deployment_id: int) -> ValueReading:
    """Read it. ``connection`` is of :meth:`Store.read`."""
    judged = fleet.latest_evidence(connection, "value", [deployment_id]).get(deployment_id)
    if judged is None:
        return ValueReading(None, None, [], ["no refresh has had rows yet"])
    replayed = fleet.latest_evidence(connection, "value_curve", [deployment_id]).get(deployment_id)
    # On PostgreSQL a refresh may have ended between the two statements.
    curve = replayed.evidence if replayed and replayed.refresh_id == judged.refresh_id else None
    rows = judged.evidence or []
    if rows:
        reasons = [curve["note"]] if curve and curve["note"] else []
    else:
        reasons = [NO_JUDGEMENT if curve else NO_CURVE]
    return ValueReading(judged.refresh_id, judged.finished, rows, reasons)
