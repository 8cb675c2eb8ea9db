"""The real service behind a real socket, and a real browser in front of it."""

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import redis
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from calibrator.cli.demo_loop import DemoLoop
from calibrator.cli.service_parts import background, build_context
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.web.app import create_app
from calibrator.service.web.context import ServiceContext
from calibrator.store import Store, deployments
from serving_adapter.clock import ManualClock, SystemClock
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.settings import load_settings
from tests.web_support import Service

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
PATIENCE = 30_000
"""Milliseconds that a page may take on a machine that does other things too."""
PAST_SECONDS = 900.0
DEMO_ROUNDS = 8000


class ShiftedClock(ManualClock):
    """The clock of the wall, some way back: data of the past arrive through it before it is set right."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._now = -PAST_SECONDS

    def now(self) -> float:
        return time.time() + self._now

    def monotonic(self) -> float:
        return time.monotonic()

    def set_right(self) -> None:
        self._now = 0.0


@dataclasses.dataclass
class Served:
    """A service that listens; ``loop`` is an engine that goes on being served, if there is one."""

    service: Service
    url: str
    loop: DemoLoop | None = None

    def get(self, path: str) -> Any:
        answer = self.service.client.get(f"/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The application on a free port; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@contextlib.contextmanager
def serve_empty(
    folder: Path, parameter_store: EmbeddedParameterStore, local_role: Role | None
) -> Iterator[Served]:
    """A service without a deployment; without tokens everybody here has ``local_role``."""
    redis.Redis.from_url(parameter_store.url).flushall()
    url = f"sqlite:///{folder / 'store.db'}"
    settings = load_settings({"database_url": url, "bus_path": str(folder / "bus.db")}, environment={})
    store, clock = Store(url), ShiftedClock()
    clock.set_right()
    store.migrate()
    context = build_context(settings, store, parameter_store, clock)
    app = create_app(context, AccessPolicy(store, clock, local_role=local_role))
    with TestClient(app) as client, listening(app) as address:
        yield Served(Service(context, app, client, {}, clock), address)
    store.close()


@contextlib.contextmanager
def serve_demo_loop(folder: Path) -> Iterator[Served]:
    """The embedded placement after a run of the demo (deployment ``demo``), with jobs and a local operator.

    Beside it ``chat``, whose steps cover a whole curve, and ``idle``, which nobody has sent rows for.
    """
    loop = DemoLoop(folder, DEMO_ROUNDS)
    with loop.placement as placement:
        loop.run()
        context = ServiceContext(
            placement.store, placement.parameter_store, placement.publisher, placement.refresher,
            SystemClock(), msgspec.structs.replace(placement.settings, refresh_seconds=86_400.0),
        )  # fmt: skip
        app = create_app(context, AccessPolicy(placement.store, context.clock, local_role=Role.OPERATOR))
        stop, clock = threading.Event(), ShiftedClock()
        with (
            TestClient(app) as client,
            background(context, stop, lambda: None),
            listening(app) as address,
        ):
            service = Service(context, app, client, {}, clock)
            service.fill(deployment="chat")
            clock.set_right()
            loop.clock.catch_up(time.time())
            with placement.store.write() as connection:
                deployments.register(connection, "idle", 7, "g", context.clock.now())
            yield Served(service, address, loop)


class Watched:
    """A page, and everything that went wrong on it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.problems: list[str] = []
        self.expected: set[int] = set()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: m.type == "error" and self._console(m.text))
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def open(self, path: str) -> Page:
        """Go there and wait until every part of the page has its data."""
        self.page.goto(self.base + path)
        return self.settled()

    def settled(self) -> Page:
        expect(self.page.locator("#page > *").first).to_be_attached(timeout=PATIENCE)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0, timeout=PATIENCE)
        for chart in self.page.locator(".chart:not([hidden])").all():
            expect(chart).to_have_attribute("data-drawn", "true", timeout=PATIENCE)
        return self.page

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def shot(self, folder: Path, name: str) -> None:
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)

    def _console(self, text: str) -> None:
        # The browser's own line about a status that a test expects.
        if not any(f"status of {status} " in text for status in self.expected):
            self.problems.append(f"console: {text}")

    def _failed(self, request: object) -> None:
        # A page that is left, or a choice that is changed, gives up what it has asked for.
        if "ERR_ABORTED" not in str(request.failure):  # type: ignore[attr-defined]
            self.problems.append(f"failed: {request.url} {request.failure}")  # type: ignore[attr-defined]

    def _response(self, response: object) -> None:
        if response.status >= 400 and response.status not in self.expected:  # type: ignore[attr-defined]
            self.problems.append(f"{response.status}: {response.url}")  # type: ignore[attr-defined]


@contextlib.contextmanager
def watched(browser: Browser, base: str, width: int = 1280, scheme: str = "light") -> Iterator[Watched]:
    """A fresh browser window, looked over once more when it closes."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        page = Watched(context.new_page(), base)
        yield page
        assert page.problems == []
    finally:
        context.close()


def screenshots(otherwise: Path) -> Path:
    """Where pictures of pages go: the folder in DSPARK_SCREENSHOTS, if there is one."""
    folder = Path(os.environ.get("DSPARK_SCREENSHOTS") or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
