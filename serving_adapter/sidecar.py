"""Both loops of a pod: rows out to the bus, parameters in to the mirror.

As threads of any process (the embedded placement), or as a process of its own::

    python -m serving_adapter.sidecar --deployment chat --kafka-bootstrap broker:9092
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from serving_adapter.forwarder import Forwarder
from serving_adapter.ports import Clock, EventSink, ParameterStore
from serving_adapter.ring_layout import refuse_foreign_file
from serving_adapter.settings import Settings, SettingsError, load_settings, option_description
from serving_adapter.shared_memory import segment_path
from serving_adapter.subscriber import Subscriber

log = logging.getLogger(__name__)

OPTIONS = (
    "deployment",
    "replica",
    "ring",
    "kafka_bootstrap",
    "kafka_topic",
    "kafka_security_protocol",
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_ca_file",
    "kafka_cert_file",
    "kafka_key_file",
    "kafka_compression",
    "bus_path",
    "redis_url",
    "redis_ca_file",
    "encoding",
    "flush_seconds",
    "flush_bytes",
    "poll_seconds",
    "report_seconds",
    "report_expire_seconds",
    "drain_seconds",
    "log_level",
)
"""What a pod needs. Passwords and keys have no switch: anyone on the machine can read a command line."""


class Sidecar:
    """Forwarder and subscriber as two threads.

    Parameters
    ----------
    settings
        Options of the pod.
    open_sink, open_store
        How to reach bus and parameter store; by default what the settings name. They are called in the
        loops, which go on trying while they raise ``TransportError``.
    clock
        What stamps messages; the system's when left out.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        open_sink: Callable[[], EventSink] | None = None,
        open_store: Callable[[], ParameterStore] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.forwarder = Forwarder(
            settings.ring,
            open_sink or (lambda: _sink(settings)),
            flush_seconds=settings.flush_seconds,
            flush_bytes=settings.flush_bytes,
            encoding=settings.encoding,
            clock=clock,
        )
        self.subscriber = Subscriber(
            settings.ring,
            open_store or (lambda: _store(settings)),
            settings.deployment,
            settings.replica,
            key=settings.signing_key_bytes,
            poll_seconds=settings.poll_seconds,
            report_seconds=settings.report_seconds,
            expire_seconds=settings.report_expire_seconds,
        )
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both loops."""
        self._threads = [
            threading.Thread(
                target=self.forwarder.run,
                args=(0.9 * self.settings.drain_seconds,),  # the rest is for closing connections
                name="dspark-forwarder",
                daemon=True,
            ),
            threading.Thread(target=self.subscriber.run, name="dspark-subscriber", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        log.info("sidecar_started ring=%s deployment=%s", self.settings.ring, self.settings.deployment)

    def stop(self) -> bool:
        """Drain the ring and end both loops; False when they did not end within ``drain_seconds``."""
        self.forwarder.stop()
        self.subscriber.stop()
        limit = threading.Event()
        timer = threading.Timer(self.settings.drain_seconds, limit.set)
        timer.daemon = True
        timer.start()
        for thread in self._threads:
            while thread.is_alive() and not limit.is_set():
                thread.join(0.05)
        timer.cancel()
        ended = not any(thread.is_alive() for thread in self._threads)
        log.info("sidecar_stopped drained=%s", ended)
        return ended

    def counters(self) -> dict[str, dict[str, int]]:
        """What both loops did so far."""
        return {
            "forwarder": asdict(self.forwarder.counters),
            "subscriber": asdict(self.subscriber.counters),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sidecar until SIGTERM or SIGINT; 0 when all rows were delivered, 2 for wrong options."""
    parser = argparse.ArgumentParser(
        prog="python -m serving_adapter.sidecar",
        description="Drains an engine's event ring to the bus and mirrors parameters into shared memory.",
        epilog="Every option is also an environment variable: --kafka-bootstrap is DSPARK_KAFKA_BOOTSTRAP.",
    )
    for name in OPTIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=option_description(name))
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    try:
        settings = load_settings(given)
        refuse_foreign_file(segment_path(settings.ring))
    except (SettingsError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    sidecar = Sidecar(settings)
    sidecar.start()
    ended.wait()
    drained = sidecar.stop()
    for loop, counters in sidecar.counters().items():
        log.info("%s_totals %s", loop, " ".join(f"{name}={value}" for name, value in counters.items()))
    return 0 if drained else 1


def _sink(settings: Settings) -> EventSink:
    # Only here, so that a pod loads no transport it does not use.
    from serving_adapter.buses import open_sink

    return open_sink(settings)


def _store(settings: Settings) -> ParameterStore:
    from serving_adapter.parameter_stores import open_parameter_store

    return open_parameter_store(settings)


if __name__ == "__main__":
    raise SystemExit(main())
