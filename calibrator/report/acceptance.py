"""What the observed acceptance did over a period, and why that raised no alarm."""

from __future__ import annotations

import numpy as np

from calibrator.report.words import Numbers

END_SHARE = 0.1
"""Share of the points at either end of a period that are compared."""
LEAST_POINTS = 4
LEAST_LABELS = 100.0
MOVED = 0.05
"""Smallest change that is told, where it is also beyond three standard errors."""
REFERENCE_ROWS = 4_000
"""Default of what makes a reference of acceptance, per segment and position."""


def ends(numbers: Numbers) -> tuple[list[float], list[float], list[bool]] | None:
    """Observed survival at the first and last points of the period, and who moved: ``[gamma]`` each.

    Points count by their effective labels. None where they do not tell survival, or hold too few labels.
    """
    series = numbers.get("series", {}).get("in_force", {})
    if not series.get("observed"):
        return None
    observed = np.array(
        [[np.nan if v is None else v for v in row] for row in series["observed"]], dtype=np.float64
    )
    labels = np.array([[v or 0.0 for v in row] for row in series["n_eff"]], dtype=np.float64)
    labels[np.isnan(observed)] = 0.0
    used = np.flatnonzero(labels[:, 0] > 0)
    if len(used) < LEAST_POINTS:
        return None
    count = max(1, round(END_SHARE * len(used)))
    while labels[used[:count], 0].sum() < LEAST_LABELS or labels[used[-count:], 0].sum() < LEAST_LABELS:
        count += 1
        if 2 * count > len(used):
            return None
    means, variances = [], []
    for part in (used[:count], used[-count:]):
        total = labels[part].sum(axis=0)
        mean = (labels[part] * np.nan_to_num(observed[part])).sum(axis=0) / np.maximum(total, 1e-12)
        means.append(np.where(total > 0, mean, np.nan))
        variances.append(0.25 / np.maximum(total, 1.0))
    change = np.abs(means[1] - means[0])
    moved = (change >= MOVED) & (change > 3.0 * np.sqrt(variances[0] + variances[1]))
    return means[0].tolist(), means[1].tolist(), moved.tolist()


def told_acceptance(numbers: Numbers) -> list[str]:
    """Say how acceptance moved, and why there is no alarm of it; nothing where it did not move."""
    found = ends(numbers)
    if found is None or not any(found[2]):
        return []
    first, last, moved = found
    position = moved.index(True)
    known = np.isfinite(first).all() and np.isfinite(last).all()
    tokens = f", accepted draft tokens a round from {sum(first):.2f} to {sum(last):.2f}" if known else ""
    went = f"went from {first[position]:.3f} to {last[position]:.3f}{tokens}"
    lines = [f"Observed acceptance of position {position + 1} {went} (first and last part of the period)."]
    if not any(each["kind"] == "acceptance" for each in numbers["episodes"]):
        lines.append(_why_no_alarm(numbers))
    return lines


def _why_no_alarm(numbers: Numbers) -> str:
    rounds = max((each["drafted"] for each in numbers["totals"]["raw"]), default=0)
    versions = sum(each["at"] >= numbers["from"] for each in numbers["versions"])
    segments = max(1, len(numbers["segments"]))
    each = rounds / (segments * (versions + 1))
    many = f"{versions} new version{'s' * (versions != 1)} and {segments} segment{'s' * (segments != 1)}"
    text = (
        "No alarm of acceptance: it compares each segment and position with its first rounds under one "
        f"version ({REFERENCE_ROWS:,} by default). A new version takes a new reference, unless the alarm was "
        f"there before. {rounds:,} rounds with {many} are {each:,.0f} for each on average"
    )
    if each < REFERENCE_ROWS:
        return f"{text}, fewer than a reference takes: acceptance was watched too little to alarm."
    return f"{text}. What changes slowly, or before a reference is complete, becomes part of it."
