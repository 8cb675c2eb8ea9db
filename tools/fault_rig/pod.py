"""A pod of the rig: an engine process and its sidecar on a private ring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_adapter.ring import retired_rings, settled_rows
from serving_adapter.ring_layout import WORD_ROUNDS_WRITTEN, WORD_STEPS_WRITTEN, RingLayout
from serving_adapter.shared_memory import Segment, segment_path
from tools.fault_rig.process import RigProcess
from tools.fault_rig.progress import Progress, read_progress
from tools.fault_rig.rows import read_rows

Until = Callable[..., None]


@dataclass(frozen=True, slots=True)
class RingState:
    """What the ring itself says of a boot."""

    boot: str
    rounds: int
    steps: int
    settled_rounds: int
    lost_rounds: int
    settled_steps: int
    lost_steps: int

    @property
    def drained(self) -> bool:
        """Every row was delivered, or counted as lost."""
        return (self.settled_rounds, self.settled_steps) == (self.rounds, self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class BootBooks:
    """What one engine start emitted: the ledger that everything is held against.

    ``rows`` is ``[rounds, 2]`` (see :mod:`tools.fault_rig.rows`). ``ledger`` is the engine's own, None when
    it was killed. ``ring_lost`` are rounds and steps that the ring counted as lost, None when the ring is
    gone, which it only is when the sidecar finished it.
    """

    replica: str
    boot: str
    rounds: int
    steps: int
    rows: NDArray[np.uint8]
    ledger: dict[str, Any] | None
    ring_lost: tuple[int, int] | None


class Pod:
    """Engine and sidecar of one replica.

    Parameters
    ----------
    replica
        Its name.
    environment
        For both processes; ring and replica are added here.
    folder
        For logs and books.
    until
        Waits for a condition while watching the processes of the rig.
    engine
        Arguments of :mod:`tools.fault_rig.engine`.
    ahead
        Seconds by which the clock of this pod is fast.
    """

    def __init__(
        self,
        replica: str,
        environment: Mapping[str, str],
        folder: Path,
        until: Until,
        *,
        ring: str,
        engine: Mapping[str, object] | None = None,
        ahead: float = 0.0,
    ) -> None:
        self.replica, self.ring = replica, ring
        self.folder = folder / replica
        self.folder.mkdir()
        self._until = until
        own = {**environment, "DSPARK_RING": ring, "DSPARK_REPLICA": replica}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in (engine or {}).items()]
        self.engine = RigProcess(
            f"{replica}-engine",
            ["tools.fault_rig.engine", f"--folder={self.folder}", *options],
            own,
            folder,
        )
        program = ["tools.fault_rig.ahead_sidecar", str(ahead)] if ahead else ["serving_adapter.sidecar"]
        self.sidecar = RigProcess(f"{replica}-sidecar", program, own, folder)
        self._ended: dict[str, tuple[int, int]] = {}

    @property
    def processes(self) -> list[RigProcess]:
        """Engine and sidecar."""
        return [self.engine, self.sidecar]

    # --- what is going on

    def progress(self) -> Progress:
        """Where the present boot of the engine is."""
        found = read_progress(self.folder / "progress")
        assert found.rejected == 0, f"{self.replica}: the adapter refused {found.rejected} calls of observe"
        return found

    @property
    def rounds(self) -> int:
        """Rounds of the present boot so far."""
        return self.progress().rounds

    @property
    def steps(self) -> int:
        """Steps of the present boot so far."""
        return self.progress().steps

    @property
    def emitted(self) -> int:
        """Rounds of all boots so far."""
        ended = sum(rounds for rounds, _ in self._ended.values())
        return ended + (self.rounds if self.engine.running else 0)

    def ring_state(self) -> RingState | None:
        """What the present ring says; None before the first engine."""
        try:
            segment = Segment.attach(segment_path(self.ring))
        except FileNotFoundError:
            return None
        try:
            layout = RingLayout.read(segment)
            settled = settled_rows(layout)
            words = segment.words
            state = RingState(
                layout.text.boot, words[WORD_ROUNDS_WRITTEN], words[WORD_STEPS_WRITTEN], *settled
            )
            layout.rounds.clear()
            del layout
        finally:
            segment.close()
        return state

    def unfinished_boots(self) -> int:
        """Rings of earlier boots that the sidecar has not finished yet."""
        return len(retired_rings(segment_path(self.ring)))

    # --- what happens to it

    def start(self) -> None:
        """Start both, the sidecar first."""
        self.sidecar.start()
        self.start_engine()

    def start_engine(self) -> None:
        """Begin a boot."""
        (self.folder / "progress").unlink(missing_ok=True)
        self.engine.start()

    def serve(self, rounds: int) -> None:
        """Wait until so many more rounds were served."""
        target = self.rounds + rounds
        self._until(lambda: self.rounds >= target, f"{self.replica} serves {rounds} rounds")

    def serve_to(self, rounds: int) -> None:
        """Wait until so many rounds were served in all."""
        self._until(lambda: self.rounds >= rounds, f"{self.replica} reaches {rounds} rounds")

    def goes_on(self, steps: int = 50) -> None:
        """Wait until so many more engine steps were done: nobody holds ``observe()`` up."""
        target = self.steps + steps
        self._until(lambda: self.steps >= target, f"{self.replica} does {steps} more steps")

    def kill_engine(self) -> None:
        """SIGKILL, at whatever it is doing; what it had written counts as emitted."""
        self.engine.kill()
        self._book_end()

    def end_engine(self) -> None:
        """Let the engine end in order and write its ledger."""
        code = self.engine.terminate()
        assert code == 0, self.engine.log_tail()
        self._book_end()

    def books(self) -> list[BootBooks]:
        """Books of all boots that have ended."""
        present = self.ring_state()
        found = []
        for boot, (rounds, steps) in self._ended.items():
            path = self.folder / f"ledger-{boot}.json"
            lost = None
            if present is not None and present.boot == boot:
                lost = (present.lost_rounds, present.lost_steps)
            found.append(
                BootBooks(
                    self.replica,
                    boot,
                    rounds,
                    steps,
                    read_rows(self.folder / f"rows-{boot}", rounds),
                    json.loads(path.read_text()) if path.exists() else None,
                    lost,
                )
            )
        return found

    def close(self) -> None:
        """Kill both and remove the shared memory."""
        for process in self.processes:
            process.kill()
        path = segment_path(self.ring)
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink(missing_ok=True)

    def _book_end(self) -> None:
        # The next engine moves this ring aside, and a sidecar that has finished it removes it: read it now.
        state = self.ring_state()
        if state is not None:  # None: killed before it had a ring
            self._ended.setdefault(state.boot, (state.rounds, state.steps))
