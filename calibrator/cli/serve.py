"""``dspark-calibrator serve``: REST API, dashboard, metrics, and the loop that recalibrates."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Annotated

import typer
import uvicorn

from calibrator.cli import output
from calibrator.cli.log_setup import configure_logging
from calibrator.cli.running import migrated, opened_store, stop_on_signal, wait_for
from calibrator.cli.service_parts import access_policy, background, build_context
from calibrator.cli.services import DatabaseOption, RedisOption
from calibrator.service.web.app import create_app
from calibrator.service.web.guards import LOOPBACK_NAMES
from calibrator.service.web.server import EndingServer
from calibrator.service.web.traces import set_up_traces
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.settings import Settings, load_settings

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 3
"""Requests under way at SIGTERM get this long."""
WATCH_SECONDS = 0.05
ANSWER_SECONDS = 1.0
"""Somebody waits for the answer that a parameter store is asked for; twice, as a call is repeated once."""

NO_TOKENS = (
    "--host: got {host}, which others can reach, and there is no token and no identity provider: make one "
    "with `dspark-calibrator token create --role operator`, set DSPARK_OIDC_ISSUER, or listen on 127.0.0.1"
)


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (DSPARK_LISTEN_HOST).", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port; 0 takes a free one (DSPARK_LISTEN_PORT).", min=0, max=65535, show_default="8080"
        ),
    ] = None,
    database_url: DatabaseOption = None,
    redis_url: RedisOption = None,
    tls_cert_file: Annotated[
        str | None, typer.Option(help="Certificate, PEM (DSPARK_TLS_CERT_FILE).", show_default=False)
    ] = None,
    tls_key_file: Annotated[
        str | None, typer.Option(help="Its key, PEM (DSPARK_TLS_KEY_FILE).", show_default=False)
    ] = None,
) -> int:
    """Serve REST API and dashboard, and recalibrate every deployment on its schedule.

    Any number of these may run on one database: leases decide who does what. On loopback and without tokens
    everybody may read and nobody may change anything (DSPARK_LOCAL_ROLE=operator allows it); on any other
    address it does not start without a token or an identity provider. A server that is down is waited for.

    Examples:

      dspark-calibrator serve --database-url postgresql://db/dspark --redis-url redis://cache:6379/0

      dspark-calibrator serve --host 0.0.0.0 --port 8443 --tls-cert-file tls.crt --tls-key-file tls.key
    """
    settings = load_settings(
        {
            "listen_host": host,
            "listen_port": port,
            "database_url": database_url,
            "redis_url": redis_url,
            "tls_cert_file": tls_cert_file,
            "tls_key_file": tls_key_file,
        }
    )
    configure_logging(settings)
    pool = {"pool_size": settings.database_pool, "wait_seconds": settings.database_wait_seconds}
    with (
        contextlib.closing(_listener(settings)) as listener,
        opened_store(settings, **pool) as store,
        stop_on_signal() as stop,
    ):
        parameter_store = None
        if migrated(store, stop):
            parameter_store = wait_for(
                "parameter_store", lambda: open_parameter_store(settings, ANSWER_SECONDS), stop
            )
        if parameter_store is None:
            return 0  # stopped before its servers were there
        with contextlib.closing(parameter_store):
            local = on_loopback(listener)
            policy = access_policy(settings, store, local=local)
            if not local and not policy.configured():
                raise output.UsageError(NO_TOKENS.format(host=settings.listen_host))
            context = build_context(settings, store, parameter_store)
            app = create_app(context, policy, _hosts(settings, local=local))
            set_up_traces()
            server = EndingServer(_uvicorn_config(settings, app), app.state.live.close)
            with background(context, stop, lambda: setattr(server, "should_exit", True)) as failed:
                address = _address(settings, listener)
                log.info("service_started address=%s local=%s", address, local)
                output.err.print(f"serving {address}  (Ctrl-C ends it)", markup=False, soft_wrap=True)
                with _stopping(server, stop):
                    server.run(sockets=[listener])
    log.info("service_stopped")
    return 1 if failed.is_set() else 0


def on_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _listener(settings: Settings) -> socket.socket:
    """Bind before anything else: a port that is taken is told at once."""
    host, port = settings.listen_host, settings.listen_port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise output.UsageError(
            f"--host: got {host!r}, expected a name or address of this machine ({reason})"
        ) from error
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        option = "--host" if getattr(error, "errno", None) == errno.EADDRNOTAVAIL else "--port"
        raise output.UsageError(
            f"{option}: got {host}:{port}, which cannot be listened on ({reason})"
        ) from error


def _uvicorn_config(settings: Settings, app: object) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,  # the application logs requests itself, with their ids and without headers
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        ssl_certfile=settings.tls_cert_file or None,
        ssl_keyfile=settings.tls_key_file or None,
    )
    try:
        config.load()
    except OSError as error:  # a file that is not there, or no certificate
        raise output.UsageError(
            f"DSPARK_TLS_CERT_FILE: got {settings.tls_cert_file!r} with {settings.tls_key_file!r}, "
            f"expected a certificate and its key ({error.strerror or error})"
        ) from error
    return config


def _hosts(settings: Settings, *, local: bool) -> frozenset[str]:
    """Names that requests may be addressed to."""
    given = {name.strip() for name in settings.allowed_hosts.split(",") if name.strip()}
    return LOOPBACK_NAMES | given if local or given else frozenset()


def _address(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_cert_file else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


@contextlib.contextmanager
def _stopping(server: uvicorn.Server, stop: threading.Event) -> Iterator[None]:
    """End the server when ``stop`` is set: a signal may have come before its own handlers were there."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_SECONDS):
            if stop.is_set():
                server.should_exit = True
                return

    watcher = threading.Thread(target=watch, name="dspark-stop", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        ended.set()
        watcher.join()
