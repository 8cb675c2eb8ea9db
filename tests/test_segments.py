"""Segments borrow by how little they know; published sets are scored on what came after them."""

import numpy as np
import pytest

from calibrator.core.affine import Prior, fit_affine
from calibrator.core.candidate import ProposalOptions
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.prequential import PublishedSet, prequential_scores, prequential_survival
from calibrator.core.segments import fit_segments, propose_segments, rows_by_segment
from serving_adapter.contract import Rounds, sigmoid


def two_kinds(sizes, offsets, seed=0, slopes=(1.0, 1.0)):
    """Rows of segments whose heads are off by these offsets and slopes."""
    random = np.random.default_rng(seed)
    rows = sum(sizes)
    kind = np.repeat(np.arange(len(sizes)), sizes)
    z = random.normal(0.5, 1.5, size=(rows, 3))
    c = sigmoid(np.array(slopes)[kind][:, None] * z + np.array(offsets)[kind][:, None])
    accepted = np.cumprod(random.random(z.shape) < c, axis=1).sum(axis=1)
    names = tuple(f"kind {i}" for i in range(len(sizes)))
    return Rounds.build(z, accepted, segment=kind, segments=names, request=np.arange(rows) // 5)


def pooled(rounds):
    fit = fit_affine(rounds.logits, prefix_labels(rounds), at_risk(rounds))
    return ParameterSet("affine", fit.temperatures, fit.offsets)


def test_the_more_a_segment_knows_the_further_it_goes():
    shares, distances = [], []
    for size in (50, 500, 5000):
        rounds = two_kinds((20_000, size), (0.0, 1.0))
        centre = pooled(rounds)
        fit = fit_segments(rounds, centre)["kind 1"]
        shares.append(fit.own_share[0])
        distances.append(fit.parameters.offsets[0] - centre.offsets[0])
        assert fit.rows == size
    assert shares[0] < shares[1] < shares[2]
    assert distances[0] < distances[2]
    assert shares[2] > 0.8


def test_borrowing_beats_standing_alone_where_rows_are_few():
    alone_error, shrunk_error = [], []
    for seed in range(15):
        rounds = two_kinds((8000, 40), (0.0, 0.2), seed)
        few = rounds.take(rounds.segment == 1)
        own = fit_affine(few.logits, prefix_labels(few), at_risk(few), prior=Prior.none())
        shrunk = fit_segments(rounds, pooled(rounds))["kind 1"].parameters
        alone_error.append(np.abs(own.offsets - 0.2).mean())
        shrunk_error.append(np.abs(shrunk.offsets - 0.2).mean())
    assert np.mean(shrunk_error) < 0.6 * np.mean(alone_error)


def test_temperatures_shrink_in_their_logarithm():
    rounds = two_kinds((3000, 300), (0.0, 0.0), slopes=(1.0, 0.5))
    centre = ParameterSet("temperature", np.ones(3), np.zeros(3))
    fits = fit_segments(rounds, centre)
    share = fits["kind 1"].own_share
    assert share == pytest.approx(300 / 1300)
    assert 1.0 < fits["kind 1"].parameters.temperatures[0] < 2.0
    assert fits["kind 1"].parameters.form == "temperature"
    assert fits["kind 0"].own_share == pytest.approx(0.75)


def test_a_segment_publishes_its_own_set_only_where_that_is_better():
    rounds = two_kinds((6000, 6000), (0.0, 1.5))
    centre = pooled(rounds.take(rounds.segment == 0))
    proposals = propose_segments(rounds, centre, ProposalOptions(resamples=60, folds=3))
    assert not proposals["kind 0"].publish
    assert proposals["kind 1"].publish
    assert proposals["kind 1"].form_judged == "affine"
    assert proposals["kind 1"].parameters.offsets[0] > centre.offsets[0] + 1.0


def test_rows_of_an_unknown_segment_are_other():
    rounds = Rounds.build([[0.0]] * 2, [1, 1])
    assert [name for name, _ in rows_by_segment(rounds)] == ["default"]


def shifted(offset):
    return ParameterSet("affine", np.ones(3), np.full(3, offset))


def test_every_row_is_judged_by_the_set_published_before_it():
    rounds = two_kinds((6,), (0.0,))
    sets = [PublishedSet(2, 3.0, shifted(1.0)), PublishedSet(1, 1.0, shifted(-1.0))]
    survival, version = prequential_survival(rounds, np.arange(6.0), sets)
    assert version.tolist() == [0, 0, 1, 1, 2, 2]
    assert survival[5] == pytest.approx(shifted(1.0).survival(rounds)[5])
    assert survival[0] == pytest.approx(ParameterSet.identity(3).survival(rounds)[0])
    with pytest.raises(ValueError, match="arrived"):
        prequential_survival(rounds, [0.0], sets)


def test_scores_tell_the_good_version_from_the_bad_one():
    rounds = two_kinds((12_000,), (1.0,))
    sets = [
        PublishedSet(1, 3000.0, shifted(1.0)),
        PublishedSet(2, 7000.0, shifted(-1.0)),
        PublishedSet(3, 99_999.0, shifted(0.0)),
    ]
    good, bad, unused = prequential_scores(rounds, np.arange(12_000.0), sets)
    assert (good.version, good.rows, bad.rows) == (1, 4000, 4999)
    assert good.against_raw.better
    assert good.against_previous is None
    assert bad.against_previous.ece_low > 0
    assert not bad.against_raw.better
    assert (unused.rows, unused.report) == (0, ())


def test_thin_evidence_stays_near_the_set_in_force():
    rounds = two_kinds((30,), (0.0,))
    labels, seen = prefix_labels(rounds), at_risk(rounds)
    free = fit_affine(rounds.logits, labels, seen)
    held = fit_affine(rounds.logits, labels, seen, prior=Prior.around([2.0] * 3, [0.5] * 3, 0.05, 0.05, 0.05))
    assert abs(held.slope - 0.5) < abs(free.slope - 0.5)
    assert np.abs(held.offsets - 0.5).max() < 0.2
    with pytest.raises(ValueError, match="offset_means"):
        fit_affine(rounds.logits, labels, seen, prior=Prior.around([1.0], [0.0]))
