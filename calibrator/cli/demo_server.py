"""``demo --serve``: the loop goes on in real time, under the dashboard of the service."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import uvicorn

from calibrator.cli import output
from calibrator.cli.demo_loop import CONCURRENCY, EXPLORE, DemoLoop
from calibrator.cli.profile import ReplayTimer
from calibrator.cli.serve import GOODBYE_SECONDS, on_loopback
from calibrator.cli.service_parts import background
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.deployment_settings import merge_settings
from calibrator.service.web.app import create_app
from calibrator.service.web.context import ServiceContext
from calibrator.service.web.server import EndingServer
from calibrator.store import deployments
from serving_adapter.profiling import profile, unseen_sizes

JOIN_SECONDS = 30.0
PROFILE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 0.25
"""The engine looks at least this often whether it should stop."""


def bind_demo(host: str, port: int) -> socket.socket:
    """Take the port before the run, which takes a while: one that is taken is told at once.

    Raises
    ------
    UsageError
        The address cannot be listened on.
    """
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise output.UsageError(
            f"--port: got {host}:{port}, which cannot be listened on ({error.strerror or error})"
        ) from error


def serve_demo(loop: DemoLoop, listener: socket.socket) -> None:
    """Serve the dashboard on the running loop until interrupted.

    Whoever is on this machine may change everything, for nothing here lasts; others may look.
    """
    placement = loop.placement
    context = ServiceContext(
        placement.store,
        placement.parameter_store,
        placement.publisher,
        placement.refresher,
        loop.clock,
        placement.settings,
    )
    role = Role.OPERATOR if on_loopback(listener) else Role.VIEWER
    app = create_app(context, AccessPolicy(placement.store, loop.clock, local_role=role))
    server = EndingServer(
        uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GOODBYE_SECONDS),
        app.state.live.close,
    )
    stop = threading.Event()
    loop.clock.catch_up(time.time())
    explore_all_the_same(loop)
    profile_engine(loop)
    # Else a rollout would see the same few requests for ever, and its intervals would never narrow.
    loop.engine.deal_as_new_requests()
    engine = threading.Thread(target=keep_serving, args=(loop, stop), name="dspark-demo", daemon=True)
    engine.start()
    host, port = listener.getsockname()[:2]
    output.err.print(f"dashboard: http://{host}:{port}/  (Ctrl-C ends it)", markup=False, soft_wrap=True)
    try:
        with (
            background(context, stop, lambda: setattr(server, "should_exit", True)),
            contextlib.suppress(KeyboardInterrupt),
        ):
            server.run(sockets=[listener])
    finally:
        stop.set()
        engine.join(timeout=JOIN_SECONDS)


def explore_all_the_same(loop: DemoLoop) -> None:
    """Keep exploring: an engine that replays is never idle, which would count as saturation."""
    with loop.placement.store.write() as connection:
        known = deployments.get(connection, loop.placement.settings.deployment)
        assert known is not None
        settings = merge_settings(known.settings, {"explore": {"mode": "fixed", "explore": EXPLORE}})
        deployments.set_settings(connection, known.id, settings)


def profile_engine(loop: DemoLoop) -> None:
    """Time steps of every size and report them, as an engine does that is profiled at its start.

    The scheduler of the run stayed at the sizes that it likes; without the others there is no curve to
    publish, and nothing to replay a scheduler with.
    """
    gamma = loop.placement.adapter.identity.gamma
    sizes = [size for size in unseen_sizes(CONCURRENCY * (1 + gamma)) if size >= CONCURRENCY]
    steps = profile(ReplayTimer(), sizes, budget_seconds=PROFILE_SECONDS).steps
    for seconds, tokens in zip(steps.step_seconds.tolist(), steps.batch_tokens.tolist(), strict=True):
        loop.placement.adapter.observe(
            np.zeros((0, gamma)),
            np.zeros(0),
            request=np.zeros(0, dtype=np.uint64),
            step_seconds=seconds,
            verify_seconds=seconds,
            batch_tokens=tokens,
            requests=CONCURRENCY,
        )


def keep_serving(loop: DemoLoop, stop: threading.Event) -> None:
    """Run the engine as fast as its own clock says, which is that of the wall, until told to stop."""
    while not stop.is_set():
        ahead = loop.clock.now() - time.time()
        if ahead > 0:
            stop.wait(min(ahead, LONGEST_PAUSE_SECONDS))
        else:
            loop.engine.run(rounds=CONCURRENCY)
