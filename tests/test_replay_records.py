"""Recorded requests: loaded, sorted, split by prompt."""

from itertools import pairwise

import numpy as np
import pytest

from serving_adapter.contract import (
    ContractError,
    Rounds,
)
from serving_adapter.engines.replay import (
    RECORDINGS,
    Recording,
    load_recording,
    split_requests,
)
from tests.replay_doubles import tiny_recording


def test_every_packaged_recording_loads_as_whole_requests_in_order():
    for name in RECORDINGS:
        recording = load_recording(name)
        assert recording.gamma == 7
        assert recording.rounds.segments == ("math", "code", "chat")
        assert recording.starts[-1] == len(recording.rounds)
        for first, end in pairwise(recording.starts[:40].tolist()):
            assert len(set(recording.rounds.request[first:end].tolist())) == 1
            assert (np.diff(recording.rounds.step[first:end].astype(int)) > 0).all()


def test_an_unknown_recording_is_refused_by_name():
    with pytest.raises(ValueError, match="'nothing'"):
        load_recording("nothing")


def test_rounds_are_sorted_into_requests():
    recording = tiny_recording()
    assert recording.requests.tolist() == [0, 1]
    assert recording.starts.tolist() == [0, 3, 6]
    assert recording.rounds.step.tolist() == [2, 4, 6, 1, 3, 5]


def test_a_recording_with_trimmed_rounds_cannot_be_replayed():
    with pytest.raises(ContractError, match="verified: row 1"):
        Recording.build("trimmed", Rounds.build([[0.0, 0.0]] * 2, [0, 0], verified=[2, 1]))


def test_held_out_requests_and_served_ones_share_no_prompt():
    recording = load_recording("typical")
    served, held_out = split_requests(recording, 0.3, seed=1)
    prompts = {int(r): int(p) for r, p in zip(recording.requests, recording.prompt, strict=True)}
    assert served | held_out == set(prompts)
    assert not {prompts[r] for r in served} & {prompts[r] for r in held_out}
    assert 0.15 < len(held_out) / len(prompts) < 0.45
    assert split_requests(recording, 0.3, seed=1) == (served, held_out)
    assert split_requests(recording, 0.3, seed=2) != (served, held_out)
    assert split_requests(recording, 0.0)[1] == frozenset()


def test_a_prompt_is_held_out_of_every_recording_or_of_none():
    sides: dict[int, set[bool]] = {}
    for name in ("typical", "typical-greedy", "typical-hot"):
        recording = load_recording(name)
        held_out = split_requests(recording, 0.3)[1]
        for request, prompt in zip(recording.requests.tolist(), recording.prompt.tolist(), strict=True):
            sides.setdefault(prompt, set()).add(request in held_out)
    assert all(len(side) == 1 for side in sides.values())


def test_requests_can_be_kept_by_id_or_by_predicate():
    recording = tiny_recording()
    assert recording.keep({1}).requests.tolist() == [1]
    assert recording.keep(lambda request: request == 0).rounds.step.tolist() == [2, 4, 6]
    assert recording.rows_of({1}).step.tolist() == [1, 3, 5]
    with pytest.raises(ValueError, match="none of the 1 chosen"):
        recording.keep({5})
