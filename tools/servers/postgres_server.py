"""PostgreSQL in a private folder."""

import os
import pwd
import re
import secrets
import shutil
import signal
from pathlib import Path
from typing import ClassVar

import psycopg

from tools.servers.base import Server

DEBIAN_FOLDER = Path("/usr/lib/postgresql")


class PostgresServer(Server):
    """A PostgreSQL cluster with one superuser, `dspark`, and a password.

    PostgreSQL refuses to run as root, so root runs it as the account ``postgres``. Writes are not flushed to
    the disk: data survives the death of the server, not that of the machine.

    Parameters
    ----------
    settings
        Lines of ``postgresql.conf`` that override the ones below.
    """

    kind: ClassVar[str] = "PostgreSQL"
    variable: ClassVar[str | None] = "DSPARK_TEST_DATABASE_URL"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": does not wait for clients to leave
    user = "postgres"

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self.username = "dspark"
        self.password = secrets.token_hex(8)
        self._settings = dict(settings or {})

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database ``postgres``."""
        return self.url_for("postgres")

    def url_for(self, database: str) -> str:
        """SQLAlchemy URL of a database of this server."""
        return f"postgresql+psycopg://{self.username}:{self.password}@{self.host}:{self.port}/{database}"

    @property
    def data(self) -> Path:
        """The cluster's own folder."""
        return self.folder / "data"

    def _prepare(self) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        if self._as_user():
            os.chown(password, pwd.getpwnam(self.user).pw_uid, -1)
        self._run(
            self._binary("initdb"), "--pgdata", str(self.data), "--username", self.username,
            "--pwfile", str(password), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C",
            "--no-sync", "--no-instructions",
        )  # fmt: skip
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",  # only this one: without synchronous_commit a crash would lose commits
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_line_prefix": "%m [%p] %d ",
        } | self._settings
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _create_folder(self) -> None:
        self._binary("initdb")
        if os.geteuid() == 0:
            try:
                pwd.getpwnam(self.user)
            except KeyError:
                raise self._unavailable(
                    f"we are root and there is no account {self.user} to run it"
                ) from None
        super()._create_folder()

    def _command(self) -> list[str]:
        return [self._binary("postgres"), "-D", str(self.data)]

    def _probe(self) -> None:
        with psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=5) as connection:
            connection.execute("SELECT 1")

    def _binary(self, name: str) -> str:
        """The newest of Debian's side-by-side versions (they are not on PATH), or the one on PATH."""
        versions = [folder for folder in DEBIAN_FOLDER.glob("*") if (folder / "bin" / name).exists()]
        if versions:
            newest = max(versions, key=lambda folder: [int(part) for part in re.findall(r"\d+", folder.name)])
            return str(newest / "bin" / name)
        found = shutil.which(name)
        if found is None:
            raise self._unavailable(f"there is no {name} below {DEBIAN_FOLDER} or on PATH")
        return found
