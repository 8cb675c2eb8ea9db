"""An ungated fit says of its rows what a report on the same rows says."""

import numpy as np
import pytest

from calibrator.core.candidate import ProposalOptions
from calibrator.core.offline import fit_offline
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import position_report
from serving_adapter.contract import ContractError, Rounds
from tests.recorded import recorded


def statuses(rounds: Rounds, form: str) -> tuple[str, ...]:
    return fit_offline(rounds, ProposalOptions(form=form)).statuses


def reported(rounds: Rounds) -> tuple[str, ...]:
    identity = ParameterSet.identity(rounds.gamma)
    return tuple(r.status for r in position_report(identity.survival(rounds), rounds, 15))


LOGITS = np.random.default_rng(0).normal(size=(3000, 3))
SURVIVED = (np.random.default_rng(1).random(3000) < 1 / (1 + np.exp(-LOGITS[:, 0]))).astype(int)

THREE = Rounds.build(np.zeros((3, 3)), [1, 2, 3])
REJECTED = Rounds.build(LOGITS, SURVIVED)  # position 2 always is, so position 3 is never at risk
TRIMMED = Rounds.build(LOGITS, SURVIVED, verified=1)


@pytest.mark.parametrize("form", ["temperature", "affine"])
@pytest.mark.parametrize("rounds", [THREE, REJECTED, TRIMMED], ids=["three", "rejected", "trimmed"])
def test_fit_and_report_use_the_same_words(rounds: Rounds, form: str) -> None:
    assert statuses(rounds, form) == reported(rounds)


def test_the_words_are_those_of_the_rows() -> None:
    assert reported(THREE) == ("insufficient",) * 3
    assert reported(REJECTED) == ("ok", "degenerate", "degenerate")
    assert reported(TRIMMED) == ("ok", "censored", "censored")


def test_what_only_a_fit_can_say_stays() -> None:
    rounds = recorded("typical")
    narrow = ProposalOptions(form="temperature", grid=(0.9, 1.0, 1.1))
    assert "at_grid_edge" in fit_offline(rounds, narrow).statuses


def test_too_many_accepted_are_blamed_on_accepted() -> None:
    with pytest.raises(ContractError, match=r"^accepted: row 0: got 5, expected at most gamma = 3"):
        Rounds.build(np.zeros((1, 3)), [5])
