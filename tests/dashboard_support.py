"""The real service behind a real socket, and a real browser in front of it."""

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import redis
import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from calibrator.cli.service_parts import background, build_context
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.web.app import create_app
from calibrator.store import Store
from serving_adapter.clock import ManualClock
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.settings import load_settings
from tests.web_support import Service

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
PATIENCE = 30_000
"""Milliseconds that a page may take on a machine that does other things too."""
PAST_SECONDS = 900.0


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
    """A service that listens."""

    service: Service
    url: str


@contextlib.contextmanager
def serve(
    folder: Path, parameter_store: EmbeddedParameterStore, local_role: Role | None, *, jobs: bool = True
) -> Iterator[Served]:
    """The whole service on a free port, with its jobs; without tokens everybody here has ``local_role``."""
    redis.Redis.from_url(parameter_store.url).flushall()
    url = f"sqlite:///{folder / 'store.db'}"
    settings = load_settings(
        {"database_url": url, "bus_path": str(folder / "bus.db"), "refresh_seconds": 86_400.0}, environment={}
    )
    store, clock = Store(url), ShiftedClock()
    store.migrate()
    context = build_context(settings, store, parameter_store, clock)
    app = create_app(context, AccessPolicy(store, clock, local_role=local_role))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    stop = threading.Event()
    beside = background(context, stop, lambda: None) if jobs else contextlib.nullcontext()
    with TestClient(app, raise_server_exceptions=False) as client, beside:
        thread.start()
        service = Service(context, app, client, {}, clock)
        try:
            yield Served(service, f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(timeout=20)
    store.close()


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
