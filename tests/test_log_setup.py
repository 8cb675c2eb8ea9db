"""Logs of the commands: fixed events with fields, in UTC, without secrets."""

import json
import logging

import pytest
from structlog.contextvars import bound_contextvars

from calibrator.cli.log_setup import configure_logging, masked
from serving_adapter.settings import load_settings

TOKEN = "dspark_0123456789ab_dGhpcyBpcyBhIHNlY3JldCBvZiB0aGlydHk"


@pytest.fixture
def root():
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def lines(root, capsys):
    def logged(log_format, log):
        configure_logging(load_settings({"log_format": log_format}, environment={}))
        log(logging.getLogger("calibrator.test"))
        return capsys.readouterr().err.splitlines()

    return logged


def test_a_template_becomes_an_event_with_typed_fields(lines):
    (line,) = lines("json", lambda log: log.info("refresh_published deployment=%s version=%d", "chat", 3))
    shown = json.loads(line)
    assert shown["event"] == "refresh_published"
    assert (shown["deployment"], shown["version"]) == ("chat", 3)
    assert (shown["level"], shown["logger"]) == ("info", "calibrator.test")
    assert shown["at"].endswith("Z")


def test_what_is_no_template_stays_a_message(lines):
    (line,) = lines("json", lambda log: log.warning("collector waits %.1f s: %s", 0.5, "refused"))
    assert json.loads(line)["event"] == "collector waits 0.5 s: refused"


def test_text_is_for_people(lines):
    (line,) = lines("text", lambda log: log.info("refresh_published deployment=%s version=%d", "chat", 3))
    at, _, rest = line.partition("Z ")
    assert len(at) == len("2026-11-29 22:34:49")
    assert rest == "INFO calibrator.test refresh_published deployment=chat version=3"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_request_and_run_ids_are_on_every_line(lines, log_format):
    def log(logger):
        with bound_contextvars(request_id="req-1", run=7):
            logger.info("run_started kind=%s", "recalibrate")

    (line,) = lines(log_format, log)
    assert "req-1" in line
    if log_format == "json":
        assert json.loads(line)["run"] == 7


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_are_masked_wherever_they_stand(lines, log_format):
    def log(logger):
        logger.info("path=%r", f"/v1/deployments/{TOKEN}")
        logger.info("request_done path=%s", {"nested": [f"Bearer {TOKEN}"]})
        logger.warning("cannot reach %s", "postgresql://user:hunter2@db/dspark")
        try:
            raise RuntimeError(f"Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln {TOKEN}")
        except RuntimeError:
            logger.exception("request_crashed path=%s", "/")

    text = "\n".join(lines(log_format, log))
    assert "dGhpcyBpcyBh" not in text
    assert "hunter2" not in text
    assert "eyJzdWIiOiJhIn0" not in text
    assert "***" in text
    assert "RuntimeError" in text


def test_what_is_no_secret_stays():
    for text in ("dspark_verify", "deployment=dspark-demo", "redis://host:6379/0", "bearer of news"):
        assert masked(text) == text


def test_lines_of_a_level_that_was_not_asked_for_are_left_out(lines):
    assert lines("json", lambda log: log.debug("tick")) == []
