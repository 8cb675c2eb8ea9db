"""The weighted sample of rounds per (deployment, segment, sampling bucket)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, select

from calibrator.core.sample import inclusion_probability, priority_key
from calibrator.store import bottom_k, schema
from calibrator.store.bottom_k import Stratum
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

_LARGEST_HALF = 65504.0
_COLUMNS = ("scheduled", "verified", "accepted", "resolved", "resolved_accepted", "draft_stop", "step")


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rounds offered to one stratum, as columns of shape ``[rows]``.

    ``uniform`` is the row's own random number in (0, 1) (:func:`calibrator.core.sample.row_uniform`),
    ``arrival`` seconds since 1970, ``boot_id`` and ``row_number`` say which row it is.
    """

    rounds: Rounds
    uniform: Float
    arrival: Float
    boot_id: NDArray[np.int64]
    row_number: NDArray[np.int64]
    fingerprint: Sequence[str]
    share: Float


@dataclass(frozen=True, slots=True, eq=False)
class WeightedSample:
    """Rows with weights that make the sample stand for the traffic, recent rows more than old ones.

    ``weights`` are ``recency / (inclusion probability * share)``, shape ``[rows]``; ``uniform`` scale is
    not normalised. ``boot_id`` and ``row_number`` identify a row for ever.
    """

    rounds: Rounds
    weights: Float
    arrival: Float
    fingerprint: NDArray[np.str_]
    boot_id: NDArray[np.int64]
    row_number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rounds)

    def take(self, index: NDArray[Any] | slice) -> WeightedSample:
        """Select rows by boolean mask, indices or slice."""
        return WeightedSample(
            self.rounds.take(index),
            self.weights[index],
            self.arrival[index],
            self.fingerprint[index],
            self.boot_id[index],
            self.row_number[index],
        )


def open_stratum(
    connection: Connection, deployment_id: int, segment_id: int, sampling: str, half_life_seconds: float
) -> Stratum:
    """Return the stratum, made now with that half-life if there is none."""
    key = {"deployment_id": deployment_id, "segment_id": segment_id, "sampling": sampling}
    return bottom_k.open_stratum(connection, schema.sample_state, key, half_life_seconds)


def strata(connection: Connection, deployment_id: int) -> dict[tuple[str, str], Stratum]:
    """Strata of a deployment by (segment name, sampling bucket)."""
    state, segments = schema.sample_state, schema.segments
    rows = connection.execute(
        select(
            segments.c.name,
            state.c.sampling,
            state.c.id,
            state.c.half_life_seconds,
            state.c.threshold,
            state.c.kept,
            state.c.seen,
        )
        .join(segments, segments.c.id == state.c.segment_id)
        .where(state.c.deployment_id == deployment_id)
    )
    return {(row[0], row[1]): Stratum(*row[2:]) for row in rows}


def offer(connection: Connection, stratum: Stratum, candidates: Candidates, seen: int, limit: int) -> Stratum:
    """Offer rows; the ``limit`` rows of smallest priority of all that were ever offered remain.

    ``seen`` is the number of rows that the candidates were chosen from (by an earlier, higher threshold).
    """
    priority = priority_key(candidates.uniform, candidates.arrival, stratum.half_life_seconds)
    chosen = np.flatnonzero(stratum.wanted(priority))
    if len(chosen) > limit + 1:
        chosen = chosen[np.argpartition(priority[chosen], limit)[: limit + 1]]
    chosen.sort()
    columns = _as_columns(candidates, chosen, priority[chosen])
    return bottom_k.keep_smallest(
        connection, schema.sample_state, schema.sample_rows, stratum, columns, seen, limit
    )


def load(
    connection: Connection,
    deployment_id: int,
    gamma: int,
    now: float,
    *,
    segment: str | None = None,
    sampling: str | None = None,
    fingerprint: str | None = None,
    half_life_seconds: float | None = None,
    of_traffic: bool = True,
) -> WeightedSample:
    """Read the sample of a stratum, or of every stratum that matches.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id, gamma
        The deployment.
    now
        Seconds since 1970: recency is counted back from here.
    segment, sampling, fingerprint
        Restrict to these; None means all.
    half_life_seconds
        Of the recency weight; None takes the half-life that the sample was drawn with.
    of_traffic
        Weights make the sample stand for all traffic; False: for the rows that reached a collector, which are
        the ones that alarms rest on.

    Returns
    -------
    Rows in order of (boot, row number), whatever order they came in.
    """
    rows, state, segments = schema.sample_rows, schema.sample_state, schema.segments
    statement = (
        select(
            rows.c.arrival, rows.c.boot_id, rows.c.row_number, rows.c.fingerprint, rows.c.share,
            rows.c.request, rows.c.logits, rows.c.accept_probability, rows.c.explore, rows.c.version,
            rows.c.temperature, *(rows.c[name] for name in _COLUMNS),
            segments.c.name, state.c.threshold, state.c.half_life_seconds,
        )
        .join(state, state.c.id == rows.c.stratum_id)
        .join(segments, segments.c.id == state.c.segment_id)
        .where(state.c.deployment_id == deployment_id)
        .order_by(rows.c.boot_id, rows.c.row_number)
    )  # fmt: skip
    if segment is not None:
        statement = statement.where(segments.c.name == segment)
    if sampling is not None:
        statement = statement.where(state.c.sampling == sampling)
    if fingerprint is not None:
        statement = statement.where(rows.c.fingerprint == fingerprint)
    columns: list[Sequence[Any]] = list(zip(*connection.execute(statement), strict=True))
    if not columns:
        columns = [()] * (14 + len(_COLUMNS))
    arrival, boot, number, prints, share, request, logits, soft, explore, version, temperature = columns[:11]
    names, threshold, drawn_half_life = columns[-3:]
    at = np.array(arrival, dtype=np.float64)
    drawn = np.array(drawn_half_life, dtype=np.float64)
    included = _inclusion(threshold, at, drawn)
    recency = np.exp2(-(now - at) / (drawn if half_life_seconds is None else half_life_seconds))
    labels = sorted(set(names)) or ["default"]
    rounds = Rounds.build(
        _matrix(logits, gamma),
        **{name: np.array(values) for name, values in zip(_COLUMNS, columns[11:-3], strict=True)},
        request=np.array(request, dtype=np.int64).view(np.uint64),
        explore=np.array(explore, dtype=np.float16),
        version=np.array(version, dtype=np.uint32),
        sampling=np.array(temperature, dtype=np.float16),
        segment=np.searchsorted(labels, names).astype(np.uint16),
        segments=labels,
        accept_probability=_soft_labels(soft, gamma),
    )
    return WeightedSample(
        rounds=rounds,
        weights=recency / (included * np.array(share, dtype=np.float64) if of_traffic else included),
        arrival=at,
        fingerprint=np.array(prints, dtype=np.str_),
        boot_id=np.array(boot, dtype=np.int64),
        row_number=np.array(number, dtype=np.int64),
    )


def reset(connection: Connection, deployment_id: int) -> None:
    """Throw the sample of a deployment away, so that it is drawn anew (after a change of half-life)."""
    state, rows = schema.sample_state, schema.sample_rows
    mine = select(state.c.id).where(state.c.deployment_id == deployment_id)
    connection.execute(delete(rows).where(rows.c.stratum_id.in_(mine)))
    connection.execute(delete(state).where(state.c.deployment_id == deployment_id))


def _inclusion(threshold: Sequence[float | None], arrival: Float, half_life: Float) -> Float:
    included = np.ones(len(arrival))
    bounded = np.array([value is not None for value in threshold], dtype=np.bool_)
    cut = np.array([value for value in threshold if value is not None], dtype=np.float64)
    keys = np.stack([cut, half_life[bounded]], axis=1)
    for pair in np.unique(keys, axis=0):
        mine = np.flatnonzero(bounded)[(keys == pair).all(axis=1)]
        included[mine] = inclusion_probability(float(pair[0]), arrival[mine], float(pair[1]))
    return included


def _as_columns(
    candidates: Candidates, index: NDArray[np.int64], priority: Float
) -> dict[str, Sequence[Any]]:
    rounds = candidates.rounds.take(index)
    logits = _half_rows(rounds.logits)
    soft = rounds.accept_probability
    return {
        "priority": priority.tolist(),
        "arrival": candidates.arrival[index].tolist(),
        "boot_id": candidates.boot_id[index].tolist(),
        "row_number": candidates.row_number[index].tolist(),
        "fingerprint": [candidates.fingerprint[i] for i in index.tolist()],
        "share": candidates.share[index].tolist(),
        "request": rounds.request.view(np.int64).tolist(),
        "logits": logits,
        "accept_probability": [None] * len(rounds) if soft is None else _half_rows(soft),
        "explore": rounds.explore.astype(np.float64).tolist(),
        "version": rounds.version.tolist(),
        "temperature": rounds.sampling.astype(np.float64).tolist(),
        **{name: getattr(rounds, name).tolist() for name in _COLUMNS},
    }


def _half_rows(values: NDArray[np.floating[Any]]) -> list[bytes]:
    """Each row as packed f16; a logit beyond the range of f16 becomes the largest one, not infinity."""
    packed = np.ascontiguousarray(np.clip(values, -_LARGEST_HALF, _LARGEST_HALF), dtype="<f2")
    data, width = packed.tobytes(), 2 * packed.shape[1]
    return [data[i : i + width] for i in range(0, len(data), width)]


def _matrix(blobs: Sequence[bytes], gamma: int) -> NDArray[np.float16]:
    return np.frombuffer(b"".join(blobs), dtype="<f2").reshape(-1, gamma)


def _soft_labels(blobs: Sequence[bytes | None], gamma: int) -> NDArray[np.float16] | None:
    if not any(blob is not None for blob in blobs):
        return None
    unknown = np.full(gamma, np.nan, dtype="<f2").tobytes()
    return _matrix([unknown if blob is None else blob for blob in blobs], gamma)
