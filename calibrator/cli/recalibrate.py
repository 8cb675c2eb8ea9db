"""``dspark-calibrator recalibrate``: one run now, for a CronJob or a person."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.log_setup import configure_logging
from calibrator.cli.running import existing_store
from calibrator.cli.service_parts import build_context, job_runner
from calibrator.cli.services import DatabaseOption, DeploymentOption, RedisOption
from calibrator.service.web.models.jobs import RunItem
from calibrator.store import Store, deployments, runs
from calibrator.store.runs import Run
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.settings import load_settings

_SHOWN_NAMES = 10


def recalibrate(
    deployment: DeploymentOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide, and keep the evidence, but publish nothing.")
    ] = False,
    database_url: DatabaseOption = None,
    redis_url: RedisOption = None,
    as_json: AsJson = False,
) -> int:
    """Recalibrate a deployment once and say what came of it; exit code 1 when the run failed.

    The run is in the history of the service like any other, and never at the same time as another one of the
    deployment. A service that runs on the same database may do it in our place. The database must be there:
    `collect`, `serve` or `migrate` makes it.

    Examples:

      dspark-calibrator recalibrate --deployment chat

      dspark-calibrator recalibrate --deployment chat --dry-run --json
    """
    settings = load_settings({"deployment": deployment, "database_url": database_url, "redis_url": redis_url})
    configure_logging(settings)
    # That the tables were looked at is no event of a run.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with (
        existing_store(settings) as store,
        contextlib.closing(open_parameter_store(settings)) as parameter_store,
    ):
        if dry_run:
            store.check_schema()
        else:
            store.migrate()
        asked = _request(store, settings.deployment, dry_run)
        run = job_runner(build_context(settings, store, parameter_store)).work_until_finished(asked)
    shown = RunItem.of(run, settings.deployment)
    if as_json:
        output.print_json(shown.model_dump(mode="json"))
    else:
        output.out.print(_sentence(shown), markup=False, soft_wrap=True)
        for reason in shown.reasons:
            output.out.print(f"  {reason}", markup=False, soft_wrap=True)
    return 0 if run.state == runs.DONE else 1


def _request(store: Store, name: str, dry_run: bool) -> Run:
    with store.write() as connection:
        known = deployments.get(connection, name)
        if known is None:
            names = [each.name for each in deployments.every(connection)]
            listed = ", ".join(names[:_SHOWN_NAMES]) + (" ..." if len(names) > _SHOWN_NAMES else "")
            raise output.UsageError(
                f"--deployment: got {name!r}, which has sent nothing yet; known: {listed or 'none'}"
            )
        return runs.request_run(connection, known.id, runs.MANUAL, dry_run)


def _sentence(run: RunItem) -> str:
    outcome = (run.outcome or run.state).replace("_", " ")
    version = f" version {run.version}" if run.version is not None else ""
    rows = f" from {run.rows} rows" if run.rows is not None else ""
    return f"{run.deployment}: {outcome}{version}{rows} (run {run.id})"
