"""Which segments and sampling buckets get a set of their own in the next document.

Three rounds, each judged against what the round before left in place: sampling buckets against the pooled
set, segments against both, buckets within a segment against all three. So a set is published only where
it beats what would serve its rows without it (:mod:`calibrator.core.segment_proposal`).

Labels that did not fit into the bounded dictionary are counted as ``other``. Nobody outside the store
knows which labels those are, so ``other`` is served by the pooled set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions
from calibrator.core.document_survival import survival_by_sets
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal
from calibrator.core.report import PositionReport, mean_ece, mean_noise_floor
from calibrator.core.segment_proposal import SegmentProposal, propose_segment
from calibrator.core.split import held_out
from calibrator.store.deployments import OTHER_SEGMENT
from serving_adapter.contract import SAMPLING_BUCKETS, Form, Rounds, SegmentParameters, bucket_index
from serving_adapter.contract.segments import ANY, MAX_SEGMENT_SETS
from serving_adapter.ports import ReplicaReport

Float = NDArray[np.float64]
Key = tuple[str, str]

MAX_JUDGED_ROWS = 400_000
"""Rows that all segments together are judged by: a refresh holds a lease while it judges."""
MIN_JUDGED_ROWS = 2_000
MAX_WITHIN = 64
"""Buckets within segments that are judged in one refresh: those in force and the largest."""
_NAMED = 5
_SALT = 11


@dataclass(frozen=True, slots=True)
class SegmentSupport:
    """What live replicas say of sets per segment: ``reported`` is False while none has reported."""

    reported: bool
    cannot: tuple[str, ...]

    @classmethod
    def of(cls, reports: Mapping[str, ReplicaReport]) -> SegmentSupport:
        """Read the reports of all live replicas."""
        cannot = sorted(name for name, report in reports.items() if not report.segment_sets)
        return cls(bool(reports), tuple(cannot))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSets:
    """The sets of the next document; ``changed`` where they are others than those in force.

    ``reasons`` are for the document, ``evidence`` (``segments`` and ``samplings``) for the refresh.
    """

    entries: tuple[SegmentParameters, ...] = ()
    changed: bool = False
    reasons: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


def decide_segments(
    rounds: Rounds,
    weights: Float,
    pooled: ParameterSet,
    proposal: Proposal,
    in_force: Sequence[SegmentParameters],
    support: SegmentSupport,
    options: ProposalOptions,
) -> SegmentSets:
    """Decide segment by segment and bucket by bucket.

    Parameters
    ----------
    rounds, weights
        The stored sample, weights of shape ``[rows]``.
    pooled
        The pooled set that the next document will have.
    proposal
        The pooled proposal, whose fit in each form is what segments shrink to.
    in_force
        Entries of the document in force, none where it is of another fingerprint.
    support
        A document carries sets per segment only while every live replica applies them.
    options
        As of the pooled proposal.
    """
    old: dict[Key, SegmentParameters] = {(entry.segment, entry.sampling): entry for entry in in_force}
    if not support.reported:
        return SegmentSets(tuple(in_force))
    if support.cannot:
        named = _named(support.cannot)
        reason = f"segments: the pooled set serves all, for {named} cannot apply any other"
        several = bool(old) or len(_labels(rounds)) > 1
        return SegmentSets(changed=bool(old), reasons=(reason,) if several else ())

    centres = _centres(pooled, proposal, options)
    labels, buckets = _labels(rounds), _buckets(rounds)
    levels = [
        [(ANY, bucket) for bucket in buckets if len(buckets) > 1 or (ANY, bucket) in old],
        [(label, ANY) for label in labels if len(labels) > 1 or (label, ANY) in old],
        _within(rounds, weights, labels, buckets, old),
    ]
    count = sum(map(len, levels))
    most_rows = max(MIN_JUDGED_ROWS, MAX_JUDGED_ROWS // max(count, 1))
    entries: dict[Key, SegmentParameters] = {}
    decided: dict[Key, SegmentProposal] = {}
    for level in levels:
        serving = tuple(entries.values())
        for key in level:
            mine = _rows_of(rounds, key, most_rows)
            rows = rounds.take(mine)
            fallback = survival_by_sets(pooled.survival(rows), serving, rows, None)
            own = old.get(key)
            if own is not None and own.form not in centres:
                own = None  # an engine that cannot apply it would refuse the whole document
            decided[key] = made = propose_segment(
                rows, fallback, centres, _as_set(own), options, weights[mine], candidates=count
            )
            if made.parameters is not None and len(entries) < MAX_SEGMENT_SETS:
                kept = own if made.action == "keep" else None
                entries[key] = kept or _entry(key, made.parameters)
    unseen = [key for key, entry in old.items() if key not in decided and entry.form in centres]
    for key in unseen[: MAX_SEGMENT_SETS - len(entries)]:
        entries[key] = old[key]  # no rows to judge it by: nothing speaks against it

    changed = entries != old
    return SegmentSets(
        entries=tuple(entries.values()) if changed else tuple(in_force),
        changed=changed,
        reasons=_reasons(old, entries) if changed else (),
        evidence=_evidence(decided, entries, rounds),
    )


def _centres(pooled: ParameterSet, proposal: Proposal, options: ProposalOptions) -> dict[Form, ParameterSet]:
    """What segments shrink to, for every form that may be published."""
    wanted: Sequence[Form] = ("temperature", "affine") if options.form == "auto" else (options.form,)
    forms: Sequence[Form] = [form for form in wanted if form in options.supported_forms] or ["temperature"]
    centres: dict[Form, ParameterSet] = {}
    for form in forms:
        if pooled.form == form:
            centres[form] = pooled
        elif form in proposal.alternatives:
            centres[form] = proposal.alternatives[form]
        elif form == "affine":
            centres[form] = ParameterSet("affine", pooled.temperatures, np.zeros_like(pooled.temperatures))
        else:
            centres[form] = ParameterSet.identity(len(pooled.temperatures))
    return centres


def _labels(rounds: Rounds) -> list[str]:
    """Segments with rows that may have a set of their own, in order of name."""
    labels = rounds.segments or ("default",)
    used = np.flatnonzero(np.bincount(rounds.segment, minlength=len(labels))[: len(labels)])
    named = {labels[i] for i in used.tolist()} - {OTHER_SEGMENT, ANY}
    return sorted(label for label in named if label.isprintable())


def _buckets(rounds: Rounds) -> list[str]:
    used = np.bincount(bucket_index(rounds.sampling), minlength=len(SAMPLING_BUCKETS))
    return [bucket for bucket, rows in zip(SAMPLING_BUCKETS, used, strict=True) if rows]


def _within(
    rounds: Rounds, weights: Float, labels: Sequence[str], buckets: Sequence[str], old: Mapping[Key, Any]
) -> list[Key]:
    """Buckets of segments that have rows in several: those in force first, then the largest."""
    if len(labels) < 2 and not any(ANY not in key for key in old):
        return []  # one segment: its buckets are those of all traffic
    mass: dict[Key, float] = {}
    for label in labels:
        for bucket in buckets:
            mine = _rows_of(rounds, (label, bucket))
            if mine.any():
                mass[label, bucket] = float(weights[mine].sum())
    several = [key for key in mass if key in old or sum(key[0] == other for other, _ in mass) > 1]
    return sorted(several, key=lambda key: (key not in old, -mass[key]))[:MAX_WITHIN]


def _rows_of(rounds: Rounds, key: Key, most: int | None = None) -> NDArray[np.bool_]:
    """Rows of a segment and bucket, at most about ``most``: whole requests, always the same ones."""
    segment, bucket = key
    mine = np.ones(len(rounds), dtype=np.bool_)
    if segment != ANY:
        labels = rounds.segments or ("default",)
        mine = np.isin(rounds.segment, [i for i, label in enumerate(labels) if label == segment])
    if bucket != ANY:
        mine &= bucket_index(rounds.sampling) == SAMPLING_BUCKETS.index(bucket)
    rows = int(mine.sum())
    if most is not None and rows > most:
        mine &= held_out(rounds.request, most / rows, salt=_SALT)
    return mine


def _as_set(entry: SegmentParameters | None) -> ParameterSet | None:
    if entry is None:
        return None
    return ParameterSet(entry.form, np.array(entry.temperatures), np.array(entry.offsets))


def _entry(key: Key, chosen: ParameterSet) -> SegmentParameters:
    return SegmentParameters(
        segment=key[0],
        sampling=key[1],  # type: ignore[arg-type]  # a bucket of the contract, or any
        form=chosen.form,
        temperatures=chosen.temperatures.tolist(),
        offsets=chosen.offsets.tolist(),
    )


def _reasons(old: Mapping[Key, SegmentParameters], new: Mapping[Key, SegmentParameters]) -> tuple[str, ...]:
    """What changed, in one line each: the details are evidence of the refresh."""
    changes = {
        "own set from now on": [key for key in new if key not in old],
        "own set renewed": [key for key in new if key in old and new[key] != old[key]],
        "own set dropped": [key for key in old if key not in new],
    }
    return tuple(
        f"segments: {what}: {_named(['/'.join(key) for key in keys])}"
        for what, keys in changes.items()
        if keys
    )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _evidence(
    decided: Mapping[Key, SegmentProposal], entries: Mapping[Key, SegmentParameters], rounds: Rounds
) -> dict[str, Any]:
    """Figures and reasons by segment and by bucket; buckets within a segment stand under the segment."""
    segments: dict[str, dict[str, Any]] = {}
    samplings: dict[str, dict[str, Any]] = {}
    for key, made in decided.items():
        figures = _figures(made, entries.get(key))
        segment, bucket = key
        if segment == ANY:
            samplings[bucket] = figures
        elif bucket == ANY:
            segments.setdefault(segment, {}).update(figures)
        else:
            segments.setdefault(segment, {}).setdefault("samplings", {})[bucket] = figures
    overflow = int(_rows_of(rounds, (OTHER_SEGMENT, ANY)).sum())
    if overflow:
        segments[OTHER_SEGMENT] = {
            "rows": overflow,
            "published": False,
            "reasons": ["labels beyond the bound: the pooled set serves them"],
        }
    return {"segments": segments, "samplings": samplings}


def _figures(made: SegmentProposal, entry: SegmentParameters | None) -> dict[str, Any]:
    reasons = list(made.reasons)
    if made.parameters is not None and entry is None:
        reasons.append(f"a document carries at most {MAX_SEGMENT_SETS} sets")
    return {
        "form": entry.form if entry is not None else made.form,
        "rows": made.rows,
        "requests": made.requests,
        "n_eff": None if made.n_eff is None else made.n_eff.tolist(),
        "own_share": None if made.own_share is None else made.own_share.tolist(),
        "before": _report(made.before),
        "after": _report(made.after),
        "action": made.action,
        "published": entry is not None,
        "temperatures": None if entry is None else entry.temperatures,
        "offsets": None if entry is None else entry.offsets,
        "reasons": reasons,
    }


def _report(reports: Sequence[PositionReport]) -> dict[str, Any] | None:
    if not reports:
        return None
    return {
        "mean_ece": mean_ece(reports),
        "mean_noise_floor": mean_noise_floor(reports),
        "ece": [r.ece for r in reports],
        "noise_floor": [r.noise_floor for r in reports],
        "gap": [r.gap for r in reports],
    }
