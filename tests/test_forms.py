"""Which form a refresh takes: temperatures where they suffice, the affine form where they do not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import forms
from calibrator.core.candidate import ProposalOptions
from calibrator.core.judge import Judgement
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import choose_form, propose
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay import load_recording
from tests.recorded import truncate

HEAD = "typical-greedy"  # the fewest rounds
FEW = ProposalOptions(resamples=100)


def made(truth: str, *, truncated: bool, seed: int = 0) -> tuple[Rounds, ParameterSet]:
    return forms.made_rounds(forms.Case(HEAD, truth, truncated), seed)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(
    ("truth", "form"),
    [("a temperature per position", "temperature"), ("one temperature", "temperature"), ("affine", "affine")],
)
def test_auto_takes_the_form_that_the_truth_has(truth: str, form: str, truncated: bool) -> None:
    rows, true = made(truth, truncated=truncated)
    identity = ParameterSet.identity(rows.gamma)
    found = propose(rows, identity, FEW)
    assert found.publish
    assert found.form_judged == form
    assert forms.left(found.parameters, rows, true) < 0.25 * forms.left(identity, rows, true)


def test_temperatures_follow_an_affine_set_when_the_traffic_has_become_theirs() -> None:
    rows, true = made("a temperature per position", truncated=False)
    in_force = forms.affine_set(load_recording(HEAD).rounds)
    found = propose(rows, in_force, FEW)
    assert found.publish
    assert found.form_judged == "temperature"
    assert forms.left(found.parameters, rows, true) < 0.5 * forms.left(in_force, rows, true)


def test_positions_never_seen_keep_their_offsets_although_temperatures_suffice_before_them() -> None:
    rows, _ = made("a temperature per position", truncated=False)
    in_force = ParameterSet("affine", np.full(rows.gamma, 1.7), np.full(rows.gamma, 0.3))
    found = propose(truncate(rows, np.full(len(rows), 3)), in_force, FEW)
    assert found.form_judged == "affine"
    assert found.parameters.offsets[3:].tolist() == [0.3] * 4


def test_a_position_that_is_right_already_does_not_shut_those_behind_it() -> None:
    recorded = load_recording(HEAD).rounds
    _, other = made("a temperature per position", truncated=False)
    temperatures = other.temperatures.copy()
    temperatures[0], temperatures[2] = 1.0, 2.5
    true = ParameterSet("temperature", temperatures, other.offsets)
    rows = forms.drawn(recorded, true, np.random.default_rng(0))
    identity = ParameterSet.identity(rows.gamma)
    by_ece = propose(rows, identity, replace(FEW, form="temperature", objective="ece"))
    found = propose(rows, identity, replace(FEW, form="temperature"))
    assert "position 1 before it is insufficient" in by_ece.gates[2].reasons
    assert found.publish
    assert found.parameters.temperatures[2] == pytest.approx(2.5, rel=0.2)
    assert found.reasons[0].startswith("temperatures by likelihood: against those by ECE")


@pytest.mark.parametrize(("log_loss_high", "form"), [(0.0001, "temperature"), (-0.0001, "affine")])
def test_ece_alone_does_not_make_the_affine_form(log_loss_high: float, form: str) -> None:
    between = Judgement(-0.001, -0.002, -0.0001, -0.0005, -0.001, log_loss_high, 100)
    assert between.better
    assert choose_form(between)[0] == form


def test_on_held_out_prompts_temperatures_leave_what_the_affine_form_does_not() -> None:
    found = forms.held_out("hard", splits=2, resamples=100)
    assert found["splits above zero"] == 2
    assert found["mean ece"]["affine"] < 0.15 * found["mean ece"]["raw"]
    assert found["mean ece"]["temperature, ECE"] > 0.5 * found["mean ece"]["raw"]
