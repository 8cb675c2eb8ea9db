"""The demo's report page and its diagrams."""

from __future__ import annotations

from pathlib import Path

from calibrator.cli import output
from calibrator.cli.demo_loop import DemoRun, Phase
from calibrator.report.page import Refresh, Section, render_page
from calibrator.report.plots import PositionReliability, png, reliability_figure


class DemoPage:
    """Writes ``report.html`` and one PNG per phase into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "report.html"

    def write(self, run: DemoRun) -> str:
        """Draw everything and return the page."""
        sections = [self._section(index, phase) for index, phase in enumerate(run.phases)]
        refreshes = [
            Refresh(
                when=f"after {rounds:,} rounds",
                outcome=outcome.outcome,
                form=outcome.proposal.form_judged if outcome.proposal else "",
                version=outcome.document.version if outcome.document else None,
                reasons=outcome.reasons,
            )
            for rounds, outcome in run.refreshes
        ]
        page = render_page(
            title="DSpark Calibrator: the closed loop on recorded traffic",
            subtitle="Recorded rounds of a real model served as a live engine. Its scheduler decides what is "
            "verified, so only what it let through has a label. Everything is judged on requests that were "
            "never served.",
            sections=sections,
            refreshes=refreshes,
            ledger=run.ledger,
            facts=(
                ("rounds served", f"{run.ledger['emitted']:,}"),
                ("refreshes", str(len(run.refreshes))),
                ("published", str(sum(o.document is not None for _, o in run.refreshes))),
                ("rounds lost", f"{run.ledger['lost']:,}"),
            ),
        )
        output.write_file(self.path, page)
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
