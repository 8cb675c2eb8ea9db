"""``dspark-calibrator report``: one deployment, one period, one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.running import existing_store
from calibrator.cli.services import DatabaseOption, DeploymentOption
from calibrator.report.deployment_page import headline, render_deployment_page
from calibrator.report.machine import machine_numbers
from calibrator.service.reading.period import period_numbers
from calibrator.service.web.times import parse_time
from calibrator.store import Store, deployments
from calibrator.store.deployments import Deployment
from serving_adapter.clock import SystemClock
from serving_adapter.settings import Settings, load_settings

DEFAULT_SECONDS = 86_400.0
_SHOWN_NAMES = 10


def report(
    deployment: DeploymentOption = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Begin: RFC 3339, or seconds since 1970. A day before the end."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End: the same. Now.")] = None,
    database_url: DatabaseOption = None,
    out: Annotated[Path, typer.Option("--output", help="The page to write.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write a report page: reliability, error over time, parameters, exploration, drift, value, reasons.

    The page is one file that needs nothing from anywhere else. With --json the numbers go to stdout and no
    page is written.

    Examples:

      dspark-calibrator report --deployment chat

      dspark-calibrator report --deployment chat --from 2026-11-28T00:00:00Z --to 2026-11-29T00:00:00Z --json
    """
    settings = load_settings({"deployment": deployment, "database_url": database_url})
    now = SystemClock().now()
    first, last = _period(start, end, now)
    with existing_store(settings) as store:
        store.check_schema()
        known = _deployment(store, settings)
        with store.read() as connection:
            numbers = period_numbers(connection, known, first, last, settings.window_seconds)
    if as_json:
        output.print_json(machine_numbers(numbers))
        return
    output.write_file(out, render_deployment_page(numbers, now))
    top, f = headline(numbers), output.figure
    output.out.print(
        f"{known.name}: {top['rounds']:,} rounds, mean ECE {f(top['ece_raw'])} raw, "
        f"{f(top['ece_in_force'])} in force, noise floor {f(top['noise_floor'])}; "
        f"{top['published']} versions published, {len(top['open'])} drift episodes open",
        markup=False,
        soft_wrap=True,
    )
    output.out.print(f"wrote {out}", markup=False, soft_wrap=True)


def _period(start: str | None, end: str | None, now: float) -> tuple[float, float]:
    until = now if end is None else _time("--to", end)
    last = min(until, now)
    first = max(0.0, last - DEFAULT_SECONDS) if start is None else _time("--from", start)
    if end is not None and first >= until:
        raise output.UsageError(f"--from: got {start}, expected a time before --to = {end}")
    if first >= now:
        raise output.UsageError(f"--from: got {start}, expected a time in the past")
    return first, last


def _time(option: str, text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise output.UsageError(f"{option}: got {text!r}, {error}") from None


def _deployment(store: Store, settings: Settings) -> Deployment:
    with store.read() as connection:
        found = deployments.get(connection, settings.deployment)
        names = [] if found is not None else [each.name for each in deployments.every(connection)]
    if found is not None:
        return found
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    expected = (
        f"expected one of {', '.join(names[:_SHOWN_NAMES])}{more}" if names else "no deployment is known"
    )
    raise output.UsageError(f"--deployment: got {settings.deployment!r}, {expected}")
