"""The demo's report pages and its diagrams."""

from __future__ import annotations

from pathlib import Path

from calibrator.cli import output
from calibrator.cli.demo_loop import EVALUATE_SECONDS
from calibrator.cli.demo_run import NO_ALARM, DemoRun, EpisodeSeen, Phase
from calibrator.report.acceptance import told_acceptance
from calibrator.report.deployment_page import render_deployment_page
from calibrator.report.page import Alarm, Refresh, Section, render_page
from calibrator.report.plots import PositionReliability, png, reliability_figure


class DemoPage:
    """Writes ``report.html``, ``deployment.html`` and one PNG per phase into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "report.html"
        self.deployment_path = folder / "deployment.html"

    def write(self, run: DemoRun) -> str:
        """Draw everything and return the page."""
        sections = [self._section(index, phase) for index, phase in enumerate(run.phases)]
        refreshes = [
            Refresh(
                when=f"after {made.rounds:,} rounds",
                asked=made.trigger,
                outcome=made.outcome.outcome,
                form=made.outcome.proposal.form_judged if made.outcome.proposal else "",
                version=made.outcome.document.version if made.outcome.document else None,
                reasons=made.outcome.reasons,
            )
            for made in run.refreshes
        ]
        page = render_page(
            title="DSpark Calibrator: the closed loop on recorded traffic",
            subtitle="Recorded rounds of a real model served as a live engine. Its scheduler decides what is "
            "verified, so only what it let through has a label. Everything here is judged on requests that "
            "were never served and have every label, one stretch of traffic at a time. deployment.html tells "
            "the same run from the labels that the engine let through, as an operator sees it: its noise "
            "floors are higher, and its errors of the same version may be by as much.",
            sections=sections,
            refreshes=refreshes,
            alarms=[_alarm(seen) for seen in run.episodes],
            about_alarms=(
                f"A weaker drafter was put in place after {run.drift_at:,} rounds. Looked for drift every "
                f"{EVALUATE_SECONDS:g} s of engine time (DSPARK_EVALUATE_SECONDS; 10 s by default). Once an "
                "alarm has 1,000 rows behind it, it asks for a refit without the rows from before the drift. "
                + " ".join(told_acceptance(run.period))
            ),
            no_alarms=NO_ALARM,
            ledger=run.ledger,
            facts=(
                ("rounds served", f"{run.ledger['emitted']:,}"),
                ("refreshes", str(len(run.refreshes))),
                ("published", str(sum(made.outcome.document is not None for made in run.refreshes))),
                ("drift alarms", str(len(run.episodes))),
                ("rounds lost", f"{run.ledger['lost']:,}"),
            ),
        )
        output.write_file(self.path, page)
        output.write_file(self.deployment_path, render_deployment_page(run.period, run.period["to"]))
        return page

    def _section(self, index: int, phase: Phase) -> Section:
        positions = [
            PositionReliability(
                before.position,
                phase.reliability(before.position, before=True),
                phase.reliability(before.position, before=False),
            )
            for before in phase.before
        ]
        image = png(reliability_figure(phase.name, positions))
        output.write_file(self.folder / f"reliability-{index + 1}.png", image)
        return Section(
            title=phase.name,
            text=phase.text,
            before=phase.before,
            after=phase.after,
            temperatures=phase.parameters.temperatures.tolist(),
            offsets=phase.parameters.offsets.tolist(),
            coverage=phase.coverage,
            statuses=phase.statuses,
            version=phase.parameters.version,
            form=phase.parameters.form,
            mean_before=phase.mean_before,
            mean_after=phase.mean_after,
            mean_noise_floor=phase.mean_noise_floor,
            limited=phase.temperature_form,
            figure_png=image,
            figure_text=f"Reliability diagrams of {len(positions)} draft positions, before and after",
        )


def _alarm(seen: EpisodeSeen) -> Alarm:
    episode = seen.episode
    return Alarm(
        kind=episode.kind,
        where=f"{episode.segment or 'all traffic'}"
        + ("" if episode.position is None else f", position {episode.position}"),
        version=episode.version,
        began=seen.began,
        alarmed=seen.alarmed,
        ended=seen.ended,
        ended_by=seen.ended_by,
        gap=episode.gap,
        summary=episode.summary,
        remedy=episode.remedy,
    )
