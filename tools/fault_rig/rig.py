"""The whole placement as processes, and the question after every fault: is every row accounted for?"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from calibrator.store import Store, deployments, parameters, positions
from serving_adapter.buses import ensure_topics
from serving_adapter.contract import ParameterDocument, decode_document
from serving_adapter.parameter_stores import FOLDER
from serving_adapter.parameter_stores.redis import RedisParameterStore
from serving_adapter.ports import TransportError
from serving_adapter.settings import Settings, load_settings
from tools.fault_rig import bus
from tools.fault_rig.books import Stored, compare, stored
from tools.fault_rig.pod import BootBooks, Pod
from tools.fault_rig.process import RigProcess

GAMMA = 7
PATIENCE_SECONDS = 120.0
"""For whatever must happen sooner or later: nothing here measures how soon."""

_LOOK_SECONDS = 0.05


class Rig:
    """Engines, sidecars, collectors and service of one deployment, each a process.

    Parameters
    ----------
    folder
        For logs, books and embedded servers.
    settings
        Settings by name (``kafka_bootstrap``, ...): passed to every process in its environment. Without
        servers named there it is the embedded placement.
    supervised
        Start processes again that end by themselves, as an orchestrator does; else that is a failure.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, object] | None = None, *, supervised: bool = False
    ) -> None:
        self.folder = folder
        self._supervised = supervised
        given: dict[str, object] = {
            "deployment": f"faults-{secrets.token_hex(4)}",
            "database_url": f"sqlite:///{folder / 'store.db'}",
            "bus_path": folder / "bus.db",
            "explore": 0.05,
            "refresh_seconds": 1.0,
            "poll_seconds": 0.5,
            "kafka_partitions": 4,
            "listen_port": 0,
            **(settings or {}),
        }
        own = {f"DSPARK_{name.upper()}": str(value) for name, value in given.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSPARK_")}
        # One thread a process: a dozen of them share a few cores.
        self.environment = {**inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **own}
        self.settings: Settings = load_settings(environment=own)
        self.store = Store(self.settings.database_url)
        self.store.migrate()
        ensure_topics(self.settings)
        self.pods: list[Pod] = []
        self.collectors: list[RigProcess] = []
        self.services: list[RigProcess] = []
        self.history: list[str] = []
        """What was waited for, for whoever reads a failure."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self.collectors, *self.services]:
            process.kill()
        for pod in self.pods:
            pod.close()
        self.store.close()

    # --- who takes part

    def pod(self, *, ahead: float = 0.0, **engine: object) -> Pod:
        """Add a pod; nothing is started yet. ``engine``: options of :mod:`tools.fault_rig.engine`."""
        ring = f"dspark-rig-{secrets.token_hex(6)}"
        engine.setdefault("seed", len(self.pods))
        replica = f"pod-{len(self.pods)}"
        pod = Pod(replica, self.environment, self.folder, self.until, ring=ring, engine=engine, ahead=ahead)
        self.pods.append(pod)
        return pod

    def collector(self) -> RigProcess:
        """Add a collector; it is not started yet."""
        return self._add(self.collectors, "collector", "collect")

    def service(self) -> RigProcess:
        """Add a calibrator service; it is not started yet."""
        return self._add(self.services, "service", "serve")

    def _add(self, group: list[RigProcess], name: str, command: str) -> RigProcess:
        process = RigProcess(
            f"{name}-{len(group)}", ["calibrator.cli", command], self.environment, self.folder
        )
        group.append(process)
        return process

    @property
    def processes(self) -> list[RigProcess]:
        """Everything that was ever started."""
        return [p for pod in self.pods for p in pod.processes] + self.collectors + self.services

    # --- waiting

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for a condition; AssertionError with all logs when it does not come, or a process fails."""
        begun = time.monotonic()
        deadline = begun + seconds
        while not condition():
            self.look_after(what)
            assert time.monotonic() < deadline, self.failure(f"waited in vain for: {what}")
            time.sleep(_LOOK_SECONDS)
        self.history.append(f"waited {time.monotonic() - begun:.1f} s: {what}")

    def look_after(self, what: str = "nothing") -> None:
        """See that everything runs that should."""
        fallen = [p for p in self.processes if p.wanted and not p.running]
        assert self._supervised or not fallen, self.failure(
            f"while waiting for: {what}: {fallen} ended by themselves"
        )
        for process in fallen:
            self.history.append(f"{process!r} is started again")
            process.start()

    def failure(self, what: str) -> str:
        """A message with what went before and the end of every log."""
        return "\n".join([what, *self.history[-20:], *(process.log_tail() for process in self.processes)])

    # --- parameters

    def stored_version(self) -> int:
        """Highest parameter version in SQL."""
        with self.store.read() as connection:
            known = deployments.get(connection, self.settings.deployment)
            return 0 if known is None else parameters.latest_number(connection, known.id)

    def served(self) -> ParameterDocument | None:
        """The document that engines read now; None when there is none or nobody answers."""
        url = self.settings.redis_url
        if not url:
            # Not open_parameter_store: that would start the embedded server in this process.
            place = Path(self.settings.bus_path).parent / FOLDER / "socket"
            if not place.exists():
                return None
            url = f"unix://{place.read_text()}"
        parameter_store = RedisParameterStore(url)
        try:
            payload = parameter_store.read(self.settings.deployment)
        except TransportError:
            return None
        finally:
            parameter_store.close()
        return None if payload is None else decode_document(payload)

    def served_version(self) -> int:
        """Version of that document, 0 when there is none."""
        document = self.served()
        return 0 if document is None else document.version

    # --- the question

    def stored(self) -> Stored:
        """What the store says now."""
        return stored(self.store, self.settings.deployment, GAMMA)

    def folded(self) -> int:
        """Rounds folded so far."""
        return self.stored().totals.folded

    def fold(self, rounds: int) -> None:
        """Wait until so many more rounds were folded."""
        target = self.folded() + rounds
        self.until(lambda: self.folded() >= target, f"{rounds} more rounds are folded")

    def books(self) -> list[BootBooks]:
        """Books of all engines that have ended."""
        return [book for pod in self.pods for book in pod.books()]

    def settle(self) -> None:
        """End the engines, and wait until every ring is drained and every message is folded or refused."""
        for pod in self.pods:
            if pod.engine.running:
                pod.end_engine()
        self.until(lambda: all(self._drained(pod) for pod in self.pods), "the rings are drained")
        last = bus.ends(self.settings)
        self.until(lambda: self._read_to(last), f"the collectors read to {last}")

    def differences(self, strangers: int = 0) -> list[str]:
        """Hold store and books against each other once everything has settled."""
        self.settle()
        return compare(self.books(), self.stored(), GAMMA, strangers)

    def assert_exact(self, strangers: int = 0) -> Stored:
        """Every row is folded once, counted as lost, or one of the ``strangers``; returns the store."""
        found = self.differences(strangers)
        assert not found, self.failure("\n".join(["the books differ:", *found]))
        return self.stored()

    def _drained(self, pod: Pod) -> bool:
        state = pod.ring_state()
        # Boots before the present one are removed once they are finished.
        return state is None or (state.drained and not pod.unfinished_boots())

    def _read_to(self, last: Mapping[int, int]) -> bool:
        with self.store.read() as connection:
            found = positions.read(connection, self.settings.kafka_group, self.settings.kafka_topic)
        topic = self.settings.kafka_topic
        return all(found.get((topic, partition), 0) >= end for partition, end in last.items())
