"""From names in a request to what the store knows; what is not there is a problem that says so."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from sqlalchemy import Connection

from calibrator.service.web.problems import Invalid, NotFound
from calibrator.store import deployments
from calibrator.store.deployments import Deployment

SamplingBucket = Literal["greedy", "low", "mid", "high"]
"""As :data:`serving_adapter.contract.sampling.SAMPLING_BUCKETS`."""

SegmentQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=128, description="Only this segment; all together when left out."),
]
SamplingQuery = Annotated[
    SamplingBucket | None,
    Query(
        description="Only requests of this sampling temperature (greedy: 0, low: to 0.5, mid: to 1, high: "
        "above 1); all together when left out."
    ),
]

_SHOWN = 100


def known_deployment(connection: Connection, name: str) -> Deployment:
    """Return the deployment of that name.

    Raises
    ------
    NotFound
        There is none.
    """
    found = deployments.get(connection, name) if "\x00" not in name else None
    if found is None:
        raise NotFound(f"no deployment {name[:_SHOWN]!r}")
    return found


def check_segment(connection: Connection, deployment: Deployment, segment: str | None) -> None:
    """Let None and known segments through.

    Raises
    ------
    Invalid
        The deployment has no such segment.
    """
    if segment is None:
        return
    if segment not in deployments.segments(connection, deployment.id):
        detail = f"got {segment[:_SHOWN]!r}, expected a segment of {deployment.name!r}"
        raise Invalid(f"segment: {detail}", errors=[{"pointer": "query/segment", "detail": detail}])


def check_positions(deployment: Deployment, positions: list[int] | None) -> None:
    """Let draft positions from 1 to gamma through.

    Raises
    ------
    Invalid
        Naming the one that is not.
    """
    for position in positions or []:
        if not 1 <= position <= deployment.gamma:
            detail = f"got {position}, expected a draft position from 1 to {deployment.gamma}"
            raise Invalid(f"position: {detail}", errors=[{"pointer": "query/position", "detail": detail}])
