"""How long the API takes over a month of one-minute windows, and how soon it shows what came in.

A PostgreSQL of its own with 30 days of a deployment of 7 positions and 8 segments, an uvicorn server, and a
client that asks over TCP, on the same cores. The yardstick is the aggregate that a service without roll-ups
over segments would send: the sums of all hours of all segments, in SQL, nothing rendered. The last figures
are the time from handing a message to the pipeline until the API shows its rows, and until an event says so.

    python -m benchmarks.api [--json] [--requests 40] [--minute-days 1]
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from sqlalchemy import text

from benchmarks.figures import wants_table
from calibrator.cli.service_parts import access_policy, build_context
from calibrator.core.sums import SQUARED_UNIT
from calibrator.core.windows import UNIT
from calibrator.service.web.app import create_app
from calibrator.store import Store, deployments, schema, windows
from calibrator.store.windows import HOUR
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import SystemClock
from serving_adapter.contract import Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK, encode_msgpack
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.ports import Message, OutgoingMessage
from serving_adapter.settings import load_settings
from tools.servers import PostgresServer

GAMMA, SEGMENTS, DAYS = 7, 8, 30
DAY = 86_400
BAR_SECONDS, VISIBLE_SECONDS = 0.1, 2.0
_VALUES = {
    "drafted": "n", "verified": "n", "accepted": "n / 2", "predicted": "n / 2 * {u}", "weight": "n * {u}",
    "weight_squared": "n * {s}", "weight_predicted": "n / 2 * {u}", "weight_accepted": "n / 2 * {u}",
    "brier": "n / 5 * {u}", "log_loss": "n / 3 * {u}",
}  # fmt: skip
_BINS = {
    "drafted": "{m}", "weight": "{m} * {u}", "weight_squared": "{m} * {s}", "predicted": "{m} * {p}",
    "accepted": "{m} * {r}",
}  # fmt: skip


class NoDeadLetters:
    """Every message of this benchmark can be decoded."""

    def publish(self, messages: list[OutgoingMessage]) -> int:
        raise AssertionError(f"dead letters: {messages}")

    def close(self) -> None: ...


def column_value(column: str) -> str:
    """SQL of one sum of a window with about a thousand rounds."""
    unit, squared = int(UNIT), int(SQUARED_UNIT)
    if not column.startswith("bin_"):
        return _VALUES[column].format(u=unit, s=squared)
    name, _, number = column.removeprefix("bin_").rpartition("_")
    b = int(number)
    mass = f"(n / 20 + (h * {b + 3}) % 17)"
    return _BINS[name].format(
        m=mass, u=unit, s=squared, p=int(unit * (b + 0.5) / 20), r=int(unit * min(1.0, (b + 0.2) / 20))
    )


def fill(store: Store, deployment_id: int, table: str, width: int, start: int, end: int) -> None:
    """Make the windows of ``[start, end)`` inside the database."""
    pooled = "pooled" in table
    columns = ", ".join(schema.SUM_COLUMNS)
    keys = (
        "deployment_id, start, position" if pooled else "deployment_id, start, segment_id, sampling, position"
    )
    chosen = ", ".join(
        f"({SEGMENTS} * ({column_value(name)}))::bigint" if pooled else column_value(name)
        for name in schema.SUM_COLUMNS
    )
    key_values = "{d}, h * {w}, p" if pooled else "{d}, h * {w}, s.id, 'mid', p"
    whose = "" if pooled else f"JOIN segments s ON s.deployment_id = {deployment_id}"
    statement = (
        f"INSERT INTO {table} ({keys}, {columns}) "
        f"SELECT {key_values.format(d=deployment_id, w=width)}, {chosen} "
        f"FROM generate_series({start // width}, {end // width - 1}) h "
        f"{whose} {'CROSS' if pooled else ''} JOIN generate_series(1, {GAMMA}) p "
        f"{'' if pooled else 'ON true'} "
        f"CROSS JOIN LATERAL (SELECT (1000 + (h * 31 + p * 7) % 977)::bigint AS n) x"
    )
    with store.write() as connection:
        connection.execute(text(statement))


def prepare(store: Store, now: float, minute_days: int) -> deployments.Deployment:
    """A deployment with a month of hours, and some days of minutes."""
    store.migrate()
    with store.write() as connection:
        made = deployments.register(connection, "chat", GAMMA, "f", now - DAYS * DAY)
        deployments.add_segments(connection, made.id, [f"segment-{i}" for i in range(SEGMENTS)])
    end = (int(now) // HOUR + 1) * HOUR
    for raw in ("", "raw_"):
        fill(store, made.id, f"{raw}window_hours", HOUR, end - DAYS * DAY, end)
        fill(store, made.id, f"{raw}pooled_hours", HOUR, end - DAYS * DAY, end)
        fill(store, made.id, f"{raw}windows", 60, end - minute_days * DAY, end)
    with store.write() as connection:
        connection.execute(text("ANALYZE"))
    return made


def timed(work: Callable[[], object], times: int) -> dict[str, float]:
    """Median and 95th percentile of the seconds that ``work`` takes, after two rounds that do not count."""
    seconds = []
    for turn in range(times + 2):
        began = time.perf_counter()
        work()
        if turn >= 2:
            seconds.append(time.perf_counter() - began)
    return quantiles(seconds)


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"median": float(np.median(seconds)), "p95": float(np.quantile(seconds, 0.95))}


@contextlib.contextmanager
def serving(app: object) -> Iterator[str]:
    """The application on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def visible(store: Store, client: httpx.Client, messages: int = 8) -> tuple[list[float], list[float]]:
    """Seconds from handing over a message until the API shows its rows, and until an event tells of them."""
    pipeline = IngestPipeline(store, NoDeadLetters(), SystemClock(), PipelineOptions())
    random = np.random.default_rng(0)
    shown, told = [], []
    with client.stream("GET", "/v1/events", params={"deployment": "live"}, timeout=30.0) as stream:
        lines = stream.iter_lines()
        next(lines)
        for number in range(messages):
            rounds = Rounds.build(random.normal(size=(500, GAMMA)), random.integers(0, GAMMA + 1, 500))
            batch = VerifyBatch(
                deployment="live", fingerprint="f", replica="pod-0", boot="b", sequence=500 * number, lost=0,
                emitted_at=time.time_ns(), rounds=rounds, steps=Steps.empty(), gamma=GAMMA,
            )  # fmt: skip
            headers = ((CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode()),)
            wanted = 500 * (number + 1)
            began = time.perf_counter()
            pipeline.ingest([Message("t", 0, number, b"pod-0", encode_msgpack(batch), headers)])
            while client.get("/v1/deployments/live").json().get("rounds") != wanted:
                time.sleep(0.01)
            shown.append(time.perf_counter() - began)
            while f'"rounds": {wanted}' not in next(lines):
                pass
            told.append(time.perf_counter() - began)
            # An event of a deployment that streams is held back for two seconds; a first one is not.
            time.sleep(2.0 + 0.1 * (number % 5))
    return shown, told


def measure(requests: int, minute_days: int) -> dict[str, object]:
    """Fill, serve, ask."""
    with PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            {"database_url": server.url, "bus_path": str(Path(folder) / "bus.db")}, environment={}
        )
        store, parameter_store = Store(server.url), EmbeddedParameterStore()
        try:
            now = time.time()
            known = prepare(store, now, minute_days)
            context = build_context(settings, store, parameter_store)
            app = create_app(context, access_policy(settings, store, local=True))
            month = {"from": str(now - DAYS * DAY), "to": str(now)}

            def bare() -> None:
                end = (int(now) // HOUR + 1) * HOUR
                with store.read() as connection:
                    windows.query(
                        connection, known.id, GAMMA, end - DAYS * DAY, end, 4 * HOUR, by_sampling=True
                    )

            with serving(app) as address, httpx.Client(base_url=address) as client:

                def ask(path: str, **query: str) -> Callable[[], object]:
                    def once() -> None:
                        client.get(path, params=query).raise_for_status()

                    return once

                chat = "/v1/deployments/chat"
                figures = {
                    "bare aggregate over segments, 30 days": timed(bare, requests // 4),
                    "calibration, 30 days": timed(ask(f"{chat}/calibration", **month), requests),
                    "calibration, 30 days, one segment": timed(
                        ask(f"{chat}/calibration", segment="segment-3", **month), requests
                    ),
                    "calibration, last hour by minutes": timed(ask(f"{chat}/calibration"), requests),
                    "reliability, 30 days": timed(ask(f"{chat}/reliability", **month), requests),
                    "deployments": timed(ask("/v1/deployments"), requests),
                    "who am I": timed(ask("/v1/me"), requests),
                }
                shown, told = visible(store, client)
        finally:
            parameter_store.close()
            store.close()
    bar = figures["calibration, 30 days"]
    return {
        "benchmark": "api",
        "seconds": figures,
        "ratio": bar["median"] / figures["bare aggregate over segments, 30 days"]["median"],
        "bar": {"p95_seconds": BAR_SECONDS, "met": bar["p95"] <= BAR_SECONDS},
        "event_to_visible": {**quantiles(shown), "met": quantiles(shown)["p95"] <= VISIBLE_SECONDS},
        "event_to_notice": quantiles(told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    parser.add_argument("--requests", type=int, default=40, help="requests per figure")
    parser.add_argument("--minute-days", type=int, default=1, help="days of one-minute windows (1 KB a row)")
    options = parser.parse_args()
    found = measure(options.requests, options.minute_days)
    if not wants_table(found, options.json):
        return
    print("| request | median | p95 |")
    print("|---|---|---|")
    for name, figure in found["seconds"].items():  # type: ignore[attr-defined]
        print(f"| {name} | {1e3 * figure['median']:.0f} ms | {1e3 * figure['p95']:.0f} ms |")
    print(f"30 days over the API against the bare aggregate: {found['ratio']:.2f}")
    for name in ("event_to_visible", "event_to_notice"):
        print(f"{name.replace('_', ' ')}: {found[name]}")


if __name__ == "__main__":
    main()
