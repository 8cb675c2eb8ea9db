"""Table of recency: until when the rows of a deployment were forgotten, and why."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, String, Table, Text

from calibrator.store.schema.base import RowId, deployment_column, metadata

sample_cuts = Table(
    "sample_cuts",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("segment", String(128)),  # null: all segments
    Column("before", Double, nullable=False),  # rows that arrived earlier are not used any more
    Column("at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Index(None, "deployment_id", "before"),
)
