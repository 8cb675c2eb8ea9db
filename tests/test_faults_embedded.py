"""The embedded placement (SQLite, Valkey) under fault: every row is folded once, or counted as lost."""

import random
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tools.fault_rig import Rig, RigProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def valkey(rig: Rig) -> list[psutil.Process]:
    """The embedded parameter server: a child of whichever process started it first."""
    found = []
    for process in rig.processes:
        with suppress(psutil.Error):  # ended just now
            found += psutil.Process(process.pid).children() if process.running else []
    return [child for child in found if _is_valkey(child)]


def _is_valkey(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "valkey" in " ".join(process.cmdline())
    return False


def limit_files(process: RigProcess, size: int) -> None:
    """Let no write of this process reach beyond ``size`` bytes of a file, as a full disk would not."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("seed", [1])
def test_processes_killed_at_random_points_lose_and_double_no_row(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    pods = [rig.pod(), rig.pod()]
    collectors = [rig.collector(), rig.collector()]
    service = rig.service()
    for process in (*collectors, service, *pods):
        process.start()
    rig.fold(100)
    victims: list[RigProcess | None] = [*collectors, *(pod.sidecar for pod in pods), service, None]
    for victim in chance.sample(victims, len(victims)) + chance.choices(victims, k=3):
        chance.choice(pods).serve(chance.randint(1, 600))
        if victim is None:
            for server in valkey(rig):
                server.kill()
            continue
        if not victim.running:
            continue
        victim.kill()
        chance.choice(pods).serve(chance.randint(1, 600))
        victim.start()
    rig.until(lambda: rig.stored_version() > 0, "a version is published")
    found = rig.assert_exact()
    assert found.totals.lost == 0
    rig.until(lambda: rig.served_version() == rig.stored_version(), "both stores hold the same version")
    assert [p.terminate() for p in (*collectors, service, *(pod.sidecar for pod in pods))] == [0] * 5


def test_the_parameter_server_comes_back_when_it_or_its_owner_is_killed(rig: Rig) -> None:
    pod, collector, service = rig.pod(), rig.collector(), rig.service()
    pod.start()
    rig.until(lambda: valkey(rig), "the sidecar has started the parameter server")
    collector.start()
    service.start()
    rig.until(lambda: rig.served_version() > 0, "a version is published")

    def comes_back(version: int, dead: set[int]) -> None:
        rig.until(lambda: {server.pid for server in valkey(rig)} - dead, "somebody has started it again")
        rig.until(lambda: rig.served_version() >= version, "it holds what it held")

    def kill_server() -> None:
        for server in valkey(rig):
            server.kill()

    for kill in (kill_server, pod.sidecar.kill):
        before = rig.served_version(), {server.pid for server in valkey(rig)}
        kill()
        comes_back(*before)
    pod.sidecar.start()
    version = rig.served_version()
    rig.until(lambda: pod.progress().version >= version, "the engine applies it")
    rig.assert_exact()


def test_the_engine_goes_on_while_nobody_reads_and_what_the_ring_loses_is_counted(rig: Rig) -> None:
    pod, collector = rig.pod(ring_rounds=1024, ring_steps=64), rig.collector()
    pod.start()
    collector.start()
    rig.fold(500)
    pod.sidecar.freeze()
    pod.serve(1500)
    pod.sidecar.thaw()
    pod.serve(500)
    pod.sidecar.kill()
    pod.serve(1500)
    pod.sidecar.start()
    pod.serve(500)
    found = rig.assert_exact()
    assert found.totals.lost > 2 * (1500 - 1024)
    assert found.steps.lost > 0


def test_every_boot_of_an_engine_that_is_killed_again_and_again_is_accounted_for(rig: Rig) -> None:
    pod, collector = rig.pod(), rig.collector()
    pod.start()
    collector.start()
    chance = random.Random(3)
    for _ in range(3):
        pod.serve_to(chance.randint(200, 800))
        pod.kill_engine()
        pod.start_engine()
    pod.serve_to(200)
    found = rig.assert_exact()
    assert len(found.boots) == 4
    assert all(book.ledger is None for book in rig.books()[:3])
    assert found.totals.lost == 0


def test_full_disks_delay_rows_and_lose_none(rig: Rig) -> None:
    pod, collector = rig.pod(), rig.collector()
    pod.start()
    collector.start()
    rig.fold(500)

    def fill_disk_of(process: RigProcess, complaint: str) -> None:
        limit_files(process, 16 * 1024)
        rig.until(lambda: complaint in process.log.read_text(), f"{process.name} says that it cannot write")
        pod.goes_on()
        limit_files(process, resource.RLIM_INFINITY)

    fill_disk_of(collector, "collector waits")
    fill_disk_of(pod.sidecar, "bus_unavailable")
    rig.fold(500)
    found = rig.assert_exact()
    assert found.totals.lost == 0
    assert found.totals.folded == rig.books()[0].rounds
