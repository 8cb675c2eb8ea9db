"""A misspelt variable is told once, with the option that it resembles."""

import pytest

from serving_adapter import unknown_variables
from serving_adapter.settings import load_settings


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(unknown_variables, "_told", set())


def told(caplog, **environment):
    caplog.clear()
    load_settings(environment={f"DSPARK_{name}": value for name, value in environment.items()})
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_misspelt_variable_is_named_with_the_nearest_option(caplog):
    assert told(caplog, KAFKA_BOOTSTRAPS="broker:9092") == [
        "DSPARK_KAFKA_BOOTSTRAPS is no option and has no effect; did you mean DSPARK_KAFKA_BOOTSTRAP?"
    ]


def test_a_variable_like_no_option_is_named_alone(caplog):
    assert told(caplog, XYZZYQQ="1") == ["DSPARK_XYZZYQQ is no option and has no effect"]


def test_it_is_told_once(caplog):
    assert len(told(caplog, DEPLOYMNT="a")) == 1
    assert told(caplog, DEPLOYMNT="a") == []


def test_the_value_is_not_told(caplog):
    assert "hunter2" not in told(caplog, KAFKA_PASSWRD="hunter2")[0]


@pytest.mark.parametrize(
    "name",
    [
        "CONFIG",
        "DEPLOYMENT",
        "PORT",
        "PORT_8080_TCP",
        "PORT_8080_TCP_ADDR",
        "SERVICE_HOST",
        "SERVICE_PORT_HTTP",
        "REDIS_SERVICE_HOST",
        "TEST_REDIS_URL",
        "CACHE",
    ],
)
def test_options_and_what_kubernetes_sets_are_not_told(caplog, name):
    assert told(caplog, **{name: "" if name == "CONFIG" else "x"}) == []
