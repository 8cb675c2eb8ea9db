"""What the report of a deployment and a period shows, as numbers: JSON, nothing undefined but null."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from calibrator.core.corp import CorpCurve
from calibrator.service.evidence import as_json
from calibrator.service.reading.calibration import calibration_series
from calibrator.service.reading.exploration import coverage
from calibrator.service.reading.figures import Figures, numbers
from calibrator.service.reading.ranges import Steps, cut_range
from calibrator.service.reading.reliability import Diagrams, read_diagrams
from calibrator.service.reading.sampled import SampledPosition, sampled_reliability
from calibrator.store import episodes, forgetting, parameters, schema
from calibrator.store.deployments import Deployment
from calibrator.store.refreshes import Refresh
from serving_adapter.contract import ParameterDocument

MAX_REFRESHES = 5_000
MAX_VERSIONS = 500
MAX_EPISODES = 500
CURVE_POINTS = 60
"""Points of a reliability curve that a page needs."""
SERIES = (
    "ece", "ece_low", "ece_high", "noise_floor", "squared_error", "gap", "n_eff", "coverage", "observed",
)  # fmt: skip
TOTALS = (*SERIES, "gap_low", "gap_high", "predicted", "brier", "log_loss")
NEWEST = ("prequential", "temperature_limited", "segments", "samplings", "value")
"""Evidence that is shown of the newest refresh that has it."""
_NAMED = ("segments", "samplings")


def period_numbers(
    connection: Connection, deployment: Deployment, start: float, end: float, window_seconds: float = 60.0
) -> dict[str, Any]:
    """Read a period ``[start, end)``, seconds since 1970; a period without rows gives empty parts.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment
        Whose.
    window_seconds
        Length of the shortest window that the store keeps.
    """
    steps = cut_range(start, end, None, window_seconds)
    in_force, raw = read_diagrams(connection, deployment, steps.start, steps.end)
    tried = _refreshes(connection, deployment.id, start, end)
    published = [
        each
        for each in parameters.history(connection, deployment.id, limit=MAX_VERSIONS)
        if each.created_at < end
    ]
    # The version in force when the period began is part of its story.
    before = [each for each in published if each.created_at < start][:1]
    versions = [*before, *reversed([each for each in published if each.created_at >= start])]
    happened = [
        episode
        for episode in episodes.history(connection, deployment.id, limit=MAX_EPISODES)[0]
        if episode.started_at < end and (episode.ended_at is None or episode.ended_at >= start)
    ]
    return as_json(
        {
            "deployment": deployment.name,
            "gamma": deployment.gamma,
            "fingerprint": deployment.fingerprint,
            "frozen": deployment.frozen,
            "from": start,
            "to": end,
            "totals": {"in_force": _totals(in_force), "raw": _totals(raw)},
            "series": _series(connection, deployment, steps),
            "sample": _sample(connection, deployment, start, end),
            "coverage": [dataclasses.asdict(each) for each in coverage(connection, deployment, start, end)],
            "versions": [_version(each.document, each.created_at, each.state) for each in versions],
            "episodes": [dataclasses.asdict(episode) for episode in reversed(happened)],
            "forgotten": [
                dataclasses.asdict(cut)
                for cut in forgetting.cuts(connection, deployment.id)
                if start <= cut.at < end
            ],
            "exploration": _parts(tried, "exploration"),
            **{name: _newest(tried, name)[1] or ({} if name in _NAMED else []) for name in NEWEST},
            "measured_at": {name: _newest(tried, name)[0] for name in NEWEST},
            "refreshes": [_refresh(each) for each in tried],
        }
    )


def _refreshes(connection: Connection, deployment_id: int, start: float, end: float) -> list[Refresh]:
    """Refreshes that began in the period, oldest first, with what the page shows of their evidence."""
    table = schema.refreshes
    names = (
        "exploration", "prequential", "temperature_limited", "segments", "samplings", "value", "rows", "form",
    )  # fmt: skip
    rows = connection.execute(
        select(
            table.c.id, table.c.started, table.c.finished, table.c.outcome, table.c.reasons, table.c.version,
            *(table.c.evidence[name].label(name) for name in names),
        )
        .where(table.c.deployment_id == deployment_id, table.c.started >= start, table.c.started < end)
        .order_by(table.c.id.desc())
        .limit(MAX_REFRESHES)
    ).all()  # fmt: skip
    return [
        Refresh(
            row.id, row.started, row.finished, row.outcome, row.reasons,
            {name: getattr(row, name) for name in names}, row.version,
        )
        for row in reversed(rows)
    ]  # fmt: skip


def _refresh(refresh: Refresh) -> dict[str, Any]:
    return {
        "id": refresh.id,
        "started": refresh.started,
        "finished": refresh.finished,
        "outcome": refresh.outcome,
        "form": refresh.evidence["form"],
        "rows": refresh.evidence["rows"],
        "version": refresh.version,
        "reasons": refresh.reasons,
    }


def _parts(tried: Sequence[Refresh], name: str) -> list[dict[str, Any]]:
    return [{"at": each.started, **each.evidence[name]} for each in tried if each.evidence[name]]


def _newest(tried: Sequence[Refresh], name: str) -> tuple[float | None, Any]:
    """When the newest refresh began that has it, and what it has."""
    return next(
        ((each.started, each.evidence[name]) for each in reversed(tried) if each.evidence[name]), (None, None)
    )


def _version(document: ParameterDocument, at: float, state: str) -> dict[str, Any]:
    evidence = document.evidence
    return {
        "version": document.version,
        "at": at,
        "state": state,
        "form": document.form,
        "temperatures": document.temperatures,
        "offsets": document.offsets,
        "explore": document.explore,
        "share": document.share,
        "segments": len(document.segments),
        "rounds": evidence.rounds if evidence else None,
        "ece_before": _mean(evidence.ece_before) if evidence else None,
        "ece_after": _mean(evidence.ece_after) if evidence else None,
        "noise_floor": _mean(evidence.noise_floor) if evidence else None,
        "reasons": evidence.reasons if evidence else [],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _totals(found: Diagrams) -> list[dict[str, Any]]:
    figures, bins = found.figures, found.figures.bins
    per_bin = {
        "mass": bins.mass, "predicted": bins.predicted, "observed": bins.observed, "n_eff": bins.n_eff,
        "band_low": found.band_low, "band_high": found.band_high,
    }  # fmt: skip
    return [
        {
            "position": k + 1,
            **{name: numbers(getattr(figures, name))[k] for name in TOTALS},
            "drafted": int(figures.drafted[k]),
            "verified": int(figures.verified[k]),
            "status": figures.status[k],
            "population": "traffic" if bool(figures.traffic) else "verified traffic only",
            "bins": {name: numbers(values)[k] for name, values in per_bin.items()},
        }
        for k in range(len(figures.status))
    ]


def _series(connection: Connection, deployment: Deployment, steps: Steps) -> dict[str, Any]:
    """Figures ``[points][gamma]`` in force and raw; times are the beginnings of the points."""

    def of(figures: Figures) -> dict[str, Any]:
        return {name: numbers(getattr(figures, name)) for name in SERIES}

    return {
        "at": list(steps.starts),
        "step": steps.step,
        "in_force": of(calibration_series(connection, deployment, steps).figures),
        "raw": of(calibration_series(connection, deployment, steps, basis="raw").figures),
    }


def _sample(
    connection: Connection, deployment: Deployment, start: float, end: float
) -> dict[str, Any] | None:
    found = sampled_reliability(connection, deployment, start, end)
    if found is None:
        return None
    return {
        "rows": found.rows,
        "half_life_seconds": found.half_life_seconds,
        "versions": list(found.versions),
        "positions": {name: [_sampled(each) for each in of] for name, of in found.positions.items()},
    }


def _sampled(position: SampledPosition) -> dict[str, Any]:
    return {
        "report": dataclasses.asdict(position.report),
        "record": dataclasses.asdict(position.record),
        "smooth_ece": position.smooth,
        "histogram": position.histogram.tolist(),
        "curve": None if position.curve is None else _curve(position.curve),
    }


def _curve(curve: CorpCurve) -> dict[str, list[float]]:
    """Points at equal shares of the traffic, so that the curve is drawn where the traffic is."""
    share = (np.cumsum(curve.weight) - curve.weight / 2) / curve.weight.sum()
    wanted = np.searchsorted(share, np.linspace(0.0, 1.0, CURVE_POINTS))
    chosen: NDArray[np.int64] = np.unique(np.clip(wanted, 0, len(share) - 1))
    columns = ("predicted", "observed", "low", "high")
    return {name: getattr(curve, name)[chosen].tolist() for name in columns}
