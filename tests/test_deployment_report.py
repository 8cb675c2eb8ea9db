"""The report of a deployment and a period: numbers for machines, one page for people."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from calibrator.cli import output
from calibrator.cli.app import run
from calibrator.report.acceptance import told_acceptance
from calibrator.report.answers import answers
from calibrator.report.deployment_page import headline, render_deployment_page
from calibrator.report.machine import machine_numbers
from calibrator.report.outcomes import refused_positions, unpublished
from calibrator.service.reading.period import period_numbers
from calibrator.store import deployments, episodes
from calibrator.store.episodes import Episode
from tests.recorded import recorded, truncate
from tests.refresh_support import Place, open_place

pytest_plugins = ["tests.refresh_fixtures"]

HOUR = 3600.0


def numbers(place: Place, start: float, end: float, name: str = "chat"):
    with place.store.read() as connection:
        found = deployments.get(connection, name)
        assert found is not None
        return period_numbers(connection, found, start, end)


def lived(place: Place) -> tuple[float, float]:
    """Two hours: a version published, served and judged, an alarm, a refresh that published nothing."""
    begin = place.clock.now()
    rows = recorded("typical")
    place.ingest(truncate(rows.take(slice(0, 6000)), rows.take(slice(0, 6000)).accepted * 0 + 5, 0.05))
    place.report()
    assert place.refresher.refresh("chat").outcome == "published"
    place.clock.advance(HOUR)
    place.ingest(truncate(rows.take(slice(6000, 9000)), rows.take(slice(6000, 9000)).accepted * 0 + 5, 0.05))
    with place.store.write() as connection:
        found = deployments.get(connection, "chat")
        assert found is not None
        now = place.clock.now()
        episode = Episode(
            "acceptance", None, 2, None, None, "below", now - 60.0, now, None, -0.05, "it fell", "look", 1
        )
        episodes.start(connection, found.id, episode)
    place.refresher.refresh("chat")
    place.clock.advance(60.0)
    return begin - 60.0, place.clock.now()


@dataclass
class Story:
    place: Place
    start: float
    end: float
    found: dict[str, Any]

    def numbers(self) -> dict[str, Any]:
        return copy.deepcopy(self.found)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, parameter_server) -> Iterator[Story]:
    """Two hours lived once, for tests that only read."""
    place = open_place(tmp_path_factory.mktemp("story") / "store.db", parameter_server)
    start, end = lived(place)
    yield Story(place, start, end, numbers(place, start, end))
    place.store.close()


def test_the_numbers_of_a_period_hold_everything_that_happened(story: Story) -> None:
    found = story.numbers()
    json.dumps(found, allow_nan=False)
    assert found["totals"]["raw"][0]["drafted"] == 9000
    assert found["sample"]["rows"] == 9000
    assert set(found["sample"]["positions"]) == {"raw", "in_force", "latest"}
    assert found["versions"][0]["version"] == 1
    assert found["refreshes"][0]["outcome"] == "published"
    assert [e["kind"] for e in found["episodes"]] == ["acceptance"]
    assert len(found["exploration"]) == len(found["refreshes"]) == 2
    assert len(found["coverage"]) == found["gamma"] == 7
    assert len(found["series"]["at"]) == len(found["series"]["raw"]["ece"])
    top = headline(found)
    assert (top["rounds"], top["open"]) == (9000, ["acceptance"])
    machine = machine_numbers(found)
    assert [each["reason"] for each in machine["not_published"]] == [
        each["reason"] for each in unpublished(found)
    ]
    times = [machine["from"], *machine["series"]["at"], machine["versions"][0]["at"]]
    times += [each["started"] for each in machine["refreshes"]] + [machine["episodes"][0]["alarmed_at"]]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each) for each in times)


def test_in_force_is_what_the_engine_predicted_when_it_served_a_row(place: Place) -> None:
    rows = recorded("typical").take(slice(0, 4000))
    place.ingest(rows)
    place.report()
    place.refresher.refresh("chat")
    found = numbers(place, place.clock.now() - 60.0, place.clock.now() + 60.0)
    curves = found["sample"]["positions"]
    # Every row was served before there was a version, so what was in force is the raw head.
    assert curves["in_force"][0]["curve"]["observed"] == curves["raw"][0]["curve"]["observed"]
    assert curves["latest"][0]["smooth_ece"] < 0.5 * curves["raw"][0]["smooth_ece"]


def test_a_period_sees_only_what_lies_in_it(story: Story) -> None:
    place, start, end = story.place, story.start, story.end
    later = numbers(place, end - 120.0, end)
    assert later["sample"]["rows"] == 3000
    assert len(later["refreshes"]) == 1
    # The version in force when the period began is part of its story.
    assert later["versions"][0]["version"] == 1
    before = numbers(place, start - 10 * HOUR, start - 9 * HOUR)
    assert before["sample"] is None
    assert before["refreshes"] == before["versions"] == before["episodes"] == []


def test_reasons_that_differ_in_their_numbers_only_are_counted_together(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    for _ in range(3):
        place.refresher.refresh("chat")
        place.clock.advance(60.0)
    found = numbers(place, place.clock.now() - HOUR, place.clock.now())
    (gain,) = unpublished(found)
    assert gain["reason"].startswith("no gain")
    assert (gain["outcome"], gain["count"]) == ("unchanged", 2)


def test_the_page_needs_nothing_from_anywhere_else(story: Story) -> None:
    page = render_deployment_page(story.numbers(), story.end)
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
    assert "<script" not in page
    assert page.count("data:image/svg+xml;base64,") == 5
    for heading in ("Draft positions", "Error over time", "Parameters", "Drift", "Refreshes"):
        assert heading in page
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page).lower().replace("finance", "")


def test_what_others_wrote_is_shown_and_never_run(story: Story) -> None:
    found = story.numbers()
    found["refreshes"][0]["reasons"] = ["<script>alert(1)</script>"]
    found["episodes"][0]["summary"] = "<img src=x onerror=alert(1)>"
    page = render_deployment_page(found, story.end)
    assert "<script>" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page


def test_an_empty_deployment_and_an_old_period_have_a_page(place: Place) -> None:
    with place.store.write() as connection:
        deployments.register(connection, "empty", 7, "f", place.clock.now())
    now = place.clock.now()
    page = render_deployment_page(numbers(place, now - HOUR, now, "empty"), now)
    assert "No rounds were folded in this period." in page
    assert "No refresh began in this period." in page


def test_without_sampled_rows_the_stored_sums_are_drawn(story: Story) -> None:
    found = story.numbers() | {"sample": None}
    page = render_deployment_page(found, story.end)
    assert "the diagrams show the bins of the stored sums" in page


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Place, tmp_path):
    """Run the command on the place's store; give exit code, stdout and stderr."""
    from rich.console import Console

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(output, "out", Console(highlight=False, width=140))
        monkeypatch.setattr(output, "err", Console(stderr=True, highlight=False))
        url = str(place.store.engine.url)
        given = ["report", "--database-url", url, "--output", str(tmp_path / "page.html"), *arguments]
        code = run([str(a) for a in given])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_command_writes_a_page_or_prints_the_numbers(place: Place, call, tmp_path) -> None:
    start, end = lived(place)
    period = ("--deployment", "chat", "--from", start, "--to", end)
    code, out, err = call(*period)
    assert code == 0, err
    assert "9,000 rounds" in out
    assert "Calibration of chat" in (tmp_path / "page.html").read_text(encoding="utf-8")
    code, out, _ = call(*period, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["deployment"] == "chat"
    assert found["from"] < found["refreshes"][-1]["started"] < found["to"]
    assert found["measured_at"]["prequential"] == found["refreshes"][-1]["started"]
    assert len(found["series"]["in_force"]["observed"]) == len(found["series"]["at"])
    assert found["versions"][0]["noise_floor"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--deployment", "nobody"), "--deployment: got 'nobody', expected one of chat"),
        (
            ("--deployment", "chat", "--from", "2000", "--to", "1000"),
            "--from: got 2000, expected a time before --to = 1000",
        ),
        (
            ("--deployment", "chat", "--from", "2099-01-01T00:00:00Z"),
            "--from: got 2099-01-01T00:00:00Z, expected a time in the past",
        ),
        (
            ("--deployment", "chat", "--from", "2099-01-02T00:00:00Z", "--to", "2099-01-01T00:00:00Z"),
            "--from: got 2099-01-02T00:00:00Z, expected a time before --to = 2099-01-01T00:00:00Z",
        ),
        (("--deployment", "chat", "--from", "yesterday"), "--from: got 'yesterday', expected an RFC 3339"),
    ],
)
def test_wrong_input_is_one_clear_line(place: Place, call, arguments, message) -> None:
    place.ingest(recorded("typical").take(slice(0, 200)))
    code, _, err = call(*arguments)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_store_without_deployments_says_so(place: Place, call) -> None:
    code, _, err = call("--deployment", "chat")
    assert (code, "no deployment is known" in err) == (2, True)


def test_an_end_in_the_future_is_now(place: Place, call) -> None:
    place.ingest(recorded("typical").take(slice(0, 200)))
    code, _, err = call("--deployment", "chat", "--from", "1000000000", "--to", "4000000000", "--json")
    assert code == 0, err


def asked_for(found: dict, question: str):
    (answer,) = [each for each in answers(found) if each.question.startswith(question)]
    return answer.word, " ".join(answer.text)


def scored(low: float, high: float) -> dict:
    return {
        "version": 3, "rows": 6000, "ece": 0.03, "noise_floor": 0.02,
        "positions": [{"status": "ok"}, {"status": "insufficient"}],
        "against_raw": {"ece_difference": (low + high) / 2, "ece_low": low, "ece_high": high, "requests": 77},
    }  # fmt: skip


def valued(low: float, high: float) -> dict:
    ratio = {"estimate": (low + high) / 2, "low": low, "high": high}
    return {"policy": "in force", "concurrency": 32, "against_identity": ratio}


EMPTY = {
    "from": 0.0, "to": 600.0, "versions": [], "prequential": [], "value": [], "episodes": [], "refreshes": [],
    "exploration": [], "segments": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "speed", "word"),
    [
        (scored(-0.05, -0.03), valued(1.01, 1.05), "yes: error and speed"),
        (scored(-0.05, -0.03), valued(0.99, 1.02), "yes, for the error"),
        (scored(-0.05, 0.01), valued(1.01, 1.05), "yes, for speed"),
        (scored(-0.05, 0.01), valued(0.99, 1.02), "not shown"),
        (scored(0.01, 0.02), valued(1.01, 1.05), "not by these figures"),
        (scored(-0.05, -0.03), valued(0.9, 0.95), "not by these figures"),
    ],
)
def test_what_recalibrating_is_worth_is_said_only_beyond_the_intervals(error, speed, word) -> None:
    told, text = asked_for(EMPTY | {"prequential": [error], "value": [speed]}, "Is recalibrating")
    assert told == word
    assert "77 requests" in text
    assert "1 of 2 positions" in text


def test_few_labels_are_part_of_the_answer() -> None:
    few = scored(-0.05, -0.03) | {"positions": [{"status": "insufficient"}] * 3}
    word, _ = asked_for(EMPTY | {"prequential": [few]}, "Is recalibrating")
    assert word == "yes, for the error, on few labels"


def test_an_empty_period_has_answers_too() -> None:
    assert asked_for(EMPTY, "Is recalibrating")[0] == "not shown"
    assert asked_for(EMPTY, "What drifted")[0] == "nothing"
    assert asked_for(EMPTY, "Was anything published")[0] == "nothing was tried"


def test_positions_that_kept_what_they_had_are_named_with_the_latest_reason() -> None:
    def tried(at: float, *reasons: str) -> dict:
        return {"outcome": "published", "started": at, "reasons": list(reasons)}

    found = EMPTY | {
        "refreshes": [
            tried(1.0, "position 7: n_eff 9, needs 300", "position 6: censored"),
            tried(2.0, "held-out rows: better", "position 7: n_eff 99, needs 300", "position 7: 4 accepts"),
        ]
    }
    first, second = refused_positions(found)
    assert (first["position"], first["count"], first["reasons"]) == (6, 1, ["censored"])
    assert (second["count"], second["last"]) == (2, 2.0)
    assert second["reasons"] == ["n_eff 99, needs 300", "4 accepts"]
    _, text = asked_for(found, "Was anything published")
    assert "Position 7 kept what it had, whatever else was published, at 2 of 2 refreshes, also at" in text
    assert "Position 6 kept what it had, whatever else was published, at 1 of 2 refreshes, not at" in text


def unchanged(at: float, *reasons: str) -> dict:
    return {"outcome": "unchanged", "started": at, "reasons": list(reasons), "rows": 1000}


def test_refreshes_are_counted_by_what_decided_and_not_by_lines() -> None:
    kept = [f"position {k}: n_eff {10 * k}, needs 300" for k in (2, 3, 4)]
    found = EMPTY | {
        "refreshes": [
            unchanged(1.0, *kept, "no gain on held-out rows: 0.01"),
            unchanged(2.0, "no gain on held-out rows: 0.02", *kept),
            unchanged(3.0, "form affine: better", *kept, "no position may change"),
            {
                "outcome": "published",
                "started": 4.0,
                "reasons": ["held-out rows: better", *kept],
                "rows": 1000,
            },
            {"outcome": None, "started": 5.0, "reasons": [], "rows": None},
        ],
        "exploration": [{"at": 4.0, "explore": 0.02, "relative_speed": None}],
    }
    counted = [(each["reason"], each["count"]) for each in unpublished(found)]
    assert counted == [("no gain on held-out rows: 0.02", 2), ("no position may change", 1)]
    word, text = asked_for(found, "Was anything published")
    assert word == "1 of 5 refreshes published"
    assert text.startswith("Unchanged, 2 of 5 refreshes: no gain on held-out rows: 0.02.")
    assert "Positions 2 to 4 kept what they had" in text
    assert "effective rows for the fit 20 to 40, needs 300" in text
    assert "At 2 % exploration a fit of them takes roughly 8 to 15 times the 1,000 rounds" in text


@pytest.mark.parametrize(
    ("measured", "word", "said"),
    [
        (9.0, "yes, for the error; exploring costs more speed than it brings", "Both together: -1.1 %"),
        (5.0, "yes: error and speed", "another refresh measured it"),
    ],
)
def test_the_price_of_exploring_is_part_of_what_it_is_worth(measured, word, said) -> None:
    found = EMPTY | {
        "prequential": [scored(-0.05, -0.03)],
        "value": [valued(1.01, 1.03)],
        "measured_at": {"value": measured},
        "exploration": [{"at": 9.0, "explore": 0.02, "relative_speed": -0.03}],
        "refreshes": [unchanged(5.0, "no gain"), unchanged(9.0, "no gain")],
    }
    told, text = asked_for(found, "Is recalibrating")
    assert told == word
    assert said in text
    assert ("1 refresh before the latest" in text) == (measured == 5.0)


def test_what_acceptance_did_is_said_also_without_an_alarm() -> None:
    before, after = [[0.8, 0.6]] * 10, [[0.4, 0.1]] * 10
    series = {"observed": before + after, "n_eff": [[300.0, 100.0]] * 20}
    found = EMPTY | {
        "series": {"in_force": series},
        "totals": {"raw": [{"drafted": 9000}]},
        "segments": {"a": {}, "b": {}, "c": {}},
    }
    word, text = asked_for(found, "What drifted")
    assert word == "no alarm, but acceptance moved"
    assert "position 1 went from 0.800 to 0.400, accepted draft tokens a round from 1.40 to 0.50" in text
    assert "3,000 for each on average, fewer than a reference takes" in text
    series["observed"] = before + before
    assert told_acceptance(found) == []
    series["observed"], series["n_eff"] = before + after, [[4.0, 1.0]] * 20
    assert told_acceptance(found) == []


def test_temperatures_are_enough_only_where_that_is_shown(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 600)))
    found = numbers(place, place.clock.now() - 60.0, place.clock.now() + 60.0) | {"sample": None}
    limits = [
        (True, -0.05, 0.9),
        (False, -0.02, 0.9),
        (False, None, 0.9),
        (False, 0.001, 0.9),
        (False, -0.02, 0),
    ]
    found["temperature_limited"] = [
        {"position": k, "limited": limited, "difference_low": low, "temperature": left}
        for k, (limited, low, left) in enumerate(limits, start=1)
    ]
    words = re.findall(
        r"(temperature-limited|undecided|enough)</small></td></tr>", render_deployment_page(found, 0.0)
    )
    assert words == ["temperature-limited", "undecided", "undecided", "enough", "enough"]


def test_the_page_answers_first_and_gives_every_position_an_interval_and_a_status(story: Story) -> None:
    found = story.numbers()
    page = render_deployment_page(found, story.end)
    assert page.index("Is recalibrating worth it?") < page.index("Draft positions")
    row = found["totals"]["raw"][0]
    assert f"{row['ece_low']:.3f} to {row['ece_high']:.3f}" in page
    assert f"{row['gap_low']:.3f} to {row['gap_high']:.3f}" in page
    assert "in points of 1 min" in page
    assert "all traffic position 2" in page
