"""``demo --serve``: the loop goes on, and its report page is served while it does."""

from __future__ import annotations

import contextlib
import socket
import threading

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from calibrator.cli import output
from calibrator.cli.demo_loop import CONCURRENCY, DemoLoop
from calibrator.cli.demo_page import DemoPage

REFRESH_ROUNDS = 3000
PAUSE_SECONDS = 5.0
"""Between two refreshes of the running demo: it should not keep a laptop's fan busy."""


def serve_demo(loop: DemoLoop, page: DemoPage, host: str, port: int) -> None:
    """Serve the page until interrupted, refreshing it with the loop.

    Raises
    ------
    UsageError
        The address cannot be listened on.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise output.UsageError(
            f"--port: got {host}:{port}, which cannot be listened on ({error.strerror})"
        ) from error
    app = FastAPI(title="DSpark Calibrator demo", docs_url=None, redoc_url=None)

    @app.get("/", response_class=HTMLResponse)
    def report() -> str:
        return page.path.read_text(encoding="utf-8")

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    stop = threading.Event()
    worker = threading.Thread(target=_keep_running, args=(loop, page, stop), name="dspark-demo", daemon=True)
    worker.start()
    output.err.print(f"serving http://{host}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", markup=False)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    stop.set()
    worker.join(timeout=30.0)


def _keep_running(loop: DemoLoop, page: DemoPage, stop: threading.Event) -> None:
    while not stop.wait(PAUSE_SECONDS):
        target = loop.engine.ledger.rounds + REFRESH_ROUNDS
        while loop.engine.ledger.rounds < target and not stop.is_set():
            loop.engine.run(rounds=CONCURRENCY)
        if not stop.is_set():
            loop.refresh()
            page.write(loop.judge_again())
