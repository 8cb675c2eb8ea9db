"""Forgetting: rows from before a drift leave the sample for good, and the others make room for new ones.

A bounded sample with a long half-life takes in few new rows: it is full of old ones. So a cut deletes the old
rows and draws the sample anew: a remaining row keeps the probability with which it was included so far in its
``share``, and gets a priority of its own for what comes. The probability of being included twice is the
product, so weights stay exact (two-phase sampling: Särndal, Swensson, Wretman, "Model Assisted Survey
Sampling", 1992, chapter 9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, delete, exists, func, insert, or_, select, update

from calibrator.core.sample import inclusion_probability, priority_key
from calibrator.core.split import mix, unit_interval
from calibrator.store import deployments, schema

_cuts = schema.sample_cuts


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of a segment (None: of all) that arrived before ``before`` are not used any more."""

    segment: str | None
    before: float
    at: float
    reason: str


def cuts(connection: Connection, deployment_id: int) -> list[Cut]:
    """Every cut of a deployment, latest ``before`` first."""
    rows = connection.execute(
        select(_cuts.c.segment, _cuts.c.before, _cuts.c.at, _cuts.c.reason)
        .where(_cuts.c.deployment_id == deployment_id)
        .order_by(_cuts.c.before.desc(), _cuts.c.id.desc())
    )
    return [Cut(*row) for row in rows]


def rows_since(
    connection: Connection, deployment_id: int, since: float, segment: str | None, fingerprint: str
) -> int:
    """Sampled rows of a segment (None: of all) that arrived at ``since`` or later."""
    rows, state, segments = schema.sample_rows, schema.sample_state, schema.segments
    statement = (
        select(func.count())
        .select_from(rows.join(state, state.c.id == rows.c.stratum_id))
        .where(
            state.c.deployment_id == deployment_id,
            rows.c.arrival >= since,
            rows.c.fingerprint == fingerprint,
        )
    )
    if segment is not None:
        named = select(segments.c.id).where(
            segments.c.deployment_id == deployment_id, segments.c.name == segment
        )
        statement = statement.where(state.c.segment_id.in_(named))
    return int(connection.execute(statement).scalar_one())


def forget(connection: Connection, deployment_id: int, cut: Cut) -> int:
    """Record the cut, delete the rows before it and draw the strata anew; return how many rows went.

    In the caller's transaction, which holds the deployment from here on. Collectors that chose rows by the
    threshold from before notice that it rose and choose again.
    """
    deployments.lock(connection, [deployment_id])
    connection.execute(
        insert(_cuts).values(
            deployment_id=deployment_id,
            segment=cut.segment,
            before=cut.before,
            at=cut.at,
            reason=cut.reason,
        )
    )
    state, segments = schema.sample_state, schema.segments
    strata = (
        select(state.c.id, state.c.half_life_seconds, state.c.threshold)
        .join(segments, segments.c.id == state.c.segment_id)
        .where(state.c.deployment_id == deployment_id)
    )
    if cut.segment is not None:
        strata = strata.where(segments.c.name == cut.segment)
    return sum(
        _draw_anew(connection, stratum.id, stratum.half_life_seconds, stratum.threshold, cut.before)
        for stratum in connection.execute(strata).all()
    )


def delete_before(connection: Connection, cut: float, limit: int) -> int:
    """Delete up to that many cuts that were made before ``cut`` and are overtaken; return how many.

    A cut is overtaken by a later one of the same deployment and segment, or of all segments, that reaches as
    far. The others stay, one per segment at most: a row that comes very late must still be left out, and a
    drift that was cut at must not be cut at again.
    """
    later = _cuts.alias("later")
    overtaken = exists().where(
        later.c.deployment_id == _cuts.c.deployment_id,
        later.c.id > _cuts.c.id,
        or_(later.c.segment.is_(None), later.c.segment == _cuts.c.segment),
        later.c.before >= _cuts.c.before,
        later.c.at >= _cuts.c.at,
    )
    old = select(_cuts.c.id).where(_cuts.c.at < cut, overtaken).limit(limit)
    return connection.execute(delete(_cuts).where(_cuts.c.id.in_(old))).rowcount


def _draw_anew(
    connection: Connection, stratum_id: int, half_life: float, threshold: float | None, before: float
) -> int:
    rows, state = schema.sample_rows, schema.sample_state
    mine = rows.c.stratum_id == stratum_id
    gone = connection.execute(delete(rows).where(mine, rows.c.arrival < before)).rowcount
    left = connection.execute(
        select(rows.c.id, rows.c.arrival, rows.c.share, rows.c.boot_id, rows.c.row_number).where(mine)
    ).all()
    if threshold is not None and left:
        ids, arrival, share, boot, number = (np.array(column) for column in zip(*left, strict=True))
        share = share * inclusion_probability(threshold, arrival, half_life)
        priority = priority_key(_second_uniform(boot, number, threshold), arrival, half_life)
        connection.execute(
            update(rows)
            .where(rows.c.id == bindparam("row"))
            .values(share=bindparam("new_share"), priority=bindparam("new_priority")),
            [
                {"row": row, "new_share": s, "new_priority": p}
                for row, s, p in zip(ids.tolist(), share.tolist(), priority.tolist(), strict=True)
            ],
        )
    connection.execute(update(state).where(state.c.id == stratum_id).values(threshold=None, kept=len(left)))
    return gone


def _second_uniform(
    boot: NDArray[np.int64], number: NDArray[np.int64], threshold: float
) -> NDArray[np.float64]:
    """Uniform numbers that have nothing to do with those that rows were chosen by before."""
    salt = np.array([threshold], dtype=np.float64).view(np.uint64)
    return unit_interval(mix(mix(number.view(np.uint64)) ^ mix(boot.view(np.uint64)) ^ mix(salt)))
