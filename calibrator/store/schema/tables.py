"""Tables of ingest and calibration: windows, samples, ledgers, positions, parameter versions, refreshes."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from calibrator.core.windows import BIN_SUMS, SCALARS, WINDOW_BINS
from calibrator.store.schema.base import RowId, deployment_column, metadata
from serving_adapter.contract.steps import STEP_COLUMNS

SUM_COLUMNS: tuple[str, ...] = (
    *SCALARS,
    *(f"bin_{name}_{b:02d}" for name in BIN_SUMS for b in range(WINDOW_BINS)),
)
"""Additive BIGINT columns of a window, in the order of ``WindowSums.scalars`` and ``.bins``."""


deployments = Table(
    "deployments",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("gamma", SmallInteger, nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("settings", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("frozen", Boolean, nullable=False, server_default=false()),
)

segments = Table(
    "segments",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("name", String(128), nullable=False),
    UniqueConstraint("deployment_id", "name"),
)


def _window_table(name: str, *indexes: Index) -> Table:
    # The key begins with what every query restricts (deployment and time), so that one range scan of its
    # index answers it, and retention deletes from one end.
    return Table(
        name,
        metadata,
        Column("deployment_id", RowId, ForeignKey("deployments.id"), primary_key=True, autoincrement=False),
        Column("start", BigInteger, primary_key=True, autoincrement=False),
        Column("segment_id", RowId, ForeignKey("segments.id"), primary_key=True, autoincrement=False),
        Column("sampling", String(8), primary_key=True),
        Column("position", SmallInteger, primary_key=True, autoincrement=False),
        *(Column(column, BigInteger, nullable=False) for column in SUM_COLUMNS),
        *indexes,
    )


def _pooled_table(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("deployment_id", RowId, ForeignKey("deployments.id"), primary_key=True, autoincrement=False),
        Column("start", BigInteger, primary_key=True, autoincrement=False),
        Column("position", SmallInteger, primary_key=True, autoincrement=False),
        *(Column(column, BigInteger, nullable=False) for column in SUM_COLUMNS),
    )


windows = _window_table("windows")
"""Sums per window under the parameters that were in force."""
raw_windows = _window_table("raw_windows")
"""Sums per window under the identity (T = 1, b = 0)."""
window_hours = _window_table("window_hours", Index(None, "deployment_id", "segment_id", "start"))
"""``windows`` added up by the hour, kept in the same transaction."""
raw_window_hours = _window_table("raw_window_hours", Index(None, "deployment_id", "segment_id", "start"))
"""``raw_windows`` added up by the hour."""
pooled_hours = _pooled_table("pooled_hours")
"""``window_hours`` added up over segments and sampling buckets: a month is a few thousand narrow reads."""
raw_pooled_hours = _pooled_table("raw_pooled_hours")
"""``raw_window_hours`` added up the same way."""

sample_state = Table(
    "sample_state",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("segment_id", RowId, ForeignKey("segments.id"), nullable=False),
    Column("sampling", String(8), nullable=False),
    Column("half_life_seconds", Double, nullable=False),
    Column("threshold", Double),  # null: every row offered so far was kept
    Column("kept", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
    UniqueConstraint("deployment_id", "segment_id", "sampling"),
)

sample_rows = Table(
    "sample_rows",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("stratum_id", RowId, ForeignKey("sample_state.id"), nullable=False),
    Column("priority", Double, nullable=False),
    Column("arrival", Double, nullable=False),
    Column("boot_id", RowId, ForeignKey("boots.id"), nullable=False),
    Column("row_number", BigInteger, nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("share", Double, nullable=False),
    Column("request", BigInteger, nullable=False),  # the u64 hash, reinterpreted as signed
    Column("step", BigInteger, nullable=False),
    Column("logits", LargeBinary, nullable=False),  # <f2 [gamma]
    Column("accept_probability", LargeBinary),  # <f2 [gamma]
    Column("scheduled", SmallInteger, nullable=False),
    Column("verified", SmallInteger, nullable=False),
    Column("accepted", SmallInteger, nullable=False),
    Column("resolved", SmallInteger, nullable=False),
    Column("resolved_accepted", SmallInteger, nullable=False),
    Column("draft_stop", SmallInteger, nullable=False),
    Column("explore", Double, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("temperature", Double, nullable=False),  # sampling temperature of the request
    UniqueConstraint("boot_id", "row_number"),
    Index(None, "stratum_id", "priority"),
)

step_state = Table(
    "step_state",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("size_class", SmallInteger, nullable=False),  # bits of batch_tokens: 1, 2-3, 4-7, ...
    Column("half_life_seconds", Double, nullable=False),
    Column("threshold", Double),
    Column("kept", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
    UniqueConstraint("deployment_id", "size_class"),
)

step_rows = Table(
    "step_rows",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("stratum_id", RowId, ForeignKey("step_state.id"), nullable=False),
    Column("priority", Double, nullable=False),
    Column("arrival", Double, nullable=False),
    Column("boot_id", RowId, ForeignKey("boots.id"), nullable=False),
    Column("step_number", BigInteger, nullable=False),
    Column("fingerprint", String(128), nullable=False),
    *(Column(n, BigInteger if "u" in wire else Double, nullable=False) for n, wire in STEP_COLUMNS.items()),
    UniqueConstraint("boot_id", "step_number"),
    Index(None, "stratum_id", "priority"),
)

positions = Table(
    "positions",
    metadata,
    Column("consumer_group", String(128), primary_key=True),
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("updated_at", Double, nullable=False),
)

LEDGER_COUNTERS = ("next_sequence", "folded", "lost", "dead_lettered", "duplicates")

boots = Table(
    "boots",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("replica", String(128), nullable=False),
    Column("boot", String(128), nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("revision", BigInteger, nullable=False),  # compare-and-set
    Column("round_intervals", JSON, nullable=False),
    *(Column(f"round_{name}", BigInteger, nullable=False) for name in LEDGER_COUNTERS),
    Column("step_intervals", JSON, nullable=False),
    *(Column(f"step_{name}", BigInteger, nullable=False) for name in LEDGER_COUNTERS),
    Column("unknown_version", BigInteger, nullable=False),  # rows folded raw only
    Column("misdated", BigInteger, nullable=False),  # rows folded at their arrival
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    UniqueConstraint("deployment_id", "replica", "boot"),
    Index(None, "deployment_id", "last_seen"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),
    # Whose rows they were, where the message could still say so.
    Column("deployment", String(128)),
    Column("replica", String(128)),
    Column("boot", String(128)),
    Column("first_row", BigInteger),
    Column("row_count", BigInteger),
    Column("rows_lost", BigInteger),
    Column("first_step", BigInteger),
    Column("step_count", BigInteger),
    Column("steps_lost", BigInteger),
    UniqueConstraint("topic", "partition", "offset"),
    Index(None, "deployment", "replica", "boot"),
    Index(None, "at"),
)

parameter_versions = Table(
    "parameter_versions",
    metadata,
    Column("deployment_id", RowId, ForeignKey("deployments.id"), primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("document", JSON, nullable=False),  # never changed once written
    Column("created_at", Double, nullable=False),
    Column("state", String(32), nullable=False),
    # What temperatures alone say of an affine set, once somebody has fitted it (null: SQL's, not JSON's).
    Column("temperature_export", JSON(none_as_null=True)),
)

refreshes = Table(
    "refreshes",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("started", Double, nullable=False),
    Column("finished", Double),
    Column("outcome", String(32)),  # null while it runs
    Column("reasons", JSON, nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("version", BigInteger),
    Index(None, "deployment_id", "started"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("holder", String(256), nullable=False),
    Column("acquired_until", Double, nullable=False),
)
