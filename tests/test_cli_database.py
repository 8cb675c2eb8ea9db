"""A command that only reads makes no database, and says in one line that there is none."""

import pytest

from calibrator.cli import output
from calibrator.cli.app import run
from calibrator.store import Store, deployments

READERS = (
    ("report",),
    ("recalibrate", "--dry-run"),
    ("recalibrate",),
    ("token", "list"),
    ("token", "revoke", "4f0c2a9be1d7"),
    ("migrate", "--downgrade", "base"),
    ("profile", "--deployment", "chat"),
)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Run a command in an empty folder; give exit code, stdout and stderr."""
    from rich.console import Console

    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "CONFIG", "REDIS_URL", "KAFKA_BOOTSTRAP", "DEPLOYMENT"):
        monkeypatch.delenv(f"DSPARK_{name}", raising=False)
    monkeypatch.setenv("DSPARK_RING", "dspark-database-test")

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(output, "err", Console(stderr=True, highlight=False))
        monkeypatch.setattr(output, "out", Console(highlight=False, width=140))
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_a_reader_makes_no_database_and_says_that_there_is_none(call, tmp_path, arguments) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err == "error: database: no such file: dspark.db (--database-url or DSPARK_DATABASE_URL)\n"
    assert list(tmp_path.iterdir()) == []


def test_doctor_makes_none_either(call, tmp_path) -> None:
    code, out, _ = call("doctor")
    assert code == 11
    assert "no such file: dspark.db" in out
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_given_is_the_one_that_is_named(call, tmp_path) -> None:
    missing = tmp_path / "none.db"
    code, _, err = call("report", "--deployment", "demo", "--database-url", f"sqlite:///{missing}")
    assert code == 2
    assert f"no such file: {missing} " in err
    assert not missing.exists()


@pytest.mark.parametrize(
    "arguments",
    [("report",), ("recalibrate",), ("token", "list"), ("token", "create", "--role", "viewer"), ("migrate",)],
    ids=" ".join,
)
def test_what_is_no_url_is_wrong_input(call, tmp_path, arguments) -> None:
    code, out, err = call(*arguments, "--database-url", "foo")
    assert (code, out) == (2, "")
    assert err == "error: database URL: got 'foo', expected sqlite:///FILE or postgresql://...\n"
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_leaves_the_tables_at_their_revision(call, tmp_path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'dspark.db'}")
    store.migrate("0001")
    before = store.revision()
    code, _, err = call("recalibrate", "--dry-run")
    assert code == 1
    assert f"the database is at revision {before}, this release needs" in err
    assert store.revision() == before
    store.migrate()
    with store.write() as connection:
        deployments.register(connection, "chat", 3, "f", 0.0)
    store.close()
    code, _, err = call("recalibrate", "--dry-run", "--deployment", "caht")
    assert (code, err.count("\n")) == (2, 1)
