"""Metrics of deployments: calibration per position, rows, replicas, drift, throughput."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from calibrator.service.reading.figures import figures_of
from calibrator.service.reading.replicas import ReplicaCounts
from calibrator.service.reading.snapshot import Measured, Snapshot
from calibrator.store.episodes import EPISODE_KINDS
from calibrator.store.runs import ABANDONED, DONE, FAILED

PREFIX = "dspark_calibrator"
STATUSES = ("ok", "drifting", "insufficient", "stale", "no_data", "frozen")
ENDED = (DONE, FAILED, ABANDONED)
MAX_VERSIONS = 10
"""Versions named per deployment, the newest; replicas of older ones are counted as ``older``."""

_POSITION = {
    "ece": ("expected_calibration_error", "Expected calibration error (20 bins) of the set in force."),
    "noise_floor": ("noise_floor", "Error that a calibrated predictor would show on as many labels."),
    "squared_error": ("squared_calibration_error", "Debiased squared calibration error; may be negative."),
    "gap": ("calibration_gap", "Mean predicted less mean observed survival."),
    "brier": ("brier_score", "Mean squared difference of prediction and label."),
    "predicted": ("predicted_survival", "Mean predicted survival of the prefix."),
    "observed": ("observed_survival", "Mean observed survival of the prefix."),
    "n_eff": ("effective_labels", "Effective number of labels behind these figures."),
    "coverage": ("coverage", "Share of drafted positions that were verified."),
}
_TOKENS = {
    "drafted": ("drafted_tokens", "Draft tokens seen since the service started."),
    "verified": ("verified_tokens", "Of these, verified."),
    "accepted": ("accepted_tokens", "Of these, accepted."),
    "predicted": ("expected_accepted_tokens", "Accepted tokens that the confidences in force promised."),
}
_LEDGER = {
    "tokens_per_second": ("tokens_per_second", "Tokens per second of one replica, last ten minutes."),
    "tokens_per_second_per_user": ("tokens_per_second_per_user", "Of one of its requests."),
    "time_per_token": ("seconds_per_accepted_token", "Seconds of drafting and verifying per accepted token."),
    "wasted": ("wasted_share", "Share of verified draft tokens that were not accepted."),
    "accepted_length": ("accepted_length", "Accepted draft tokens per round."),
    "budget": ("verification_budget", "Draft tokens verified per request and step."),
}


class TokenCounters:
    """Counters that start at 0 with the service: what the hourly sums grew by from look to look.

    Sums in the store shrink when old hours are deleted; a counter must not.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], dict[str, float]] = {}
        self._began = False
        self.totals: dict[str, dict[str, float]] = {}

    def take_in(self, found: Snapshot) -> None:
        """Add what came since the last look; the first one only remembers."""
        seen: dict[tuple[str, int], dict[str, float]] = {}
        for each in found.measured:
            name = each.overview.deployment.name
            totals = self.totals.setdefault(name, dict.fromkeys(_TOKENS, 0.0))
            for start, sums in each.hours.items():
                now = {kind: float(sums.scalar(kind).sum()) for kind in _TOKENS}
                before = self._seen.get((name, start), {})
                seen[name, start] = now
                if self._began:
                    for kind, value in now.items():
                        totals[kind] += max(value - before.get(kind, 0.0), 0.0)
        self._seen, self._began = seen, True


def deployment_metrics(
    found: Snapshot, counts: Mapping[str, ReplicaCounts], tokens: TokenCounters
) -> Iterator[Metric]:
    """Give all metrics that carry a deployment label."""
    yield GaugeMetricFamily(
        f"{PREFIX}_deployments", "Deployments known.", value=len(found.measured) + found.hidden
    )
    yield GaugeMetricFamily(
        f"{PREFIX}_deployments_hidden", "Deployments left out of this page.", value=found.hidden
    )
    yield from _positions(found.measured)
    yield from _parameters(found.measured)
    yield from _rows(found.measured)
    yield from _states(found.measured)
    yield from _replicas(found.measured, counts)
    yield from _ledger(found.measured)
    yield from _tokens(tokens)


def _positions(measured: Iterable[Measured]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(f"{PREFIX}_{shown}", text, labels=["deployment", "position"])
        for name, (shown, text) in _POSITION.items()
    }
    alias = GaugeMetricFamily(
        "vllm:adaptive_sd_confidence_calibration_error",
        f"Alias of {PREFIX}_expected_calibration_error.",
        labels=["model_name", "position"],
    )
    for each in measured:
        sums = each.sums
        if sums is None:
            continue
        figures = figures_of(sums.scalars, sums.bins)
        for k in range(sums.gamma):
            labels = [each.overview.deployment.name, str(k + 1)]
            for name, family in families.items():
                value = float(getattr(figures, name)[k])
                if math.isfinite(value):
                    family.add_metric(labels, value)
            if math.isfinite(figures.ece[k]):
                alias.add_metric(labels, float(figures.ece[k]))
    yield from families.values()
    yield alias


def _parameters(measured: Iterable[Measured]) -> Iterator[Metric]:
    version = _gauge("parameter_version", "Newest parameter version.")
    explore = _gauge("explore_probability", "Probability of verifying a round in full.")
    temperature = _gauge("temperature", "Temperature of the newest version.", "position")
    offset = _gauge("offset", "Offset of the newest version.", "position")
    for each in measured:
        name, document = each.overview.deployment.name, each.document
        if document is None:
            continue
        version.add_metric([name], document.version)
        explore.add_metric([name], document.explore)
        for k, (t, b) in enumerate(zip(document.temperatures, document.offsets, strict=True), start=1):
            temperature.add_metric([name, str(k)], t)
            offset.add_metric([name, str(k)], b)
    yield from (version, explore, temperature, offset)


def _rows(measured: Iterable[Measured]) -> Iterator[Metric]:
    rounds = CounterMetricFamily(
        f"{PREFIX}_rounds", "Rounds by what became of them.", labels=["deployment", "state"]
    )
    flight = _gauge("rounds_in_flight", "Rounds numbered by replicas of which nothing is known yet.")
    last = _gauge("last_row_timestamp_seconds", "When rows last came in, seconds since 1970.")
    for each in measured:
        name, rows = each.overview.deployment.name, each.overview.ingested
        for state in ("folded", "lost", "dead_lettered", "duplicates"):
            rounds.add_metric([name, state], getattr(rows, state))
        flight.add_metric([name], max(rows.emitted - rows.folded - rows.lost - rows.dead_lettered, 0))
        if rows.last_seen is not None:
            last.add_metric([name], rows.last_seen)
    yield from (rounds, flight, last)


def _states(measured: Iterable[Measured]) -> Iterator[Metric]:
    status = _gauge("deployment_status", "1 for the status that the deployment has.", "status")
    episodes = _gauge("drift_episodes_open", "Episodes of drift that last.", "kind")
    refreshes = CounterMetricFamily(
        f"{PREFIX}_refreshes", "Refreshes by outcome.", labels=["deployment", "outcome"]
    )
    runs = CounterMetricFamily(
        f"{PREFIX}_runs", "Runs that have ended, by state.", labels=["deployment", "state"]
    )
    value = _gauge("value_relative", "Tokens per second of the set in force against the identity, less one.")
    for each in measured:
        overview = each.overview
        name = overview.deployment.name
        for word in STATUSES:
            status.add_metric([name, word], float(overview.status == word))
        for kind in EPISODE_KINDS:
            episodes.add_metric([name, kind], overview.drift.get(kind, 0))
        for outcome, count in sorted(each.refreshes.items()):
            refreshes.add_metric([name, outcome], count)
        for state in ENDED:
            runs.add_metric([name, state], each.runs.get(state, 0))
        if overview.value is not None and overview.value.relative is not None:
            value.add_metric([name], overview.value.relative)
    yield from (status, episodes, refreshes, runs, value)


def _replicas(measured: Iterable[Measured], counts: Mapping[str, ReplicaCounts]) -> Iterator[Metric]:
    live = _gauge("replicas", "Replicas that report, by the version they run.", "version")
    refusing = _gauge("replicas_refusing", "Replicas that refused a newer version than they run.")
    behind = _gauge("replicas_behind", "Replicas that do not run the newest version.")
    for each in measured:
        name = each.overview.deployment.name
        count = counts.get(name)
        if count is None:
            continue
        named = sorted(count.versions, key=int, reverse=True)
        for version in named[:MAX_VERSIONS]:
            live.add_metric([name, version], count.versions[version])
        older = sum(count.versions[version] for version in named[MAX_VERSIONS:])
        if older:
            live.add_metric([name, "older"], older)
        refusing.add_metric([name], count.refusing)
        newest = str(each.document.version) if each.document else "0"
        behind.add_metric([name], count.live - count.versions.get(newest, 0))
    yield from (live, refusing, behind)


def _ledger(measured: Iterable[Measured]) -> Iterator[Metric]:
    families = {name: _gauge(shown, text) for name, (shown, text) in _LEDGER.items()}
    for each in measured:
        for name, family in families.items():
            value = getattr(each.ledger, name)
            if value is not None:
                family.add_metric([each.overview.deployment.name], value)
    yield from families.values()


def _tokens(tokens: TokenCounters) -> Iterator[Metric]:
    families = {
        name: CounterMetricFamily(f"{PREFIX}_{shown}", text, labels=["deployment"])
        for name, (shown, text) in _TOKENS.items()
    }
    alias = CounterMetricFamily(
        "vllm:adaptive_sd_expected_accepted_tokens",
        f"Alias of {PREFIX}_expected_accepted_tokens_total.",
        labels=["model_name"],
    )
    for deployment, totals in sorted(tokens.totals.items()):
        for name, family in families.items():
            family.add_metric([deployment], totals[name])
        alias.add_metric([deployment], totals["predicted"])
    yield from families.values()
    yield alias


def _gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["deployment", *more])
