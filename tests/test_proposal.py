"""A refresh as a pure function: what it publishes, and what it leaves alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.candidate import ProposalOptions
from calibrator.core.judge import judge
from calibrator.core.offline import fit_offline
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from calibrator.core.report import mean_ece, position_report
from serving_adapter.contract import Rounds, sigmoid
from tests.recorded import prompts, recorded, truncate

IDENTITY = ParameterSet.identity(7)


def ece(rounds: Rounds, parameters: ParameterSet, rule: str = "keep") -> float:
    value = mean_ece(position_report(parameters.survival(rounds), rounds, 15, rule))  # type: ignore[arg-type]
    assert value is not None
    return value


def halves(name: str) -> tuple[Rounds, Rounds]:
    """Rows split by prompt: to fit, to judge."""
    judging = prompts(name) % 2 == 0
    return recorded(name).take(~judging), recorded(name).take(judging)


@pytest.mark.parametrize(("name", "share"), [("typical", 0.27), ("hard", 0.10)])
def test_the_affine_form_removes_the_error_on_prompts_outside_the_fit(name: str, share: float) -> None:
    fitted, judged = halves(name)
    affine = fit_offline(fitted, ProposalOptions(form="affine", end_of_sequence="keep")).parameters
    assert ece(judged, affine) <= share * ece(judged, IDENTITY)


@pytest.mark.parametrize("name", ["typical", "hard"])
def test_temperatures_leave_most_of_it(name: str) -> None:
    fitted, judged = halves(name)
    temperature = fit_offline(fitted, ProposalOptions(form="temperature", end_of_sequence="keep")).parameters
    assert ece(judged, temperature) > 0.5 * ece(judged, IDENTITY)


def test_auto_publishes_the_affine_form_where_it_is_better_and_says_so() -> None:
    proposal = propose(recorded("hard"), IDENTITY)
    assert proposal.publish
    assert proposal.parameters.form == "affine"
    assert proposal.reasons[0].startswith("form affine: against the temperature form mean ECE -0.0")


def test_an_engine_that_applies_temperatures_only_gets_temperatures() -> None:
    proposal = propose(recorded("hard"), IDENTITY, ProposalOptions(supported_forms=("temperature",)))
    assert proposal.parameters.form == "temperature"
    assert not proposal.parameters.offsets.any()


def test_the_set_in_force_stays_when_the_same_rows_come_again() -> None:
    first = propose(recorded("typical"), IDENTITY)
    again = propose(recorded("typical"), first.parameters)
    assert first.publish
    assert not again.publish
    assert "no gain" in again.reasons[-1]


def test_a_refresh_never_makes_a_nearly_calibrated_head_worse() -> None:
    fitted, judged = halves("dspark")
    proposal = propose(fitted, IDENTITY)
    in_force = proposal.parameters if proposal.publish else IDENTITY
    assert ece(judged, in_force) <= ece(judged, IDENTITY)


def test_truncated_rows_publish_what_full_rows_confirm() -> None:
    fitted, judged = halves("typical")
    survival = IDENTITY.survival(fitted)
    scheduled = (survival > 0.5).sum(axis=1)
    proposal = propose(truncate(fitted, scheduled, explore=0.02), IDENTITY)
    assert proposal.publish
    assert ece(judged, proposal.parameters) <= 0.5 * ece(judged, IDENTITY)


def test_positions_without_evidence_keep_what_was_in_force() -> None:
    rounds = recorded("typical")
    trimmed = truncate(rounds, np.full(len(rounds), 3))
    in_force = ParameterSet("affine", np.full(7, 1.7), np.full(7, 0.3))
    proposal = propose(trimmed, in_force)
    assert [g.status for g in proposal.gates[3:]] == ["censored"] * 4
    assert proposal.parameters.temperatures[3:].tolist() == [1.7] * 4
    assert proposal.parameters.offsets[3:].tolist() == [0.3] * 4


def test_one_refresh_moves_no_further_than_its_cap() -> None:
    options = ProposalOptions(max_log_step=0.1)
    proposal = propose(recorded("hard"), ParameterSet("affine", np.full(7, 4.0), np.zeros(7)), options)
    assert np.abs(np.log(proposal.parameters.temperatures / 4.0)).max() == pytest.approx(0.1)


def test_too_few_requests_to_hold_any_out_is_a_reason_not_an_error() -> None:
    rounds = recorded("typical").take(np.array([0]))
    proposal = propose(rounds, IDENTITY)
    assert not proposal.publish
    assert proposal.reasons == ("1 rows of 1 requests: too few for 5 folds",)


def test_a_gamma_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="gamma: got 7 in rows, expected 5"):
        propose(recorded("typical"), ParameterSet.identity(5))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_perfectly_calibrated_head_is_left_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, gamma = 3000, 3
    logits = random.normal(0.8, 1.2, (rows, gamma))
    outcome = random.random((rows, gamma)) < sigmoid(logits)
    accepted = np.cumprod(outcome, axis=1).sum(axis=1)
    rounds = Rounds.build(logits, accepted, request=random.integers(0, 300, rows).astype(np.uint64))
    identity = ParameterSet.identity(gamma)
    proposal = propose(rounds, identity, ProposalOptions(resamples=200))
    if proposal.publish:  # the interval excludes zero by chance now and then; harm must stay negligible
        fresh_logits = random.normal(0.8, 1.2, (20_000, gamma))
        drift = np.abs(proposal.parameters.survival(Rounds.build(fresh_logits, np.zeros(20_000, int)))
                       - identity.survival(Rounds.build(fresh_logits, np.zeros(20_000, int))))  # fmt: skip
        assert drift.mean() < 0.02


def test_judging_a_set_against_itself_shows_nothing() -> None:
    rounds = recorded("typical")
    survival = IDENTITY.survival(rounds)
    judgement = judge(rounds, survival, survival, weights=np.ones(len(rounds)))
    assert not judgement.better
    assert judgement.log_loss_difference == 0.0
    assert judgement.ece_difference == 0.0


def test_judging_turns_around_with_its_arguments() -> None:
    rounds = recorded("hard")
    good = fit_offline(rounds, ProposalOptions(form="affine")).parameters.survival(rounds)
    bad = IDENTITY.survival(rounds)
    assert judge(rounds, bad, good, weights=np.ones(len(rounds))).better
    assert not judge(rounds, good, bad, weights=np.ones(len(rounds))).better
