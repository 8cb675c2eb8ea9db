"""The recorded requests: real rounds of a real model, every draft verified in full, every label known."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import ContractError, Rounds
from serving_adapter.contract.rounds import round_arrays
from serving_adapter.exploration import request_hash

RECORDINGS = ("typical", "typical-greedy", "typical-hot", "hard", "dspark", "dspark-greedy")
"""Names of the packaged recordings; what each one is stands in the note beside the data."""

_DATA = "serving_adapter.engines.replay"


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Requests of one run, each a sequence of rounds in the order in which they were served.

    ``rounds`` is sorted by request and step. Request ``i`` of ``requests`` (recorded ids, u64) owns the
    rows ``starts[i] .. starts[i + 1] - 1``; ``segment`` (index into ``rounds.segments``), ``sampling``
    (temperature) and ``prompt`` have one entry per request as well.
    """

    name: str
    rounds: Rounds
    requests: NDArray[np.uint64]
    starts: NDArray[np.int64]
    segment: NDArray[np.uint16]
    sampling: NDArray[np.float64]
    prompt: NDArray[np.int64]

    @classmethod
    def build(cls, name: str, rounds: Rounds, prompt: NDArray[Any] | None = None) -> Recording:
        """Sort rounds into requests.

        Parameters
        ----------
        name
            What the recording is called in a drift script.
        rounds
            Fully verified rounds.
        prompt
            Prompt of every round, shape ``[rows]``; without it every request is its own prompt.

        Raises
        ------
        ContractError
            A round was not verified in full: the label of a trimmed position cannot be replayed.
        """
        short = rounds.verified < rounds.gamma
        if short.any():
            row = int(np.argmax(short))
            raise ContractError(
                f"verified: row {row}", int(rounds.verified[row]), f"gamma = {rounds.gamma} in a recording"
            )
        order = np.lexsort((rounds.step, rounds.request))
        rounds = rounds.take(order)
        requests, first = np.unique(rounds.request, return_index=True)
        prompts = np.arange(requests.size) if prompt is None else np.asarray(prompt)[order][first]
        return cls(
            name=name,
            rounds=rounds,
            requests=requests,
            starts=np.append(first, len(rounds)).astype(np.int64),
            segment=rounds.segment[first],
            sampling=rounds.sampling[first].astype(np.float64),
            prompt=prompts.astype(np.int64),
        )

    def __len__(self) -> int:
        return int(self.requests.size)

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return self.rounds.gamma

    def rows_of(self, requests: Collection[int]) -> Rounds:
        """All rounds of these recorded requests, with their full labels: what to judge on."""
        return self.rounds.take(np.isin(self.rounds.request, np.array(sorted(requests), dtype=np.uint64)))

    def keep(self, chosen: Collection[int] | Callable[[int], bool]) -> Recording:
        """Keep some requests: ids, or a predicate of the id."""
        if callable(chosen):
            chosen = [int(r) for r in self.requests if chosen(int(r))]
        kept = np.isin(self.rounds.request, np.array(sorted(chosen), dtype=np.uint64))
        if not kept.any():
            raise ValueError(f"requests: none of the {len(chosen)} chosen ones is in recording {self.name!r}")
        prompt = np.repeat(self.prompt, np.diff(self.starts))
        return Recording.build(self.name, self.rounds.take(kept), prompt[kept])


@cache
def load_recording(name: str) -> Recording:
    """Read a packaged recording.

    Parameters
    ----------
    name
        One of :data:`RECORDINGS`.

    Raises
    ------
    ValueError
        There is no recording of that name.
    """
    if name not in RECORDINGS:
        raise ValueError(f"recording: got {name!r}, expected one of {', '.join(RECORDINGS)}")
    path = resources.files(_DATA) / "data" / f"rounds-{name}.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        columns = round_arrays(arrays)
        segments = [str(label) for label in arrays["segments"]]
        prompt = arrays["prompt"]
    return Recording.build(name, Rounds.build(**columns, segments=segments), prompt)


def split_requests(
    recording: Recording, held_out_fraction: float, seed: int = 0
) -> tuple[frozenset[int], frozenset[int]]:
    """Split recorded requests into those to serve and those to judge on.

    The split goes by prompt: requests that answer one prompt stay together, and in every recording of
    that prompt the same way. So the fraction is only met on average.

    Returns
    -------
    Ids to serve and ids held out, both as recorded.
    """
    if not 0 <= held_out_fraction < 1:
        raise ValueError(f"held_out_fraction: got {held_out_fraction}, expected a share in [0, 1)")
    draws = [request_hash(int(prompt), f"held out {seed}") / 2**64 for prompt in recording.prompt]
    held_out = np.array(draws) < held_out_fraction
    ids = recording.requests
    return (
        frozenset(int(r) for r in ids[~held_out]),
        frozenset(int(r) for r in ids[held_out]),
    )
