"""Tables of drift, of step costs and of the throughput ledger."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    SmallInteger,
    String,
    Table,
    Text,
)

from calibrator.core.cost.drift import DRIFT_SUMS
from calibrator.core.drift.sums import COLUMNS
from calibrator.core.throughput_ledger import LEDGER_SUMS
from calibrator.store.schema.base import RowId, deployment_column, metadata


def _owner() -> Column[int]:
    return Column("deployment_id", RowId, ForeignKey("deployments.id"), primary_key=True, autoincrement=False)


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


drift_sums = Table(
    "drift_sums",
    metadata,
    _owner(),
    # The version that predicted these rows: evidence is about a set, whenever its rows arrive.
    _key("version"),
    Column("segment_id", RowId, ForeignKey("segments.id"), primary_key=True, autoincrement=False),
    Column("position", SmallInteger, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False) for name in COLUMNS),
)
"""Growing evidence of calibration and acceptance drift (:class:`calibrator.core.drift.DriftSums`)."""

cost_drift = Table(
    "cost_drift",
    metadata,
    _owner(),
    _key("start"),
    _key("regime"),
    _key("context"),
    _key("bin"),
    *(Column(name, BigInteger, nullable=False) for name in DRIFT_SUMS),
)
"""Steps by measured over predicted time and window (:class:`calibrator.core.cost.DriftCells`)."""

cost_totals = Table(
    "cost_totals",
    metadata,
    _owner(),
    _key("regime"),
    _key("context"),
    _key("bin"),
    *(Column(name, BigInteger, nullable=False) for name in DRIFT_SUMS),
)
"""``cost_drift`` over all time, kept in the same transaction: an alarm reads what was added to it."""

ledger_sums = Table(
    "ledger_sums",
    metadata,
    _owner(),
    _key("start"),
    _key("load"),  # smallest number of requests in the batch of this load; 0: rounds without their step
    *(Column(name, BigInteger, nullable=False) for name in LEDGER_SUMS),
)
"""The throughput ledger per window (:class:`calibrator.core.throughput_ledger.LedgerSums`)."""

drift_state = Table(
    "drift_state",
    metadata,
    _owner(),
    Column("revision", BigInteger, nullable=False),  # compare-and-set
    Column("evaluated_at", Double, nullable=False),
    Column("state", JSON, nullable=False),
)
"""How far the evidence of each deployment has been read, and what the alarms made of it."""

episodes = Table(
    "episodes",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("kind", String(16), nullable=False),  # calibration, acceptance, traffic or cost
    Column("segment", String(128)),
    Column("position", SmallInteger),
    Column("load_regime", BigInteger),
    Column("context_bucket", BigInteger),
    Column("direction", String(8)),  # above, below, slower or faster
    Column("started_at", Double, nullable=False),
    Column("alarmed_at", Double, nullable=False),
    Column("ended_at", Double),  # null while it lasts
    Column("gap", Double),
    Column("summary", Text, nullable=False),
    Column("remedy", Text, nullable=False),
    Column("version", BigInteger),  # of the parameters that were watched
    Index(None, "deployment_id", "ended_at"),
    Index(None, "ended_at"),
)
"""Stretches of time in which something had drifted."""
