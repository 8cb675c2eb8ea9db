"""Traffic through real servers while everything is killed at random, until the books are balanced.

``python -m tools.soak --minutes 10`` (``make soak MINUTES=10``): two engines with their sidecars, Kafka,
Redis, PostgreSQL, two collectors and the calibrator. Every few seconds one of them is killed, told to end,
frozen or emptied; the ring of one engine is small, so that it loses rows when nobody reads for long. At the
end every row that the engines emitted must be folded once, or counted as lost, or dead-lettered, and the
sums per position must be those of the engines' own ledgers.

Progress goes to stderr. The last line of stdout is the ledger as one JSON object; the exit code is 0 only
when ``balance`` is 0 and nothing differs.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from calibrator.store import StoreError
from tools.fault_rig import GAMMA, Pod, Rig, RigProcess
from tools.fault_rig.books import compare, totals_of
from tools.servers import KafkaServer, PostgresServer, RedisServer, Server, ServerFailed, ServerUnavailable

PACE = 1000
"""Rounds a second and engine."""
DATABASE = "soak"


class Soak:
    """The run: what may happen, and the ledger at its end.

    Parameters
    ----------
    rig, kafka, cache, database
        Everything that may be killed.
    chance
        Decides what happens when.
    ended
        Cuts the run short.
    """

    def __init__(
        self,
        rig: Rig,
        kafka: KafkaServer,
        cache: RedisServer,
        database: PostgresServer,
        chance: random.Random,
        ended: threading.Event,
    ) -> None:
        self.rig, self._chance, self._ended = rig, chance, ended
        self._cache = cache
        self._begun = time.monotonic()
        self.pods = [rig.pod(pace=PACE), rig.pod(pace=PACE, ring_rounds=4 * PACE, ring_steps=256)]
        self.collectors = [rig.collector() for _ in range(2)]
        self.service = rig.service()
        self.events: dict[str, int] = {}
        # The weights: pods and collectors die every day, brokers and databases now and then.
        self._faults: list[tuple[int, Callable[[], str]]] = [
            (4, self._kill_collector),
            (2, self._end_collector),
            (3, self._kill_sidecar),
            (2, lambda: self._kill_sidecar_unheard(kafka)),
            (3, self._kill_engine),
            (2, self._kill_service),
            (2, self._freeze),
            (1, lambda: self._server(kafka)),
            (1, lambda: self._server(cache)),
            (1, self._empty_redis),
            (2, lambda: self._server(database)),
        ]

    def run(self, seconds: float) -> None:
        """Let rows flow and things happen for so long."""
        for pod in self.pods:
            pod.start()
        for process in (*self.collectors, self.service):
            process.start()
        # A slow machine takes a while to start engines; what goes wrong before there are rows proves nothing.
        self.rig.until(lambda: all(pod.emitted for pod in self.pods), "every engine emits")
        deadline = time.monotonic() + seconds
        weights, faults = zip(*self._faults, strict=True)
        while time.monotonic() < deadline and not self._ended.is_set():
            self._ended.wait(min(self._chance.uniform(1.0, 6.0), max(0.0, deadline - time.monotonic())))
            self.rig.look_after()
            what = self._chance.choices(faults, weights)[0]()
            self.events[what] = self.events.get(what, 0) + 1
            self.tell(what)

    def settle(self) -> tuple[dict[str, int], list[str]]:
        """End the engines, let everything arrive; the ledger, and what differs."""
        self.tell("the engines end")
        try:
            self.rig.settle()
            differences = []
        except AssertionError as error:
            differences = [str(error)]
        for pod in self.pods:
            if pod.engine.running:
                pod.kill_engine()
        books = self.rig.books()
        found = self.rig.stored()
        differences += compare(books, found, GAMMA)
        emitted = totals_of(books)[0]
        totals = found.totals
        ledger = {
            "emitted": emitted,
            "lost": totals.lost,
            "folded": totals.folded,
            "dead_lettered": totals.dead_lettered,
            "duplicates_discarded": totals.duplicates_discarded,
            "balance": emitted - totals.lost - totals.folded - totals.dead_lettered,
        }
        return ledger, differences

    def tell(self, what: str) -> None:
        """One line of progress on stderr."""
        try:
            totals = self.rig.stored().totals
            state = (
                f"folded {totals.folded:>9,} lost {totals.lost:>6,} "
                f"again {totals.duplicates_discarded:>7,} version {self.rig.stored_version()}"
            )
        except StoreError:
            state = "the store does not answer"
        emitted = sum(pod.emitted for pod in self.pods)
        print(
            f"{time.monotonic() - self._begun:7.1f} s  {what:<38} emitted {emitted:>9,} {state}",
            file=sys.stderr,
            flush=True,
        )

    # --- what may happen; each says what did

    def _kill_collector(self) -> str:
        return self._again(self._chance.choice(self.collectors), "collector killed")

    def _end_collector(self) -> str:
        collector = self._chance.choice(self.collectors)
        if collector.running:
            collector.terminate()
            collector.start()
        return "collector told to end"

    def _kill_sidecar(self) -> str:
        return self._again(self._chance.choice(self.pods).sidecar, "sidecar killed")

    def _kill_sidecar_unheard(self, kafka: KafkaServer) -> str:
        """Killed with messages on the way: the next one sends them again."""
        pod: Pod = self._chance.choice(self.pods)
        kafka.pause()
        self._ended.wait(self._chance.uniform(0.1, 2.0))
        pod.sidecar.kill()
        kafka.resume()
        pod.sidecar.start()
        return "sidecar killed while Kafka was frozen"

    def _kill_engine(self) -> str:
        pod: Pod = self._chance.choice(self.pods)
        pod.kill_engine()
        pod.start_engine()
        return "engine killed"

    def _kill_service(self) -> str:
        return self._again(self.service, "service killed")

    def _again(self, process: RigProcess, what: str) -> str:
        process.kill()
        self._ended.wait(self._chance.choice((0.0, 0.5, 3.0)))
        process.start()
        return what

    def _freeze(self) -> str:
        victims = [*self.collectors, *(pod.sidecar for pod in self.pods), self.service]
        victim = self._chance.choice([process for process in victims if process.running])
        victim.freeze()
        self._ended.wait(self._chance.uniform(0.5, 15.0))  # longer than a session in Kafka's group, at times
        victim.thaw()
        return f"{re.sub(r'pod-[0-9]+-|-[0-9]+$', '', victim.name)} frozen"

    def _server(self, server: Server) -> str:
        if self._chance.random() < 0.5:
            server.kill()
        else:
            server.stop()
        self._ended.wait(self._chance.uniform(0.0, 8.0))
        server.start()
        return f"{server.kind} restarted"

    def _empty_redis(self) -> str:
        self._cache.client().flushall()
        return "Redis emptied"


@contextmanager
def running_servers() -> Iterator[tuple[KafkaServer, RedisServer, PostgresServer]]:
    """Servers of our own, started at once."""
    kafka, cache, database = KafkaServer(), RedisServer(), PostgresServer()
    servers: list[Server] = [kafka, cache, database]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
        stack.callback(kafka.kill)  # it would take ten seconds to part with data that nobody needs
        with ThreadPoolExecutor(len(servers)) as starters:
            for started in [starters.submit(server.start) for server in servers]:
                started.result()
        with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        yield kafka, cache, database


def main() -> int:
    """Run, settle, tell."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong (10)")
    parser.add_argument("--seed", type=int, default=None, help="of what happens when")
    parser.add_argument("--json", action="store_true", help="nothing but the ledger on stdout")
    options = parser.parse_args()
    if not options.minutes > 0:
        parser.error(f"--minutes: got {options.minutes}, expected more than 0")
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes:g} minutes", file=sys.stderr, flush=True)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    folder = Path(tempfile.mkdtemp(prefix="dspark-soak-"))
    try:
        with running_servers() as (kafka, cache, database):
            settings = {
                "kafka_bootstrap": kafka.bootstrap,
                "redis_url": cache.url,
                "database_url": database.url_for(DATABASE),
                "refresh_seconds": 15.0,
            }
            with Rig(folder, settings, supervised=True) as rig:
                soak = Soak(rig, kafka, cache, database, random.Random(seed), ended)
                soak.run(60.0 * options.minutes)
                ledger, differences = soak.settle()
    except (ServerUnavailable, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    for line in differences:
        print(line, file=sys.stderr)
    if not options.json:
        for what, times in sorted(soak.events.items()):
            print(f"{times:>4} x {what}")
    print(json.dumps(ledger), flush=True)
    if ledger["balance"] or differences:
        print(f"the books do not balance; logs are in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
