"""From rows copied out of the ring to messages of the bus."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import ContractError, Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import (
    CONTENT_TYPE_HEADER,
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_MSGPACK,
    encode_json,
    encode_msgpack,
)
from serving_adapter.contract.rounds import ROUND_COLUMNS
from serving_adapter.contract.steps import STEP_COLUMNS
from serving_adapter.ports import OutgoingMessage
from serving_adapter.ring_layout import RingShape
from serving_adapter.ring_reader import Chunk, RingReader, Settled
from serving_adapter.step_claims import StepSpans

Encoding = Literal["msgpack", "json"]
_ENVELOPE_BYTES = 512
_STEP_BYTES = 4 * len(STEP_COLUMNS)


@dataclass(frozen=True, slots=True, eq=False)
class PendingMessage:
    """An encoded message and what is settled once the bus has it."""

    reader: RingReader
    message: OutgoingMessage
    settled: Settled
    rounds: int
    steps: int


def round_bytes(shape: RingShape) -> int:
    """Bytes of one round on the wire, at most."""
    positions = shape.gamma * (2 if shape.soft_labels else 1)
    return 2 * positions + sum(np.dtype(wire).itemsize for wire in ROUND_COLUMNS.values())


def rows_per_message(shape: RingShape, flush_bytes: int) -> tuple[int, int]:
    """Rounds and step rows that fill a message."""
    room = max(1, flush_bytes - _ENVELOPE_BYTES)
    return max(1, room // round_bytes(shape)), max(1, room // _STEP_BYTES)


class BatchBuilder:
    """Makes messages out of one ring's rows, in order and without unexplained gaps in their numbers.

    Its steps claim its rounds: ``rows`` of a step is how many of the message's rounds are of that step, and
    those that are of no step in the message come last.

    A message says how many rows before its first were lost, so that every row number of a boot is either
    in a message or in a stated gap. Rows that break the contract, which the adapter should never have
    let in, are left out as a gap too: they would send their whole message to the dead letters.
    """

    def __init__(self, reader: RingReader, encoding: Encoding = "msgpack") -> None:
        self.reader = reader
        self.encoding = encoding
        self.invalid = 0
        self.last_invalid = ""
        self._settled = reader.settled

    def build(self, rounds: Chunk, steps: Chunk, emitted_at: int) -> list[PendingMessage]:
        """Messages for rows as :meth:`RingReader.read` copies them, each step with the last of its rounds.

        Parameters
        ----------
        rounds, steps
            As read; each may be empty.
        emitted_at
            Nanoseconds since 1970.
        """
        segments = self.reader.labels()
        soft = rounds.columns.get("accept_probability")
        if soft is not None and bool(np.isnan(soft).all()):
            rounds.columns.pop("accept_probability")
        known = self._steps(steps)
        spans = StepSpans.of(steps.columns["first"][: len(known)], known.rows)
        runs = list(self._runs(rounds, segments, spans.gaps(rounds.first, rounds.end)))
        shares = spans.divide([(first, first + len(valid)) for first, _, valid in runs])
        messages: list[PendingMessage] = []
        for (first, share, valid), (part, claims) in zip(runs, shares, strict=False):
            claiming = replace(known.take(part), rows=claims)
            end = steps.first + part.stop
            messages.append(self._message(emitted_at, first, valid, share, end, claiming))
        settled = self._settled
        if settled.rounds < rounds.end or settled.steps < steps.end:
            part, claims = shares[-1]
            rest = replace(known.take(part), rows=claims)
            messages.append(self._message(emitted_at, rounds.end, None, 1.0, steps.end, rest))
        return messages

    def _message(
        self,
        emitted_at: int,
        sequence: int,
        rounds: Rounds | None,
        share: float,
        steps_end: int,
        steps: Steps,
    ) -> PendingMessage:
        before = self._settled
        # Whatever lies between the rows settled before and these is lost, for whatever reason.
        lost = sequence - before.rounds
        steps_sequence = steps_end - len(steps)
        steps_lost = steps_sequence - before.steps
        text = self.reader.text
        batch = VerifyBatch(
            deployment=text.deployment,
            fingerprint=text.fingerprint,
            replica=text.replica,
            boot=text.boot,
            sequence=sequence,
            lost=lost,
            emitted_at=emitted_at,
            rounds=rounds,
            steps=steps,
            gamma=self.reader.shape.gamma,
            share=share,
            steps_sequence=steps_sequence,
            steps_lost=steps_lost,
            segment_sets=text.segment_sets,
        )
        self._settled = Settled(
            rounds=sequence + batch.count,
            rounds_lost=before.rounds_lost + lost,
            steps=steps_sequence + len(steps),
            steps_lost=before.steps_lost + steps_lost,
        )
        packed = self.encoding == "msgpack"
        kind = CONTENT_TYPE_MSGPACK if packed else CONTENT_TYPE_JSON
        message = OutgoingMessage(
            key=text.replica.encode(),
            value=encode_msgpack(batch) if packed else encode_json(batch),
            headers=((CONTENT_TYPE_HEADER, kind.encode()),),
        )
        return PendingMessage(self.reader, message, self._settled, batch.count, len(steps))

    def _runs(
        self, chunk: Chunk, segments: tuple[str, ...], gaps: NDArray[np.int64]
    ) -> Iterator[tuple[int, float, Rounds]]:
        """Stretches of valid rows of one share, cut at ``gaps``: number of the first row, share, rows."""
        if not chunk.count:
            return
        columns = dict(chunk.columns)
        share = columns.pop("share")
        changes = np.flatnonzero(share[1:] != share[:-1]) + 1
        edges = sorted({0, *changes.tolist(), *(gaps - chunk.first).tolist(), chunk.count})
        for start, stop in itertools.pairwise(edges):
            for first, rows in self._valid(columns, segments, start, stop):
                yield chunk.first + first, float(share[start]), rows

    def _valid(
        self, columns: dict[str, NDArray[Any]], segments: tuple[str, ...], start: int, stop: int
    ) -> Iterator[tuple[int, Rounds]]:
        try:
            part = {name: column[start:stop] for name, column in columns.items()}
            yield start, Rounds.build(**part, segments=segments)
        except ContractError as error:
            if stop - start == 1:
                self.invalid += 1
                self.last_invalid = str(error)
                return
            middle = (start + stop) // 2
            yield from self._valid(columns, segments, start, middle)
            yield from self._valid(columns, segments, middle, stop)

    def _steps(self, chunk: Chunk) -> Steps:
        try:
            return Steps.build(**{name: chunk.columns[name] for name in STEP_COLUMNS})
        except ContractError as error:
            self.invalid += 1
            self.last_invalid = str(error)
            return Steps.empty()
