"""Tables of additive integer sums: an upsert that adds, in the order of the key."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table

from calibrator.store.upsert import insert_into

Integers = NDArray[np.int64]


def add_rows(
    connection: Connection, table: Table, deployment_id: int, keys: Integers, sums: Integers
) -> None:
    """Add rows to the sums of a table, in the caller's transaction.

    Parameters
    ----------
    connection
        A writing transaction that holds the deployment.
    table
        Its primary key is ``deployment_id`` and the columns of ``keys``; the rest are sums.
    deployment_id
        Whose.
    keys
        Shape ``[rows, key columns]``, distinct. Rows are written in the order of the key, as every writer
        does, so that two writers never deadlock.
    sums
        Shape ``[rows, sum columns]``.
    """
    if not len(keys):
        return
    order = np.lexsort(keys.T[::-1])
    names = [column.name for column in table.columns]
    values = np.concatenate([keys[order], sums[order]], axis=1).tolist()
    rows = [dict(zip(names, [deployment_id, *row], strict=True)) for row in values]
    connection.execute(_adding(table, connection.dialect.name), rows)


@lru_cache(maxsize=32)
def _adding(table: Table, dialect: str) -> Any:
    statement = insert_into(dialect, table)
    key = [column.name for column in table.primary_key]
    return statement.on_conflict_do_update(
        index_elements=key,
        set_={c.name: c + statement.excluded[c.name] for c in table.columns if c.name not in key},
    )
