"""The long-running commands of pods and collectors, ``sidecar`` and ``collect``; and ``migrate``."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.log_setup import configure_logging
from calibrator.cli.running import existing_store, migrated, opened_store, stop_on_signal, wait_for
from calibrator.core.candidate import ProposalOptions
from calibrator.store import retention
from collectors.collector import Collector
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter import sidecar as pod
from serving_adapter.buses import ensure_topics, open_dead_letters, open_source
from serving_adapter.clock import SystemClock
from serving_adapter.settings import Settings, load_settings

DeploymentOption = Annotated[
    str | None, typer.Option(help="Name of the deployment (DSPARK_DEPLOYMENT).", show_default=False)
]
DatabaseOption = Annotated[
    str | None, typer.Option(help="SQLAlchemy URL of the store (DSPARK_DATABASE_URL).", show_default=False)
]
KafkaOption = Annotated[
    str | None,
    typer.Option(help="Kafka brokers, host:port with commas (DSPARK_KAFKA_BOOTSTRAP).", show_default=False),
]
RedisOption = Annotated[
    str | None, typer.Option(help="URL of the parameter store (DSPARK_REDIS_URL).", show_default=False)
]


def sidecar(
    deployment: DeploymentOption = None,
    replica: Annotated[
        str | None, typer.Option(help="Name of this replica (DSPARK_REPLICA).", show_default=False)
    ] = None,
    ring: Annotated[
        str | None, typer.Option(help="Shared memory of the engine (DSPARK_RING).", show_default=False)
    ] = None,
    kafka_bootstrap: KafkaOption = None,
    redis_url: RedisOption = None,
) -> int:
    """Run a pod's two loops: ring to bus, parameter store to mirror. SIGTERM drains within 10 s.

    A pod without the control plane installed runs the same as `python -m serving_adapter.sidecar`. Every
    other option is an environment variable, see `dspark-calibrator doctor --options`.

    Examples:

      dspark-calibrator sidecar --deployment chat --ring dspark --kafka-bootstrap broker:9092
    """
    given = {
        "--deployment": deployment,
        "--replica": replica,
        "--ring": ring,
        "--kafka-bootstrap": kafka_bootstrap,
        "--redis-url": redis_url,
    }
    return pod.main([part for name, value in given.items() if value is not None for part in (name, value)])


def collect(
    database_url: DatabaseOption = None,
    kafka_bootstrap: KafkaOption = None,
) -> int:
    """Fold verify events into the store, each row exactly once. SIGTERM finishes and hands over.

    Any number of collectors share the partitions of the topic. A server that is down is waited for.

    Examples:

      DSPARK_KAFKA_BOOTSTRAP=broker:9092 dspark-calibrator collect --database-url postgresql://db/dspark
    """
    settings = load_settings({"database_url": database_url, "kafka_bootstrap": kafka_bootstrap})
    configure_logging(settings)
    clock = SystemClock()
    options = pipeline_options(settings)
    with opened_store(settings) as store, stop_on_signal() as stop:
        ready = migrated(store, stop) and wait_for("bus", lambda: ensure_topics(settings), stop) is not None
        dead_letters = wait_for("bus", lambda: open_dead_letters(settings), stop) if ready else None
        if dead_letters is None:
            return 0  # stopped before its servers were there
        pipeline = IngestPipeline(store, dead_letters, clock, options)
        collector = Collector(
            pipeline, settings.kafka_topic, lambda listener: open_source(settings, listener), clock
        )
        collector.run(stop)
        with contextlib.suppress(Exception):
            dead_letters.close()
    logging.getLogger(__name__).info("collector_stopped %s", collector.statistics)
    return 0


def migrate(
    revision: Annotated[str, typer.Argument(help="Revision to go to.")] = "head",
    downgrade: Annotated[
        bool, typer.Option("--downgrade", help="Go back to the revision (drops what came later).")
    ] = False,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Bring the store's tables to a revision.

    Examples:

      dspark-calibrator migrate

      dspark-calibrator migrate --downgrade base
    """
    settings = load_settings({"database_url": database_url})
    with existing_store(settings) if downgrade else opened_store(settings) as store:
        before = store.revision()
        if downgrade:
            store.downgrade(revision)
        else:
            store.migrate(revision)
        after = store.revision()
    if as_json:
        output.print_json({"before": before, "after": after})
    else:
        output.out.print(f"{before or 'empty'} -> {after or 'empty'}", markup=False)


def pipeline_options(settings: Settings) -> PipelineOptions:
    """Options of the ingest pipeline from the one settings object."""
    try:
        return PipelineOptions(
            window_seconds=int(settings.window_seconds),
            half_life_seconds=settings.half_life_seconds,
            sample_rows=settings.sample_rows,
            group=settings.kafka_group,
        )
    except ValueError as error:
        name, _, problem = str(error).partition(":")
        raise output.UsageError(f"DSPARK_{name.upper()}:{problem}") from error


def proposal_options(settings: Settings) -> ProposalOptions:
    """Options of a refresh from the one settings object."""
    return ProposalOptions(form=settings.form, bins=settings.bins, max_log_step=settings.max_step)


def retention_rules(settings: Settings) -> retention.Retention:
    """How long the store keeps what."""
    return retention.Retention(
        window_days=settings.retention_days,
        audit_days=settings.audit_days,
        rollout_days=settings.rollout_days,
    )
