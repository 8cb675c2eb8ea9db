"""The gate says which positions may change, and why not."""

import numpy as np
import pytest

from calibrator.core.gate import GateRules, gate_ece, gate_likelihood
from calibrator.core.labels import at_risk, included, prefix_labels
from calibrator.core.report import position_report
from serving_adapter.contract import Rounds
from tests.recorded import recorded

RULES = GateRules()


def ece_gates(rounds: Rounds, statuses: list[str] | None = None):
    weights = included(rounds).astype(float)
    identity = np.cumprod(1 / (1 + np.exp(-rounds.logits.astype(float))), axis=1)
    raw = position_report(identity, rounds, 15)
    return gate_ece(prefix_labels(rounds), weights, raw, statuses or ["ok"] * rounds.gamma, RULES)


def likelihood_gates(rounds: Rounds):
    return gate_likelihood(prefix_labels(rounds), at_risk(rounds), np.ones(len(rounds)), RULES)


def test_every_position_of_ample_full_label_traffic_may_change() -> None:
    assert all(g.allowed and g.status == "ok" for g in ece_gates(recorded("typical")))
    assert all(g.allowed for g in likelihood_gates(recorded("typical")))


def test_few_rows_are_not_enough_and_the_reason_gives_both_numbers() -> None:
    gate = likelihood_gates(recorded("typical").take(slice(0, 120)))[0]
    assert not gate.allowed
    assert gate.status == "insufficient"
    assert gate.reasons[0] == "n_eff 120, needs 300"


def test_a_position_never_verified_is_censored() -> None:
    rounds = recorded("typical")
    trimmed = Rounds.build(
        rounds.logits,
        np.minimum(rounds.accepted, 2),
        verified=np.full(len(rounds), 2),
        request=rounds.request,
    )
    gates = likelihood_gates(trimmed)
    assert [g.status for g in gates] == ["ok", "ok", *["censored"] * 5]
    assert [g.allowed for g in gates] == [True, True, *[False] * 5]


@pytest.mark.parametrize("accepted", [0, 3])
def test_a_position_with_one_outcome_only_is_degenerate(accepted: int) -> None:
    rounds = Rounds.build(np.zeros((2000, 3)), np.full(2000, accepted))
    assert ece_gates(rounds)[0].status == "degenerate"
    assert not likelihood_gates(rounds)[0].allowed


def test_one_blocked_position_blocks_every_later_one_of_the_sequential_fit() -> None:
    statuses = ["ok", "ok", "at_grid_edge", *["ok"] * 4]
    gates = ece_gates(recorded("typical"), statuses)
    assert [g.allowed for g in gates] == [True, True, *[False] * 5]
    assert gates[2].reasons == ("the fit is at_grid_edge",)
    assert all("position 3 before it is at_grid_edge" in g.reasons for g in gates[3:])


def test_a_noise_floor_as_large_as_the_error_blocks() -> None:
    # Calibrated by construction: what error there is, is noise.
    random = np.random.default_rng(7)
    logits = random.normal(0.0, 1.5, (1200, 1))
    accepted = (random.random(1200) < 1 / (1 + np.exp(-logits[:, 0]))).astype(np.uint8)
    gate = ece_gates(Rounds.build(logits, accepted))[0]
    assert not gate.allowed
    assert any(reason.startswith("noise floor") for reason in gate.reasons)


def test_weights_count_through_their_effective_size() -> None:
    rounds = recorded("typical").take(slice(0, 2000))
    weights = np.full(2000, 1e-6)
    weights[:100] = 1.0
    gate = gate_likelihood(prefix_labels(rounds), at_risk(rounds), weights, RULES)[0]
    assert gate.n_eff == pytest.approx(100, rel=0.01)
    assert not gate.allowed


def test_the_affine_form_lends_to_positions_with_few_rows() -> None:
    rounds = recorded("hard")
    labels, seen, weights = prefix_labels(rounds), at_risk(rounds), np.ones(len(rounds))
    alone = gate_likelihood(labels, seen, weights, RULES)
    shared = gate_likelihood(labels, seen, weights, RULES, shared=True)
    assert [g.allowed for g in alone][5:] == [True, False]
    assert all(g.allowed for g in shared)
    assert [g.borrows for g in shared] == [*[False] * 6, True]


def test_nobody_borrows_where_nobody_has_enough() -> None:
    rounds = recorded("typical").take(slice(0, 200))
    gates = gate_likelihood(prefix_labels(rounds), at_risk(rounds), np.ones(200), RULES, shared=True)
    assert not any(g.allowed for g in gates)


def test_behind_a_position_that_is_always_rejected_nothing_is_censored() -> None:
    accepted = np.arange(2000) % 2  # position 2 is always rejected, so position 3 is never at risk
    rounds = Rounds.build(np.zeros((2000, 3)), accepted)
    gates = gate_likelihood(
        prefix_labels(rounds), at_risk(rounds), np.ones(len(rounds)), RULES, verified=included(rounds)
    )
    assert [g.status for g in gates] == ["ok", "degenerate", "degenerate"]
    assert gates[2].reasons == ("never at risk: a position before it is always rejected",)
