"""A profile drives what telemetry never saw, within its budget."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrator.cli.app import run
from serving_adapter.clock import ManualClock
from serving_adapter.contract import CostCurve
from serving_adapter.profiling import SPACING, profile, unseen_sizes


class Machine:
    """Takes a tenth of a second and a hundredth per token; time is the manual clock's."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sizes: list[int] = []

    def time_step(self, requests: int, batch_tokens: int) -> float:
        assert 1 <= requests <= batch_tokens
        seconds = 0.1 + 0.01 * batch_tokens
        self.clock.advance(seconds)
        self.sizes.append(batch_tokens)
        return seconds


@given(largest=st.integers(1, 5000))
def test_sizes_are_never_far_apart_and_end_at_the_largest(largest: int) -> None:
    sizes = unseen_sizes(largest)
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert all(b <= max(a + 1, a * SPACING) for a, b in pairwise(sizes))


def test_measured_sizes_are_left_out_and_extrapolated_ones_are_not() -> None:
    curve = CostCurve(
        batch_tokens=[4, 16, 64], seconds=[1.0, 2.0, 3.0], status=["measured", "measured", "extrapolated"]
    )
    sizes = unseen_sizes(64, curve)
    assert 4 not in sizes
    assert 16 not in sizes
    assert 64 in sizes


def test_every_size_is_timed_once_before_any_is_timed_twice() -> None:
    machine = Machine()
    done = profile(machine, [1, 8, 64], budget_seconds=1000.0, repeats=3, clock=machine.clock)
    assert machine.sizes == [1, 8, 64] * 4
    assert len(done.steps) == 9  # the first pass warms up
    assert done.skipped == ()
    assert np.allclose(done.steps.step_seconds, 0.1 + 0.01 * done.steps.batch_tokens)


def test_a_budget_that_ends_early_names_what_it_did_not_reach() -> None:
    machine = Machine()
    done = profile(machine, [1, 8, 1000], budget_seconds=5.0, repeats=3, clock=machine.clock)
    assert done.skipped == (1, 8, 1000)
    assert machine.clock.monotonic() < 5.0 + 0.1 + 10.0


@pytest.mark.parametrize(("sizes", "budget"), [([0], 1.0), ([1], 0.0)])
def test_senseless_input_is_named(sizes: list[int], budget: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        profile(Machine(), sizes, budget_seconds=budget)


def test_the_command_writes_a_curve_that_value_reads(tmp_path, capsys) -> None:
    out = tmp_path / "curve.json"
    assert run(["profile", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["publishable"]
    assert {p["status"] for p in result["curve"]} == {"measured"}
    for file_format in ("native", "sglang"):
        assert run(["profile", "--out", str(out), "--format", file_format]) == 0
        assert json.loads(out.read_text())
    assert run(["profile", "--engine", "spaceship"]) == 2
