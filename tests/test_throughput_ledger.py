"""The ledger: time per token, waste, lengths and throughput by load."""

import numpy as np
import pytest

from calibrator.core.throughput_ledger import LedgerEntry, LedgerSums, emitted_tokens, fold_ledger
from serving_adapter.contract import ContractError, Rounds, Steps


def rounds_of(accepted, verified, **columns):
    accepted = np.asarray(accepted)
    return Rounds.build(np.zeros((len(accepted), 4)), accepted, verified=verified, **columns)


def two_steps():
    """Two requests in two steps of 50 ms, then one request alone in a step of 20 ms."""
    rounds = rounds_of([1, 3, 0, 4, 2], [2, 3, 1, 4, 4])
    steps = Steps.build(
        step_seconds=[0.05, 0.05, 0.02],
        draft_seconds=[0.01, 0.01, 0.005],
        verify_seconds=[0.03, 0.03, 0.01],
        batch_tokens=[7, 7, 5],
        requests=[2, 2, 1],
        rows=[2, 2, 1],
    )
    return rounds, steps


def test_time_per_token_is_draft_and_verify_time_over_accepted_tokens():
    figures = LedgerSums.fold(*two_steps()).figures()
    assert figures.time_per_token == pytest.approx((0.025 + 0.07) / 10, rel=1e-6)
    assert figures.draft_share == pytest.approx(0.025 / 0.095, rel=1e-6)


def test_an_engine_that_does_not_tell_draft_from_verify_is_charged_whole_steps():
    rounds, steps = two_steps()
    untold = Steps.build(
        step_seconds=steps.step_seconds,
        batch_tokens=steps.batch_tokens,
        requests=steps.requests,
        rows=steps.rows,
    )
    figures = LedgerSums.fold(rounds, untold).figures()
    assert figures.time_per_token == pytest.approx(0.12 / 10, rel=1e-6)
    assert figures.draft_share is None


def test_waste_is_the_share_of_verified_tokens_that_were_rejected():
    assert LedgerSums.fold(*two_steps()).figures().wasted == pytest.approx(4 / 14)


def test_lengths_without_and_with_the_bonus_token():
    figures = LedgerSums.fold(*two_steps()).figures()
    assert figures.accepted_length == pytest.approx(10 / 5)
    assert figures.emitted_length == pytest.approx(15 / 5)


def test_nothing_is_emitted_behind_the_end_of_the_sequence():
    rounds = rounds_of([4, 1, 0, 2], [4, 4, 4, 4], draft_stop=[1, 1, 0, 255])
    # Stop at position 2 accepted; stop at 2 not reached; stop at 1 rejected, so a bonus token; no stop.
    assert emitted_tokens(rounds).tolist() == [2, 2, 1, 3]


def test_budget_and_throughput_by_load():
    alone, together = LedgerSums.fold(*two_steps()).by_load()
    assert (alone.requests_from, together.requests_from) == (1, 2)
    assert alone.budget == pytest.approx(4.0)
    assert together.budget == pytest.approx(10 / 4)
    assert together.tokens_per_second == pytest.approx(12 / 0.1, rel=1e-6)
    assert together.tokens_per_second_per_user == pytest.approx(6 / 0.1, rel=1e-6)
    assert alone.tokens_per_second == pytest.approx(3 / 0.02, rel=1e-6)


def test_a_replica_that_reports_half_of_its_requests_has_the_same_rates():
    rounds = rounds_of([2, 2, 2, 2], [4, 4, 4, 4])
    steps = Steps.build(step_seconds=[0.05], batch_tokens=[20], requests=[4], rows=[4])
    part = Steps.build(step_seconds=[0.05], batch_tokens=[20], requests=[4], rows=[2])
    whole = LedgerSums.fold(rounds, steps).figures()
    half = LedgerSums.fold(rounds.take(slice(0, 2)), part).figures()
    assert half.tokens_per_second == pytest.approx(whole.tokens_per_second)
    assert half.time_per_token == pytest.approx(whole.time_per_token)


def test_ledgers_add_up_to_the_ledger_of_everything():
    rounds, steps = two_steps()
    first = LedgerSums.fold(rounds.take(slice(0, 2)), steps.take(slice(0, 1)))
    rest = LedgerSums.fold(rounds.take(slice(2, None)), steps.take(slice(1, None)))
    assert first + rest == rest + first == LedgerSums.fold(rounds, steps)


def test_rounds_without_their_steps_count_for_lengths_and_not_for_rates():
    rounds, _ = two_steps()
    sums = LedgerSums.fold(rounds, Steps.empty())
    assert sums.figures().accepted_length == pytest.approx(2.0)
    assert sums.figures().tokens_per_second is None
    assert list(sums.by_load()) == []


def test_steps_that_claim_more_rounds_than_there_are_lose_the_join_but_no_sum():
    rounds, steps = two_steps()
    figures = LedgerSums.fold(rounds.take(slice(1, None)), steps).figures()
    assert figures.rounds == 4
    assert figures.steps == 3
    assert figures.time_per_token is None


def test_an_empty_ledger_has_no_figures():
    figures = LedgerSums.zeros().figures()
    assert figures.steps == 0
    assert figures.tokens_per_second is None
    assert figures.wasted is None


def test_messages_are_entered_at_once_as_one_by_one():
    rounds, steps = two_steps()
    first = LedgerEntry(rounds.take(slice(0, 2)), steps.take(slice(0, 1)))
    none = LedgerEntry(None, steps.take(slice(1, 2)))
    alone = LedgerEntry(rounds.take(slice(2, 5)), Steps.empty())
    lost = LedgerEntry(rounds.take(slice(0, 1)), steps)
    together = fold_ledger([first, none, alone, lost])
    one_by_one = LedgerSums.zeros()
    for entry in (lost, alone, none, first):
        one_by_one = one_by_one + fold_ledger([entry])
    assert together == one_by_one
    assert fold_ledger([]) == LedgerSums.zeros()


def test_what_was_entered_before_in_part_adds_the_rest():
    rounds, steps = two_steps()
    whole = fold_ledger([LedgerEntry(rounds, steps)])
    seen_rounds, seen_steps = np.arange(5) < 3, np.arange(3) < 1
    before = fold_ledger([LedgerEntry(rounds, steps, seen_rounds, seen_steps)])
    after = fold_ledger([LedgerEntry(rounds, steps, ~seen_rounds, ~seen_steps)])
    assert before + after == whole
    assert (
        fold_ledger([LedgerEntry(rounds, steps, seen_rounds & False, seen_steps & False)]).figures().steps
        == 0
    )


def test_time_per_token_never_mixes_parts_with_whole_steps():
    rounds, steps = two_steps()
    draft = steps.draft_seconds.copy()
    draft[0] = 0.0
    some = Steps.build(
        **{
            name: getattr(steps, name)
            for name in ("step_seconds", "verify_seconds", "batch_tokens", "requests", "rows")
        },
        draft_seconds=draft,
    )
    assert LedgerSums.fold(rounds, some).figures().time_per_token == pytest.approx(0.12 / 10, rel=1e-6)


@pytest.mark.parametrize("wrong", [{"rows": [3], "requests": [2]}, {"graph_tokens": [4]}])
def test_steps_that_cannot_be_are_refused(wrong):
    with pytest.raises(ContractError, match=next(iter(wrong))):
        Steps.build(**({"step_seconds": [0.1], "batch_tokens": [8], "requests": [2]} | wrong))
