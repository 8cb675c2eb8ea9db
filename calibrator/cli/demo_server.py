"""``demo --serve``: the loop goes on in real time, under the dashboard of the service."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import uvicorn

from calibrator.cli import output
from calibrator.cli.demo_loop import CONCURRENCY, DemoLoop
from calibrator.cli.serve import GOODBYE_SECONDS, on_loopback
from calibrator.cli.service_parts import background
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.web.app import create_app
from calibrator.service.web.context import ServiceContext
from calibrator.service.web.server import EndingServer

JOIN_SECONDS = 30.0
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

    def goodbye() -> None:
        output.err.print("stopping", markup=False)
        app.state.live.close()

    server = EndingServer(
        uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GOODBYE_SECONDS),
        goodbye,
    )
    stop = threading.Event()
    loop.clock.catch_up(time.time())
    # Else a rollout would see the same few requests for ever, and its intervals would never narrow.
    loop.engine.deal_as_new_requests()
    engine = threading.Thread(target=keep_serving, args=(loop, stop), name="dspark-demo", daemon=True)
    engine.start()
    host, port = listener.getsockname()[:2]
    output.err.print(
        f"store, while this runs: {placement.settings.database_url}  "
        f"(dspark-calibrator report --deployment {placement.settings.deployment} --database-url ...)",
        markup=False,
        soft_wrap=True,
    )
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


def keep_serving(loop: DemoLoop, stop: threading.Event) -> None:
    """Run the engine as fast as its own clock says, which is that of the wall, until told to stop."""
    while not stop.is_set():
        ahead = loop.clock.now() - time.time()
        if ahead > 0:
            stop.wait(min(ahead, LONGEST_PAUSE_SECONDS))
        else:
            loop.engine.run(rounds=CONCURRENCY)
