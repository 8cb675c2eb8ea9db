"""What a page says of the sampled rows of a period, however long ago they were drawn."""

import numpy as np
import pytest

from calibrator.service.reading.sampled import SampledReliability, sampled_reliability
from calibrator.store import deployments
from collectors.options import PipelineOptions
from tests.recorded import recorded, truncate
from tests.refresh_support import Place

pytest_plugins = ["tests.refresh_fixtures"]

HALF_LIFE = 600.0


def read(place: Place, start: float) -> SampledReliability:
    with place.store.read() as connection:
        found = deployments.get(connection, "chat")
        assert found is not None
        sampled = sampled_reliability(connection, found, start, place.clock.now() + 1.0)
    assert sampled is not None
    return sampled


def serve_for(place: Place, hours: int) -> None:
    """A thousand rounds every half-life, six half-lives an hour."""
    place.pipeline = PipelineOptions(half_life_seconds=HALF_LIFE, sample_rows=3000)
    rows = recorded("typical")
    for i in range(6 * hours):
        part = rows.take(np.arange(1000 * i, 1000 * (i + 1)) % len(rows))
        place.ingest(truncate(part, part.accepted * 0 + 5, 0.1))
        place.clock.advance(HALF_LIFE)


def test_figures_of_a_long_period_rest_on_most_of_its_sample(place: Place) -> None:
    start = place.clock.now()
    serve_for(place, hours=3)
    found = read(place, start)
    first = found.positions["raw"][0].record
    assert found.half_life_seconds is not None
    assert found.half_life_seconds < 18 * HALF_LIFE
    assert first.n_eff > 0.3 * found.rows
    assert first.ece_low is not None
    assert first.ece_high is not None
    assert 0.0 < first.ece_low < 0.08 < first.ece_high + 0.02
    assert first.ece_high < 0.2


def test_all_rows_count_alike_while_the_sample_holds_them(place: Place) -> None:
    start = place.clock.now()
    place.pipeline = PipelineOptions(half_life_seconds=HALF_LIFE, sample_rows=20_000)
    rows = recorded("typical").take(slice(0, 4000))
    for i in range(4):
        place.ingest(rows.take(slice(1000 * i, 1000 * (i + 1))))
        place.clock.advance(HALF_LIFE)
    found = read(place, start)
    assert found.half_life_seconds is None
    assert found.positions["raw"][0].record.n_eff == pytest.approx(4000)
