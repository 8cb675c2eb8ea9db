"""Settings: one name everywhere, precedence, errors that can be acted on, secrets that stay secret."""

import socket

import msgspec
import pytest

from serving_adapter.settings import (
    Settings,
    SettingsError,
    load_settings,
    mask_url,
    option_description,
)


def load(environment=None, **overrides):
    return load_settings(overrides, environment=environment or {})


def test_defaults_need_nothing():
    settings = load()
    assert settings.deployment == "default"
    assert settings.replica == socket.gethostname()
    assert settings.database_url == "sqlite:///dspark.db"
    assert settings.bootstrap_servers == []
    assert settings.signing_key_bytes is None
    assert (settings.window_seconds, settings.sample_rows, settings.bins) == (60.0, 20_000, 15)


def test_the_environment_is_read_and_converted():
    settings = load(
        {
            "DSPARK_DEPLOYMENT": "chat",
            "DSPARK_EXPLORE": "0.05",
            "DSPARK_BINS": "20",
            "DSPARK_KAFKA_BOOTSTRAP": "a:9092, b:9092,",
            "DSPARK_SIGNING_KEY": "key",
            "DSPARK_FORM": "affine",
            "PATH": "/bin",
        }
    )
    assert (settings.deployment, settings.explore, settings.bins) == ("chat", 0.05, 20)
    assert settings.bootstrap_servers == ["a:9092", "b:9092"]
    assert settings.signing_key_bytes == b"key"
    assert settings.form == "affine"


def test_a_file_has_the_same_names(tmp_path):
    file = tmp_path / "dspark.toml"
    file.write_text('deployment = "chat"\nexplore = 0.02\nflush_bytes = 4096\n')
    settings = load({"DSPARK_CONFIG": str(file)})
    assert (settings.deployment, settings.explore, settings.flush_bytes) == ("chat", 0.02, 4096)


def test_command_line_over_environment_over_file_over_default(tmp_path):
    file = tmp_path / "dspark.toml"
    file.write_text('deployment = "file"\nreplica = "file"\nring = "file"\n')
    environment = {
        "DSPARK_CONFIG": str(file),
        "DSPARK_DEPLOYMENT": "environment",
        "DSPARK_REPLICA": "environment",
    }
    settings = load(environment, deployment="line", form=None)
    assert (settings.deployment, settings.replica, settings.ring) == ("line", "environment", "file")
    assert settings.form == "auto"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("explore", "2"),
        ("explore", "often"),
        ("bins", "0"),
        ("bins", "1.5"),
        ("form", "linear"),
        ("flush_bytes", "10"),
        ("window_seconds", "-1"),
        ("deployment", ""),
        ("deployment", "a b"),
        ("replica", "x" * 200),
        ("share", "0"),
        ("redis_url", "host"),
        ("kafka_security_protocol", "TLS"),
        ("report_expire_seconds", "1"),
    ],
)
def test_an_error_names_the_variable_and_the_value(name, value):
    with pytest.raises(SettingsError) as caught:
        load({f"DSPARK_{name.upper()}": value})
    message = str(caught.value)
    assert f"DSPARK_{name.upper()}" in message
    assert value[:40] in message
    assert "expected" in message
    assert "\n" not in message


def test_an_error_about_a_secret_does_not_tell_it():
    with pytest.raises(SettingsError) as caught:
        load(signing_key=["hunter2"])
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        load(database_url={"url": "postgresql://me:hunter2@db/x"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("content", ["deployment = ", 'deploymnet = "x"\n', "explore = 7\n"])
def test_a_file_with_an_error_is_refused(tmp_path, content):
    file = tmp_path / "dspark.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match="DSPARK_"):
        load({"DSPARK_CONFIG": str(file)})


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"DSPARK_CONFIG.*nowhere"):
        load({"DSPARK_CONFIG": str(tmp_path / "nowhere.toml")})


def test_an_unknown_option_is_refused():
    with pytest.raises(SettingsError, match="DSPARK_COLOUR"):
        load(colour="red")


def test_sasl_needs_an_account():
    with pytest.raises(SettingsError, match="DSPARK_KAFKA_USERNAME"):
        load(kafka_security_protocol="SASL_SSL")
    load(kafka_security_protocol="SASL_SSL", kafka_username="u", kafka_password="p")


def test_a_client_certificate_needs_its_key():
    with pytest.raises(SettingsError, match="DSPARK_KAFKA_KEY_FILE"):
        load(kafka_cert_file="cert.pem")


def test_secrets_are_masked_when_settings_are_shown():
    settings = load(
        kafka_password="hunter2",
        signing_key="hunter2",
        salt="hunter2",
        redis_url="rediss://me:hunter2@host:6379/0?sentinel_password=hunter2",
        database_url="postgresql+psycopg://me:hunter2@db/dspark",
    )
    for shown in (repr(settings), str(settings), str(list(settings.__rich_repr__())), str(settings.masked())):
        assert "hunter2" not in shown
    assert "kafka_password='***'" in repr(settings)
    assert "postgresql+psycopg://me:***@db/dspark" in repr(settings)
    assert "signing_key=''" in repr(load())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://me:se/cr@et@host", "redis://me:***@host"),
        ("redis+sentinel://u:p@a:1,b:2/name", "redis+sentinel://u:***@a:1,b:2/name"),
        ("sqlite:///dspark.db", "sqlite:///dspark.db"),
    ],
)
def test_passwords_in_urls_are_masked(url, shown):
    assert mask_url(url) == shown


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_option_is_documented(name):
    assert option_description(name)


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        load().deployment = "other"
    assert msgspec.structs.replace(load(), deployment="other").deployment == "other"
