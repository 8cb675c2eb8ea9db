"""The metrics page: figures of the store under bounded labels, and a page even when the stores are away."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from calibrator.core.report import report_from_windows
from calibrator.service.reading.snapshot import MAX_DEPLOYMENTS
from calibrator.service.web.metrics import KEEP_SECONDS
from calibrator.store import deployments
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.ingest_support import make_rounds
from tests.reading_rows import raw_sums, traffic
from tests.recorded import recorded
from tests.web_support import open_service

pytest_plugins = ["tests.reading_fixtures"]

PREFIX = "dspark_calibrator_"


def samples(page):
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page, name, **labels):
    return samples(page)[name, frozenset((key, str(v)) for key, v in labels.items())]


@pytest.fixture
def service(tmp_path):
    parameter_store = EmbeddedParameterStore()
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_store, tmp_path) as opened:
        yield opened
    parameter_store.close()


def test_every_position_has_its_figures(filled):
    page = filled.get("/metrics").text
    for report in report_from_windows(raw_sums(traffic())):
        labels = {"deployment": "chat", "position": report.position}
        for name, expected in (
            ("expected_calibration_error", report.ece),
            ("noise_floor", report.noise_floor),
            ("calibration_gap", report.gap),
            ("observed_survival", report.observed),
            ("effective_labels", report.n_eff),
            ("coverage", report.coverage),
        ):
            assert value(page, PREFIX + name, **labels) == pytest.approx(expected, abs=1e-6), name
        alias = {"model_name": "chat", "position": report.position}
        assert value(page, "vllm:adaptive_sd_confidence_calibration_error", **alias) == pytest.approx(
            report.ece
        )


def test_parameters_rows_replicas_and_refreshes_are_there(filled):
    page = filled.get("/metrics").text
    document = filled.get("/v1/deployments/chat/versions/1").json()["document"]
    assert value(page, PREFIX + "up") == 1
    assert value(page, PREFIX + "parameter_store_up") == 1
    assert value(page, PREFIX + "deployments") == 3
    assert value(page, PREFIX + "parameter_version", deployment="chat") == 1
    assert value(page, PREFIX + "temperature", deployment="chat", position=3) == document["temperatures"][2]
    assert value(page, PREFIX + "rounds_total", deployment="chat", state="folded") == 8000
    assert value(page, PREFIX + "rounds_total", deployment="chat", state="dead_lettered") == 0
    assert value(page, PREFIX + "replicas", deployment="chat", version="1") == 1
    assert value(page, PREFIX + "refreshes_total", deployment="chat", outcome="published") == 1
    assert value(page, PREFIX + "deployment_status", deployment="quiet", status="no_data") == 1
    assert value(page, PREFIX + "drift_episodes_open", deployment="chat", kind="cost") == 0
    assert not any(math.isnan(v) for (name, _), v in samples(page).items() if name.startswith(PREFIX))


def test_requests_are_counted_by_route_not_by_path(filled):
    for name in ("chat", "quiet", "nobody", "x/y"):
        filled.get(f"/v1/deployments/{name}/replicas")
    routes = {dict(key[1]).get("route") for key in samples(filled.get("/metrics").text)}
    assert not any(name in str(route) for route in routes for name in ("chat", "quiet", "nobody"))
    assert any("replicas" in str(route) for route in routes)


def test_tokens_are_counted_from_when_the_service_looked_first(service):
    service.ingest(recorded("typical").take(slice(0, 1000)))
    assert value(service.get("/metrics").text, PREFIX + "verified_tokens_total", deployment="chat") == 0
    later = recorded("typical").take(slice(1000, 1600))
    service.ingest(later)
    service.clock.advance(KEEP_SECONDS)
    page = service.get("/metrics").text
    sums = raw_sums(later)
    for name, scalar in (
        ("drafted", "drafted"),
        ("accepted", "accepted"),
        ("expected_accepted", "predicted"),
    ):
        counted = value(page, f"{PREFIX}{name}_tokens_total", deployment="chat")
        assert counted == pytest.approx(sums.scalar(scalar).sum(), rel=1e-4)
    alias = value(page, "vllm:adaptive_sd_expected_accepted_tokens_total", model_name="chat")
    assert alias == value(page, PREFIX + "expected_accepted_tokens_total", deployment="chat")
    # An hour that leaves the view takes nothing away.
    service.clock.advance(3 * 3600)
    after = service.get("/metrics").text
    assert value(after, PREFIX + "drafted_tokens_total", deployment="chat") == pytest.approx(
        sums.scalar("drafted").sum()
    )


def test_labels_stay_bounded_however_many_deployments_there_are(service):
    service.ingest(make_rounds(10, gamma=7), "aaa")
    with service.context.store.write() as connection:
        for i in range(MAX_DEPLOYMENTS + 20):
            deployments.register(connection, f"d-{i:04d}", 7, "f", 0.0)
    page = service.get("/metrics").text
    named = {dict(labels).get("deployment") for _, labels in samples(page)} - {None}
    assert len(named) == MAX_DEPLOYMENTS
    assert value(page, PREFIX + "deployments_hidden") == 21
    assert value(page, PREFIX + "deployments") == MAX_DEPLOYMENTS + 21


def test_names_that_need_escaping_are_escaped(service):
    name = 'a"b\\c{d=“e”}'
    with service.context.store.write() as connection:
        deployments.register(connection, name, 1, "f", 0.0)
    page = service.get("/metrics").text
    assert name in {dict(labels).get("deployment") for _, labels in samples(page)}


def test_a_database_without_tables_makes_up_zero_not_an_error(service):
    service.ingest(make_rounds(10, gamma=7))
    with service.context.store.write() as connection:
        connection.execute(text("ALTER TABLE boots RENAME TO gone"))
    answer = service.get("/metrics")
    assert answer.status_code == 200
    assert value(answer.text, PREFIX + "up") == 0
    assert not any(dict(labels).get("deployment") for _, labels in samples(answer.text))
    assert any(name.startswith(("process_", "python_")) for name, _ in samples(answer.text))


def test_the_process_is_alive_whatever_is_away_and_says_what(service):
    assert service.client.get("/healthz").json() == {"status": "ok"}
    ready = {"status": "ok", "database": "ok", "schema": "ok", "parameter_store": "ok"}
    assert service.client.get("/readyz").json() == ready
    service.context.store.downgrade()
    service.clock.advance(2)
    answer = service.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {**ready, "status": "not ready", "schema": "not migrated"}
    assert service.client.get("/healthz").status_code == 200
