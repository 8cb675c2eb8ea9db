"""Exploration and share: decided by a hash, alike everywhere."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.exploration import (
    emits,
    emits_each,
    exploration_seed,
    explores,
    explores_each,
    request_hash,
)

U64 = st.integers(0, 2**64 - 1)
PROBABILITY = st.floats(0, 1)


@given(U64, st.lists(st.tuples(U64, st.integers(0, 2**32 - 1)), min_size=1, max_size=20), PROBABILITY)
def test_one_at_a_time_and_all_at_once_agree(seed, rounds, probability):
    requests, steps = (np.array(column, dtype=np.uint64) for column in zip(*rounds, strict=True))
    alone = [explores(seed, request, step, probability) for request, step in rounds]
    assert explores_each(seed, requests, steps, probability).tolist() == alone


@given(st.lists(U64, min_size=1, max_size=20), PROBABILITY)
def test_shares_one_at_a_time_and_all_at_once_agree(requests, share):
    assert emits_each(np.array(requests, dtype=np.uint64), share).tolist() == [
        emits(request, share) for request in requests
    ]


@given(U64, U64, st.integers(0, 2**32 - 1), PROBABILITY, PROBABILITY)
def test_whoever_explores_at_one_probability_does_at_any_higher(seed, request, step, one, other):
    low, high = sorted((one, other))
    assert explores(seed, request, step, low) <= explores(seed, request, step, high)
    assert emits(request, low) <= emits(request, high)


@given(U64, U64, st.integers(0, 2**32 - 1))
def test_never_at_zero_and_always_at_one(seed, request, step):
    assert not explores(seed, request, step, 0.0)
    assert explores(seed, request, step, 1.0)
    assert not explores_each(seed, request, step, 0.0).any()
    assert explores_each(seed, request, step, 1.0).all()
    assert emits(request, 1.0)
    assert emits_each(request, 1.0).all()


@pytest.mark.parametrize("probability", [0.001, 0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("deployment", ["chat", "code"])
def test_the_rate_is_the_probability(deployment, probability):
    n = 200_000
    requests = np.array([request_hash(i, "salt") for i in range(500)], dtype=np.uint64)
    hits = explores_each(
        exploration_seed(deployment),
        np.repeat(requests, n // 500),
        np.tile(np.arange(n // 500), 500),
        probability,
    ).sum()
    assert abs(hits - n * probability) < 4.5 * math.sqrt(n * probability * (1 - probability))


def test_the_rate_holds_within_a_request_and_within_a_step():
    seed, n, p = exploration_seed("chat"), 100_000, 0.05
    bound = 4.5 * math.sqrt(n * p * (1 - p))
    assert abs(explores_each(seed, np.uint64(5), np.arange(n), p).sum() - n * p) < bound
    assert abs(explores_each(seed, np.arange(n), 0, p).sum() - n * p) < bound


def test_share_and_exploration_are_independent():
    requests = np.arange(200_000, dtype=np.uint64)
    explored = explores_each(exploration_seed("chat"), requests, 0, 0.5)
    emitted = emits_each(requests, 0.5)
    assert abs(np.corrcoef(explored, emitted)[0, 1]) < 4.5 / math.sqrt(len(requests))


def test_deployments_and_salts_explore_different_rounds():
    requests = np.arange(50_000)
    one = explores_each(exploration_seed("chat", "a"), requests, 3, 0.5)
    for other in (exploration_seed("chat", "b"), exploration_seed("code", "a"), exploration_seed("chata")):
        agree = (explores_each(other, requests, 3, 0.5) == one).mean()
        assert abs(agree - 0.5) < 4.5 * 0.5 / math.sqrt(len(requests))


def test_the_decision_takes_no_draft_token():
    # By construction: deployment, salt, request, step and probability are all it is given.
    assert explores.__code__.co_varnames[: explores.__code__.co_argcount] == (
        "seed",
        "request",
        "step",
        "probability",
    )


def test_every_process_decides_alike():
    code = (
        "from serving_adapter.exploration import *\n"
        "seed = exploration_seed('chat', 's')\n"
        "print([explores(seed, request_hash(f'r{i}', 's'), i, 0.3) for i in range(64)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = [explores(exploration_seed("chat", "s"), request_hash(f"r{i}", "s"), i, 0.3) for i in range(64)]
    assert outputs == {f"{here}\n"}


def test_the_decisions_never_change_between_releases():
    assert exploration_seed("chat", "salt") == 13873967501423381461
    assert request_hash("request-1", "salt") == 2386846832205827245
    assert [emits(i, 0.5) for i in range(8)] == [False, True, False, True, True, True, False, True]


@given(st.text(), st.text())
def test_text_and_its_bytes_hash_alike(request_id, salt):
    assert request_hash(request_id, salt) == request_hash(request_id.encode(), salt)
    assert 0 <= request_hash(request_id, salt) < 2**64


def test_salt_and_kind_of_id_make_other_hashes():
    assert len({request_hash("1"), request_hash(1), request_hash("1", "salt"), request_hash(2)}) == 4
