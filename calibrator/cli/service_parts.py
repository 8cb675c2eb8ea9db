"""The parts of a running service, made from the settings and put together."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from calibrator.cli.services import proposal_options, retention_rules
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.access.oidc import OidcOptions, OidcVerifier
from calibrator.service.drift import DriftEvaluator
from calibrator.service.jobs.recalibration import Recalibration
from calibrator.service.jobs.runner import JobRunner
from calibrator.service.loop import CalibratorLoop
from calibrator.service.publisher import Publisher
from calibrator.service.recency import RefreshAtAlarms
from calibrator.service.refresh import Refresher
from calibrator.service.rollout.controller import RolloutController
from calibrator.service.web.context import ServiceContext
from calibrator.store import Store
from serving_adapter.clock import SystemClock
from serving_adapter.ports import Clock, ParameterStore
from serving_adapter.settings import Settings

log = logging.getLogger(__name__)

JOIN_SECONDS = 10.0


def build_context(
    settings: Settings, store: Store, parameter_store: ParameterStore, clock: Clock | None = None
) -> ServiceContext:
    """Make what routes and the background work with."""
    clock = clock or SystemClock()
    publisher = Publisher(store, parameter_store, clock, settings.signing_key_bytes)
    refresher = Refresher(
        store,
        parameter_store,
        publisher,
        clock,
        proposal_options(settings),
        explore=settings.explore,
        share=settings.share,
        half_life_seconds=settings.half_life_seconds,
    )
    return ServiceContext(store, parameter_store, publisher, refresher, clock, settings)


def access_policy(
    settings: Settings, store: Store, *, local: bool, clock: Clock | None = None
) -> AccessPolicy:
    """Who is let in; ``local`` says whether only this machine can reach the service."""
    oidc = None
    if settings.oidc_issuer:
        oidc = OidcVerifier(
            OidcOptions(
                settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks_url, settings.oidc_role_claim
            )
        )
    local_role = Role(settings.local_role) if local else None
    return AccessPolicy(store, clock or SystemClock(), oidc, local_role)


def job_runner(context: ServiceContext) -> JobRunner:
    """Make what works off scheduled and requested runs."""
    return JobRunner(
        context.store,
        Recalibration(context.store, context.refresher),
        default_seconds=context.settings.refresh_seconds,
        lease_seconds=context.settings.job_lease_seconds,
        threads=context.settings.job_threads,
    )


@contextlib.contextmanager
def background(
    context: ServiceContext, stop: threading.Event, on_failure: Callable[[], object]
) -> Iterator[threading.Event]:
    """Run loop and jobs beside the web server; the event given is set when the loop has failed.

    ``on_failure`` is called then: a service that only pretends to calibrate must end and be started again.
    """
    failed = threading.Event()
    drift = DriftEvaluator(context.store, context.clock, evaluate_seconds=context.settings.evaluate_seconds)
    rollouts = RolloutController(context.store, context.parameter_store, context.publisher, context.clock)
    loop = CalibratorLoop(
        context.store,
        context.publisher,
        context.clock,
        steps=[drift.step, RefreshAtAlarms(context.store), rollouts.step],
        retention=retention_rules(context.settings),
    )
    jobs = job_runner(context)

    def run() -> None:
        try:
            loop.run(stop)
        except Exception:
            log.exception("calibrator_failed")
            failed.set()
            on_failure()

    worker = threading.Thread(target=run, name="dspark-calibrator", daemon=True)
    worker.start()
    jobs.start()
    try:
        yield failed
    finally:
        stop.set()
        jobs.stop()
        worker.join(timeout=JOIN_SECONDS)
        log.info("calibrator_stopped runs=%d failures=%d", jobs.finished, jobs.failures + loop.failures)
