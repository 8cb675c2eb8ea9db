"""What traffic arrives when: a script of phases, each with its own mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from serving_adapter.engines.replay.records import RECORDINGS


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one recording; of some segments only when ``segments`` is given.

    ``weight`` is the share of new requests, relative to the other parts of a mix.
    """

    recording: str
    segments: tuple[str, ...] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight: got {self.weight}, expected a positive share")


@dataclass(frozen=True, slots=True)
class Phase:
    """From engine step ``start`` on, new requests come from ``mix``; running ones are served to their end."""

    start: int
    mix: tuple[Traffic, ...]

    def __post_init__(self) -> None:
        if not self.mix:
            raise ValueError(f"mix: got none for the phase at step {self.start}, expected some traffic")


@dataclass(frozen=True, slots=True)
class DriftScript:
    """Phases by rising start, the first at step 0.

    Raises
    ------
    ValueError
        The phases are not in that order.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        starts = [phase.start for phase in self.phases]
        if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError(f"phases: got starts {starts}, expected 0 first and then rising steps")

    @classmethod
    def steady(cls, recording: str, *segments: str) -> DriftScript:
        """One mix for ever."""
        return cls((Phase(0, (Traffic(recording, segments),)),))

    @classmethod
    def switch(cls, before: Sequence[Traffic], after: Sequence[Traffic], at: int) -> DriftScript:
        """One mix, and from step ``at`` on another."""
        return cls((Phase(0, tuple(before)), Phase(at, tuple(after))))

    @classmethod
    def parse(cls, text: str) -> DriftScript:
        """Read ``MIX[;STEP:MIX]...`` where MIX is ``recording[/segment+segment][*weight],...``.

        >>> DriftScript.parse("typical/math+code;400:typical/chat").phases[1].start
        400

        Raises
        ------
        ValueError
            Naming the part that cannot be read.
        """
        phases = []
        for number, part in enumerate(text.split(";")):
            head, colon, mix = part.strip().rpartition(":")
            if bool(colon) != (number > 0) and not (number == 0 and head == "0"):
                raise ValueError(f"phase {part!r}: expected STEP:MIX after the first phase")
            if head and not head.isdecimal():
                raise ValueError(f"phase {part!r}: got step {head!r}, expected a whole number")
            phases.append(Phase(int(head or 0), tuple(_traffic(item) for item in mix.split(","))))
        return cls(tuple(phases))

    def index_at(self, step: int) -> int:
        """Which phase step ``step`` belongs to."""
        return max(i for i, phase in enumerate(self.phases) if phase.start <= step)


def _traffic(text: str) -> Traffic:
    source, star, weight = text.strip().partition("*")
    recording, _, segments = source.partition("/")
    if recording not in RECORDINGS:
        raise ValueError(f"recording: got {recording!r}, expected one of {', '.join(RECORDINGS)}")
    try:
        share = float(weight) if star else 1.0
    except ValueError as error:
        raise ValueError(f"weight: got {weight!r}, expected a number") from error
    return Traffic(recording, tuple(segments.split("+")) if segments else (), share)
