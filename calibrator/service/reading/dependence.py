"""How far labels of windows bear alone: what is known of the luck that rounds of one request share.

Window sums do not say which rows belong to one request. The drift watch estimates from the sample what a
row bears (:mod:`calibrator.core.drift.dependence`, at its upper limit) and stores it for intervals, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from calibrator.store import drift_state

Float = NDArray[np.float64]


def bearing(connection: Connection, deployment_id: int, gamma: int, segment: str | None = None) -> Float:
    """Share of a label that each position's rows bear, in (0, 1], shape ``[gamma]``.

    The smallest of all segments, or that of one; ones before the first estimate.
    """
    state = drift_state.load(connection, deployment_id).state
    segments: dict[str, Any] = state.get("tempering", {}).get("segments", {})
    chosen = [each for name, each in segments.items() if segment is None or name == segment]
    found = [np.asarray(each["calibration"], dtype=np.float64) for each in chosen]
    least: Float = np.min([np.ones(gamma), *(each for each in found if each.shape == (gamma,))], axis=0)
    return least
