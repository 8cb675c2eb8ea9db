"""Calibration over the API is what the rows say, with intervals, gaps as nulls, and mistakes named."""

import json
import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from calibrator.core.ece import expected_calibration_error
from calibrator.core.report import report_from_windows
from calibrator.core.sums import LARGEST_SUM
from calibrator.core.windows import WindowSums
from calibrator.service.web.models.calibration import CalibrationSeries, Reliability
from calibrator.service.web.times import format_time
from calibrator.store import deployments, windows
from calibrator.store.windows import HOUR, Cell
from tests.reading_rows import first_part, labelled, raw_sums, raw_survival, traffic

pytest_plugins = ["tests.reading_fixtures"]

FIGURES = ("ece", "noise_floor", "gap", "brier", "log_loss", "predicted", "observed")


def ask(filled, what="calibration", **query):
    answer = filled.get(f"/v1/deployments/chat/{what}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def whole(filled, **query):
    """All traffic as one point per position."""
    now = filled.clock.now()
    start = now // 86_400 * 86_400 - 86_400
    found = ask(filled, **{"from": start, "to": start + 3 * 86_400, "step": 4 * 86_400, **query})
    points = [max(p["points"], key=lambda point: point["drafted"]) for p in found["positions"]]
    assert sum(point["drafted"] > 0 for p in found["positions"] for point in p["points"]) == len(points)
    return points


def test_figures_are_those_of_a_direct_calculation_from_the_rows(filled):
    rounds = traffic()
    predicted, (labels, inside) = raw_survival(rounds), labelled(rounds)
    for k, point in enumerate(whole(filled, basis="raw")):
        seen = inside[:, k]
        a, y = predicted[seen, k], labels[seen, k]
        assert point["drafted"] == point["verified"] == point["n_eff"] == seen.sum()
        assert point["ece"] == pytest.approx(expected_calibration_error(a, y, 20), abs=1e-6)
        assert point["brier"] == pytest.approx(brier_score_loss(y, a), abs=1e-6)
        assert point["log_loss"] == pytest.approx(log_loss(y, np.clip(a, 1e-9, 1 - 1e-9)), abs=1e-5)
        assert point["gap"] == pytest.approx(a.mean() - y.mean(), abs=1e-6)
        assert point["ece_low"] <= point["ece"] <= point["ece_high"]
        assert point["gap_low"] <= point["gap"] <= point["gap_high"]
        assert (point["status"], point["population"], point["coverage"]) == ("ok", "traffic", 1.0)


def test_a_segment_is_its_own_rows(filled):
    rounds = first_part()
    mine = rounds.take(rounds.segment == 1)
    expected = report_from_windows(raw_sums(mine))
    for point, report in zip(whole(filled, basis="raw", segment="code"), expected, strict=True):
        assert point["drafted"] == report.drafted
        for name in FIGURES:
            assert point[name] == pytest.approx(getattr(report, name), abs=1e-9)


def test_sampling_buckets_add_up_to_the_traffic(filled):
    parts = 0
    for bucket in ("greedy", "low", "mid", "high"):
        now = filled.clock.now()
        found = ask(filled, **{"from": now - 86_400, "sampling": bucket})
        parts += sum(p["drafted"] for p in found["positions"][0]["points"])
    assert parts == labelled(traffic())[1][:, 0].sum()


def test_points_of_minutes_add_up_to_those_of_hours(filled):
    now = filled.clock.now()
    start, end = now // 3600 * 3600 - 3600, now // 3600 * 3600 + 3600
    minutes = ask(filled, **{"from": start, "to": end, "step": 60})
    hours = ask(filled, **{"from": start, "to": end, "step": 3600})
    assert (minutes["step"], hours["step"]) == (60, 3600)
    for fine, coarse in zip(minutes["positions"], hours["positions"], strict=True):
        assert sum(p["drafted"] for p in fine["points"]) == sum(p["drafted"] for p in coarse["points"])


def test_windows_without_rows_are_points_of_nulls(filled):
    found = ask(filled, **{"from": filled.clock.now() - 3600})
    points = found["positions"][0]["points"]
    starts = [point["at"] for point in points]
    assert starts == sorted(set(starts))
    assert len(points) in (60, 61)
    empty = [point for point in points if not point["drafted"]]
    assert 0 < len(empty) < len(points)
    for point in empty:
        assert point["n_eff"] == 0
        assert point["status"] == "insufficient"
        assert all(
            point[name] is None for name in (*FIGURES, "ece_low", "ece_high", "squared_error", "coverage")
        )


@pytest.mark.parametrize(
    ("what", "model"), [("calibration", CalibrationSeries), ("reliability", Reliability)]
)
def test_answers_are_what_the_description_says(filled, what, model):
    for seconds in (3600, 30 * 86_400):
        found = ask(filled, what, **{"from": filled.clock.now() - seconds})
        again = model.model_validate(found).model_dump(mode="json", by_alias=True)
        assert again == found
        text = json.dumps(found)
        assert "NaN" not in text
        assert "Infinity" not in text


def test_a_month_is_at_most_two_hundred_points(filled):
    found = ask(filled, **{"from": filled.clock.now() - 30 * 86_400})
    assert found["step"] == 4 * 3600
    assert 180 <= len(found["positions"][0]["points"]) <= 200
    assert len(found["positions"]) == 7


def test_a_range_in_the_future_has_no_rows(filled):
    found = ask(filled, **{"from": format_time(filled.clock.now() + 86_400)})
    assert all(point["n_eff"] == 0 for p in found["positions"] for point in p["points"])


def test_a_deployment_without_rows_has_nulls(filled):
    answer = filled.get("/v1/deployments/quiet/calibration").json()
    assert len(answer["positions"]) == 3
    assert all(point["ece"] is None for p in answer["positions"] for point in p["points"])
    drawn = filled.get("/v1/deployments/quiet/reliability").json()
    assert [p["in_force"]["ece"] for p in drawn["positions"]] == [None] * 3


def test_positions_are_chosen_by_number(filled):
    found = ask(filled, position=[7, 2])
    assert [p["position"] for p in found["positions"]] == [7, 2]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "query/from"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "query/from"),
        ({"from": "yesterday"}, "query/from"),
        ({"to": "2026-01-01T00:00:00"}, "query/to"),
        ({"step": "0"}, "query/step"),
        ({"from": "0", "to": "86400000", "step": "60"}, "query/step"),
        ({"segment": "nobody"}, "query/segment"),
        ({"segment": "x' OR 1=1 --"}, "query/segment"),
        ({"segment": "a\x00b"}, "query/segment"),
        ({"sampling": "warm"}, "query/sampling"),
        ({"position": "8"}, "query/position"),
        ({"position": "0"}, "query/position"),
        ({"basis": "imagined"}, "query/basis"),
    ],
)
def test_what_makes_no_sense_is_named(filled, query, pointer):
    answer = filled.get("/v1/deployments/chat/calibration", params=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_range_whose_sums_are_too_large_is_named_and_a_shorter_one_is_answered(service):
    full = WindowSums.zeros(1)
    full.scalars[:] = LARGEST_SUM
    now = service.clock.now() // HOUR * HOUR
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 1, "f", now)
        chat = deployments.add_segments(connection, own.id, ["chat"])["chat"]
        for raw in (True, False):
            windows.add(
                connection, own.id, [Cell(now - h * HOUR, chat, "mid", full) for h in (1, 2, 3)], raw=raw
            )

    def ask(what, hours, **query):
        query |= {"from": now - hours * HOUR, "to": now}
        return service.get(f"/v1/deployments/chat/{what}", params=query)

    for answer in (ask("calibration", 3, step=4 * HOUR), ask("reliability", 3)):
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert "larger than 64 bits" in answer.json()["detail"]
    assert f"to {format_time(now)[:16]}" in answer.json()["detail"]
    assert ask("calibration", 3, step=HOUR).status_code == 200
    assert ask("reliability", 1).status_code == 200
    assert service.get("/v1/deployments").status_code == 200
    assert service.get("/metrics").status_code == 200


@pytest.mark.parametrize("name", ["nobody", "x' OR '1'='1", "..%2F..", "a%00b", "%E2%98%83"])
@pytest.mark.parametrize("what", ["calibration", "reliability"])
def test_an_unknown_deployment_is_not_found(filled, name, what):
    answer = filled.get(f"/v1/deployments/{name}/{what}")
    assert answer.status_code == 404
    assert answer.json()["status"] == 404


def test_diagrams_are_scikit_learns(filled):
    rounds = traffic()
    predicted, (labels, inside) = raw_survival(rounds), labelled(rounds)
    found = ask(filled, "reliability", **{"from": filled.clock.now() - 86_400})
    for k, position in enumerate(found["positions"]):
        seen = inside[:, k]
        observed, mean = calibration_curve(labels[seen, k], predicted[seen, k], n_bins=20)
        used = [b for b in position["raw"]["bins"] if b["n_eff"] > 0]
        assert [b["observed"] for b in used] == pytest.approx(observed.tolist(), abs=1e-6)
        assert [b["predicted"] for b in used] == pytest.approx(mean.tolist(), abs=1e-6)
        assert math.fsum(b["mass"] for b in position["raw"]["bins"]) == pytest.approx(1.0)
        for b in used:
            assert b["observed_low"] <= b["observed"] <= b["observed_high"]
            assert b["lower"] <= b["predicted"] <= b["upper"]


def test_empty_bins_are_null(filled):
    found = ask(filled, "reliability", **{"from": filled.clock.now() - 86_400})
    empty = [b for p in found["positions"] for b in p["raw"]["bins"] if b["n_eff"] == 0]
    assert empty
    for b in empty:
        names = ("predicted", "observed", "observed_low", "observed_high", "band_low", "band_high")
        assert [b[name] for name in names] == [None] * 6
