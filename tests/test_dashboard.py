"""The dashboard in a real browser, on the real service with replayed rounds."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from calibrator.service.access import Role
from calibrator.service.access.tokens import create
from calibrator.store import deployments, episodes
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.dashboard_support import (
    CHROMIUM,
    CHROMIUM_ARGUMENTS,
    PATIENCE,
    Served,
    Watched,
    screenshots,
    serve_demo_loop,
    serve_empty,
    watched,
)
from tests.recorded import recorded

PAGES = {
    "fleet": "/",
    "calibration": "/deployments/demo",
    "position": "/deployments/demo?position=2&measure=gap",
    "throughput": "/deployments/chat/throughput",
    "ledger": "/deployments/demo/throughput",
    "parameters": "/deployments/demo/parameters",
    "activity": "/deployments/demo/activity",
    "deployment-rollouts": "/deployments/demo/rollouts",
    "rollouts": "/rollouts",
    "jobs": "/jobs",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_demo_loop(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def window(browser: Browser, served: Served) -> Iterator[Watched]:
    with watched(browser, served.url) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_is_whole_at_every_width_in_both_themes(
    browser: Browser, served: Served, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = screenshots(tmp_path)
    with watched(browser, served.url, width, scheme) as opened:
        for name, path in PAGES.items():
            page = opened.open(path)
            assert opened.overflow() <= 0, name
            text = page.locator("body").inner_text()
            assert not re.search(r"\b(NaN|undefined|null|Infinity|\[object)\b", text), name
            assert page.locator("h1").count() == 1, name
            assert page.locator(".panel-problem:visible").count() == 0, name
            opened.shot(folder, f"{name}-{width}-{scheme}")


def test_the_fleet_leads_to_a_deployment_and_back(window: Watched) -> None:
    page = window.open("/")
    row = page.get_by_role("row", name=re.compile("chat"))
    expect(row).to_contain_text("v1, affine")
    expect(page.get_by_role("row", name=re.compile("idle"))).to_contain_text("no data")
    page.get_by_role("link", name="chat", exact=True).click()
    expect(page).to_have_url(re.compile("/deployments/chat$"))
    window.settled()
    expect(page.get_by_role("heading", level=1)).to_have_text("chat")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")


def test_the_fleet_is_searched_and_sorted_and_the_address_keeps_both(window: Watched) -> None:
    page = window.open("/")
    page.get_by_label("Search deployments").fill("idl")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Deployment").click()
    assert "q=idl" in page.url
    assert "sort=name" in page.url
    page = window.open("/?q=nothing")
    expect(page.locator(".empty:visible")).to_contain_text("No deployment matches")


def test_every_tab_shows_its_parts(window: Watched) -> None:
    page = window.open("/deployments/chat")
    expect(page.locator(".multiple")).to_have_count(7)
    for tab, parts in {
        "Throughput": ("Throughput curve", "Value of calibration", "Time per accepted token"),
        "Parameters": ("Temperatures", "Offsets", "Versions"),
        "Activity": ("Replicas", "Refreshes", "Accounting of rounds"),
    }.items():
        page.get_by_role("link", name=tab, exact=True).click()
        window.settled()
        for part in parts:
            expect(page.get_by_role("heading", name=part, exact=True)).to_be_visible()
    page = window.open("/deployments/demo/activity")
    expect(page.get_by_role("row", name=re.compile("replay-0")).first).to_contain_text("affine")


def test_what_is_chosen_is_in_the_address_and_comes_back_with_it(window: Watched) -> None:
    page = window.open("/deployments/chat")
    page.get_by_role("button", name="1 h", exact=True).click()
    page.get_by_label("Segment", exact=True).select_option("code")
    page.locator(".multiple").nth(2).click()
    page.get_by_role("button", name="Brier").click()
    window.settled()
    for part in ("range=1h", "segment=code", "position=3", "measure=brier"):
        assert part in page.url
    page = window.open(page.url.removeprefix(window.base))
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Segment", exact=True)).to_have_value("code")
    expect(page.get_by_label("Position", exact=True)).to_have_value("3")
    expect(page.locator(".large-reliability")).to_contain_text("Position 3")


def test_drift_is_of_the_segment_and_position_chosen_and_what_is_of_all_says_so(
    window: Watched, served: Served
) -> None:
    with served.service.context.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        for segment, position in (("chat", 1), ("chat", 2), ("code", 1), (None, None)):
            episode = episodes.Episode(
                "calibration", segment, position, None, None, "above", 1000.0, 1010.0, 1020.0, 0.1,
                f"seen in {segment} at {position}", "recalibrate", 1,
            )  # fmt: skip
            episodes.start(connection, known.id, episode)
    page = window.open("/deployments/chat?segment=chat&position=1")
    told = page.locator("#drift")
    for shown in ("seen in chat at 1", "seen in None at None"):
        expect(told).to_contain_text(shown)
    for hidden in ("seen in chat at 2", "seen in code at 1"):
        expect(told).not_to_contain_text(hidden)
    expect(told).to_contain_text("Of segment chat, position 1, or of all; 2 of other segments or positions")
    for title in ("Coverage by position, all segments", "Exploration and its cost, all segments"):
        expect(page.get_by_role("heading", name=title)).to_be_visible()
    page.get_by_label("Segment", exact=True).select_option("")
    expect(told).to_contain_text("seen in code at 1")


def test_a_number_that_is_not_there_is_a_dash_that_says_why(window: Watched) -> None:
    page = window.open("/?q=idle")
    dash = page.locator("tbody tr .soft[tabindex]").first
    expect(dash).to_have_text("–")
    expect(dash).to_have_attribute("aria-description", re.compile("No rows"))
    window.open("/deployments/idle")
    assert window.overflow() <= 0


def test_new_rows_appear_by_themselves(window: Watched, served: Served) -> None:
    page = window.open("/deployments/demo")
    expect(page.locator(".live")).to_have_attribute("data-state", "live")
    assert served.loop is not None
    served.loop.engine.run(rounds=640)
    assert served.loop.placement.catch_up(served.loop.engine.ledger.emitted)
    rounds = served.get("/deployments/demo")["rounds"]
    expect(page.locator(".facts")).to_contain_text(f"{rounds:,}".replace(",", "\u202f"), timeout=PATIENCE)


def test_recalibrate_now_makes_a_run_that_the_page_follows(window: Watched, served: Served) -> None:
    page = window.open("/deployments/chat")
    before = len(runs(served))
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".toast").first).to_contain_text("Dry run")
    expect(page.locator(".toast", has_text=re.compile(r"^Run \d+: "))).to_be_visible(timeout=PATIENCE)
    made = runs(served)
    assert len(made) == before + 1
    assert made[0]["dry_run"]
    page = window.open("/jobs")
    expect(page.get_by_role("row", name=re.compile(f"#{made[0]['id']}"))).to_contain_text("dry run")


def test_freezing_asks_first_and_shows(window: Watched, served: Served) -> None:
    page = window.open("/deployments/chat")
    page.get_by_role("button", name="Freeze").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    assert not served.get("/deployments/chat")["frozen"]
    for label, frozen in (("Freeze", True), ("Unfreeze", False)):
        page.get_by_role("button", name=label, exact=True).click()
        dialog.get_by_role("textbox").fill("an incident")
        dialog.get_by_role("button", name=label, exact=True).click()
        expect(
            page.get_by_role("button", name="Unfreeze" if frozen else "Freeze", exact=True)
        ).to_be_visible()
        assert served.get("/deployments/chat")["frozen"] is frozen


def test_exploration_and_schedule_are_set_in_dialogs(window: Watched, served: Served) -> None:
    page = window.open("/deployments/chat")
    page.get_by_role("button", name="Exploration …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Mode").select_option("fixed")
    dialog.get_by_label("Explored share, per cent").fill("3")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog).to_have_count(0)
    settings = served.get("/deployments/chat/exploration")["settings"]
    assert (settings["mode"], settings["explore"]) == ("fixed", pytest.approx(0.03))

    page = window.open("/jobs?q=chat")
    page.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Recalibrate").select_option("cron")
    dialog.get_by_label("Minute, hour").fill("never")
    window.expected = {422}
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    window.expected = set()
    dialog.get_by_label("Minute, hour").fill("*/15 * * * *")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("tbody tr", has_text="*/15 * * * *")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()


def test_versions_are_compared_exported_and_rolled_back(window: Watched, served: Served) -> None:
    page = window.open("/deployments/demo/parameters")
    newest = versions(served)[0]["version"]
    row = page.get_by_role("row", name=re.compile("^v1 "))
    row.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("dialog").get_by_role("button", name="Download").click()
    assert "version" in Path(download.value.path()).read_text()
    row.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("was better")
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("row", name=re.compile(f"^v{newest + 1} "))).to_contain_text("in force")
    made = versions(served)[0]
    assert made["version"] == newest + 1
    assert made["temperatures"] == versions(served)[-1]["temperatures"]
    page.get_by_role("row", name=re.compile(f"^v{newest + 1} ")).get_by_role("button", name="Diff").click()
    expect(page.locator(".diff")).not_to_be_empty()
    page.keyboard.press("Escape")


def test_a_rollout_is_started_promoted_and_aborted(window: Watched, served: Served, tmp_path: Path) -> None:
    page = window.open("/deployments/demo/parameters")
    page.get_by_role("button", name="Start a rollout").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Version").fill("1")
    dialog.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile("/deployments/demo/rollouts"))
    card = page.locator(".rollout").first
    expect(card).to_contain_text("running")
    (rollout,) = [r for r in served.get("/rollouts")["items"] if r["state"] == "running"]
    assert (rollout["deployment"], rollout["stage"]) == ("demo", "shadow")
    card.get_by_role("button", name="Promote").click()
    dialog.get_by_label("To").select_option("canary")
    dialog.get_by_role("textbox").fill("looks fine")
    dialog.get_by_role("button", name="Promote").click()
    expect(card.locator(".steps .now")).to_contain_text("canary")
    expect(card.locator(".timeline")).to_contain_text("looks fine")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 860})
        assert window.overflow() <= 0
        window.shot(screenshots(tmp_path), f"rollout-running-{width}")
    card.get_by_role("button", name="Abort").click()
    dialog.get_by_role("textbox").fill("an incident")
    dialog.get_by_role("button", name="Abort").click()
    expect(card).to_contain_text("aborted")
    assert served.get(f"/rollouts/{rollout['id']}")["state"] == "aborted"
    page = window.open("/rollouts")
    expect(page.locator(".rollout")).to_contain_text("an incident")


def test_a_stage_that_was_left_out_is_told_and_a_version_on_trial_is_no_step(
    window: Watched, served: Served, tmp_path: Path
) -> None:
    made = served.service.client.post(
        "/v1/deployments/demo/rollouts", json={"version": 1, "stage": "canary", "share": 0.25}
    )
    assert made.status_code == 201, made.text
    page = window.open("/deployments/demo/rollouts")
    card = page.locator(".rollout").first
    expect(card.locator(".steps .skipped")).to_contain_text("shadow (skipped)")
    expect(card).to_contain_text("25 % ")
    window.shot(screenshots(tmp_path), "rollout-canary")
    candidate = made.json()["version"]
    page = window.open("/deployments/demo/parameters")
    charts = page.locator("#temperatures .chart").get_attribute("aria-label") or ""
    assert not charts.endswith(str(candidate))
    page.get_by_role("button", name="Start a rollout").click()
    expect(page.get_by_role("dialog").get_by_label("Version")).to_have_value(str(candidate))
    page.keyboard.press("Escape")
    served.service.client.post(f"/v1/rollouts/{made.json()['id']}/abort", json={})


def test_a_range_that_does_not_exist_falls_back_and_says_so(window: Watched) -> None:
    page = window.open("/deployments/chat?range=zzz")
    expect(page.locator(".controls")).to_contain_text("no range “zzz”")
    expect(page.locator(".controls [aria-pressed=true]")).to_have_count(1)


def test_an_unknown_address_shows_a_page_with_a_way_back(window: Watched) -> None:
    window.expected.add(404)
    page = window.open("/nowhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing here")
    page.get_by_role("link", name="To the fleet").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")


def test_the_evidence_of_a_refresh_is_shown(window: Watched) -> None:
    page = window.open("/deployments/chat/activity")
    page.get_by_role("button", name="Evidence").last.click()
    expect(page.get_by_role("dialog")).to_contain_text("rows of")
    expect(page.get_by_role("dialog").locator("tbody tr")).to_have_count(7)


def test_keys_do_what_the_help_says(window: Watched) -> None:
    page = window.open("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Noise floor")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_label("Search deployments")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tbody tr").nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator(".crumbs")).to_be_visible()
    page.keyboard.press("3")
    expect(page).to_have_url(re.compile("/parameters"))
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")


def test_the_theme_is_toggled_and_kept(window: Watched) -> None:
    page = window.open("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(paper) != light
    window.open("/jobs")
    assert page.evaluate(paper) != light
    page.keyboard.press("t")
    assert page.evaluate(paper) == light


def test_the_first_stop_of_the_keyboard_skips_to_the_content(window: Watched) -> None:
    page = window.open("/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#page")).to_be_focused()


def test_without_the_event_stream_the_page_polls(browser: Browser, served: Served) -> None:
    with watched(browser, served.url) as opened:
        opened.page.route("**/v1/events*", lambda route: route.fulfill(status=200, body=""))
        page = opened.open("/deployments/chat")
        expect(page.locator(".live")).to_have_attribute("data-state", "polling", timeout=PATIENCE)
        before = page.locator(".facts").inner_text()
        served.service.ingest(recorded("typical").take(slice(8300, 8600)))
        expect(page.locator(".facts")).not_to_have_text(before, timeout=PATIENCE)


def test_an_empty_service_says_how_to_connect_an_engine(
    browser: Browser, tmp_path: Path, valkey: EmbeddedParameterStore
) -> None:
    with serve_empty(tmp_path, valkey, Role.VIEWER) as empty:
        for width in (1280, 390):
            with watched(browser, empty.url, width) as opened:
                page = opened.open("/")
                expect(page.locator(".empty:visible")).to_contain_text("dspark-calibrator sidecar")
                assert opened.overflow() <= 0
                opened.shot(screenshots(tmp_path), f"empty-{width}")


def test_a_token_is_asked_for_and_kept_in_this_tab_only(
    browser: Browser, tmp_path: Path, valkey: EmbeddedParameterStore
) -> None:
    with serve_empty(tmp_path, valkey, None) as closed:
        context = closed.service.context
        with context.store.write() as connection:
            deployments.register(connection, "chat", 7, "f", context.clock.now())
        token = create(context.store, Role.VIEWER, context.clock.now(), name="dashboard")[0]
        with watched(browser, closed.url) as opened:
            opened.expected = {401}
            page = opened.page
            page.goto(closed.url + "/deployments/chat")
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("Token").fill("dspark_wrong")
            dialog.get_by_role("button", name="Continue").click()
            expect(dialog).to_contain_text("did not accept")
            dialog.get_by_label("Token").fill(token)
            dialog.get_by_role("button", name="Continue").click()
            opened.settled()
            expect(page.get_by_role("heading", level=1)).to_have_text("chat")
            assert page.evaluate("sessionStorage.getItem('dspark-token')") == token
            assert token not in page.evaluate("JSON.stringify(localStorage)") + page.url
            assert page.context.cookies() == []
            viewers_buttons(page)


def viewers_buttons(page: Page) -> None:
    """A viewer sees what could be done, and why not by them."""
    button = page.get_by_role("button", name="Recalibrate now")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", re.compile("operator|read-only"))


def runs(served: Served) -> list[dict]:
    return served.get("/runs")["items"]


def versions(served: Served) -> list[dict]:
    return served.get("/deployments/demo/versions")["items"]
