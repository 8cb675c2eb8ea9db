"""``dspark-calibrator doctor``: is everything that the settings name there, and fit for use?"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.running import missing_file
from calibrator.cli.services import pipeline_options
from calibrator.store import SchemaError, Store, StoreError, boots, dead_letters, deployments
from serving_adapter.ports import TransportError
from serving_adapter.settings import PREFIX, Settings, SettingsError, load_settings, option_description

EXIT_CODES = {"settings": 10, "database": 11, "kafka": 12, "redis": 13, "ring": 14}
"""The command ends with the code of the first area in which something is wrong."""

MAX_CLOCK_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``mend`` says what to do about it."""

    area: str
    status: Literal["ok", "warning", "error"]
    detail: str
    mend: str = ""


def doctor(
    options: Annotated[bool, typer.Option("--options", help="List every option and its value.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check every connection and setting; say what is wrong and how to mend it.

    Exit code 0 when all is well (warnings included), else that of the first area with an error: settings
    10, database 11, kafka 12, redis 13, ring 14.

    Examples:

      DSPARK_KAFKA_BOOTSTRAP=broker:9092 dspark-calibrator doctor

      dspark-calibrator doctor --options
    """
    findings: list[Finding] = []
    settings: Settings | None = None
    try:
        settings = load_settings()
    except SettingsError as error:
        findings.append(Finding("settings", "error", str(error), "correct or unset that variable"))
    if settings is not None:
        if options:
            _print_options(settings, as_json)
            return 0
        findings.append(Finding("settings", "ok", f"deployment {settings.deployment}"))
        for area, check in (
            ("settings", _settings),
            ("database", _database),
            ("kafka", _bus),
            ("redis", _parameter_store),
            ("ring", _ring),
        ):
            try:
                findings += check(settings)
            except Exception as error:  # a setting that a library cannot even parse is a finding
                findings.append(
                    Finding(area, "error", f"{type(error).__name__}: {error}", "correct that setting")
                )
    if as_json:
        output.print_json({"findings": [asdict(f) for f in findings], "exit_code": _exit_code(findings)})
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}[finding.status]
            output.out.print(f"{mark}  {finding.area:9} {finding.detail}", markup=False, soft_wrap=True)
            if finding.mend:
                output.out.print(f"{'':20}{finding.mend}", markup=False, soft_wrap=True)
    return _exit_code(findings)


def _exit_code(findings: list[Finding]) -> int:
    broken = [f.area for f in findings if f.status == "error"]
    return EXIT_CODES[broken[0]] if broken else 0


def _settings(settings: Settings) -> Iterator[Finding]:
    try:
        pipeline_options(settings)
    except output.UsageError as error:
        yield Finding("settings", "error", str(error), "choose a divisor of 3600")
    if not settings.signing_key:
        yield Finding(
            "settings",
            "warning",
            "parameter documents are not signed",
            f"set {PREFIX}SIGNING_KEY on calibrator and pods, so that nobody else can publish",
        )
    if settings.explore == 0:
        yield Finding(
            "settings",
            "warning",
            "exploration is off: figures describe verified traffic only",
            f"set {PREFIX}EXPLORE to 0.01 or so",
        )
    if settings.kafka_bootstrap and importlib.util.find_spec("lz4") is None:
        yield Finding(
            "settings",
            "warning",
            "no lz4: messages are compressed with gzip",
            "pip install 'dspark-calibrator[lz4]'",
        )


def _database(settings: Settings) -> Iterator[Finding]:
    store: Store | None = None
    try:
        store = Store(settings.database_url)
        missing = missing_file(store)
        if missing is not None:
            yield Finding(
                "database",
                "error",
                f"no such file: {missing}",
                f"check {PREFIX}DATABASE_URL; for a new one run: dspark-calibrator migrate",
            )
            return
        store.check_schema()
        yield Finding("database", "ok", f"{store.dialect}, revision {store.revision()}")
        yield from _lost_rows(store, settings.deployment)
    except SchemaError as error:
        yield Finding("database", "error", str(error), "run: dspark-calibrator migrate")
    except StoreError as error:
        yield Finding(
            "database", "error", str(error), f"check {PREFIX}DATABASE_URL, and that the server answers there"
        )
    finally:
        if store is not None:
            store.close()


def _lost_rows(store: Store, deployment: str) -> Iterator[Finding]:
    """Tell what never entered the figures: overwritten before it was read, or refused."""
    with store.read() as connection:
        known = deployments.get(connection, deployment)
        if known is None:
            return
        rounds, steps = (boots.totals(connection, known.id, kind) for kind in ("round", "step"))
        letters = dead_letters.recent(connection, 1)
    if rounds.dead_lettered or steps.dead_lettered:
        reason = f"; the last reason: {letters[0].reason}" if letters else ""
        yield Finding(
            "database",
            "warning",
            f"{rounds.dead_lettered} rounds and {steps.dead_lettered} step rows of {deployment} were refused"
            f"{reason}",
            "read the dead-letter topic, and mend the replica that sends them",
        )
    if rounds.lost or steps.lost:
        yield Finding(
            "database",
            "warning",
            f"{rounds.lost} rounds and {steps.lost} step rows of {deployment} were never sent (ring overrun)",
            "see that sidecars run and reach the bus; an engine may want a larger ring",
        )


def _bus(settings: Settings) -> Iterator[Finding]:
    if not settings.kafka_bootstrap:
        yield Finding("kafka", "ok", f"not used: the embedded bus is {settings.bus_path}")
        return
    from serving_adapter.buses import describe_topics

    try:
        partitions = describe_topics(settings)
    except TransportError as error:
        yield Finding(
            "kafka",
            "error",
            str(error),
            f"check {PREFIX}KAFKA_BOOTSTRAP, protocol, user and password (a wrong password looks like a "
            "broker that does not answer)",
        )
        return
    for topic, count in partitions.items():
        if count:
            yield Finding("kafka", "ok", f"topic {topic}, {count} partitions")
        else:
            yield Finding(
                "kafka", "warning", f"topic {topic} does not exist yet", "a collector makes it when it starts"
            )


def _parameter_store(settings: Settings) -> Iterator[Finding]:
    if not settings.redis_url:
        yield Finding("redis", "ok", "not used: the parameter store is embedded")
        return
    from serving_adapter.parameter_stores import open_parameter_store

    try:
        with contextlib.closing(open_parameter_store(settings)) as store:
            store.ping()
            skew = abs(store.server_time() - time.time())
            payload = store.read(settings.deployment)
            reports = store.reports(settings.deployment)
    except TransportError as error:
        yield Finding(
            "redis", "error", str(error), f"check {PREFIX}REDIS_URL, and that the user may read dspark:* keys"
        )
        return
    held = "no document yet" if payload is None else f"a document of {len(payload)} bytes"
    yield Finding("redis", "ok", f"{held}, {len(reports)} live replicas of {settings.deployment}")
    if skew > MAX_CLOCK_SKEW_SECONDS:
        yield Finding(
            "redis",
            "warning",
            f"its clock is {skew:.0f} s away from this machine's",
            "synchronise the clocks",
        )


def _ring(settings: Settings) -> Iterator[Finding]:
    from serving_adapter.ring_presence import rings_of

    try:
        rings = rings_of(settings.ring)
    except OSError as error:
        yield Finding(
            "ring",
            "error",
            f"ring {settings.ring} cannot be read: {error}",
            "engine and sidecar must be of one release and share /dev/shm and user",
        )
        return
    if not rings:
        yield Finding("ring", "ok", f"{settings.ring}: no engine on this machine")
        return
    newest = rings[-1]
    engine = "an engine runs" if newest.written else "its last engine has ended"
    sidecar = "a sidecar reads it" if newest.read else "no sidecar reads it"
    starts = "1 engine start" if len(rings) == 1 else f"{len(rings)} engine starts"
    yield Finding("ring", "ok", f"{settings.ring}: {engine}, {sidecar} ({starts} kept)")
    if newest.written and not newest.read:
        yield Finding(
            "ring",
            "warning",
            f"nobody reads the rows of the engine on ring {settings.ring}",
            f"start a sidecar with {PREFIX}RING={settings.ring}",
        )
    for deployment in sorted({ring.text.deployment for ring in rings} - {settings.deployment}):
        yield Finding(
            "ring",
            "error",
            f"the engine belongs to deployment {deployment!r}, "
            f"the sidecar would read the parameters of {settings.deployment!r}",
            f"set {PREFIX}DEPLOYMENT={deployment}",
        )
    if newest.text.replica != settings.replica:
        yield Finding(
            "ring",
            "warning",
            f"the engine is replica {newest.text.replica!r}, "
            f"a sidecar with these settings would report as {settings.replica!r}",
            f"set {PREFIX}REPLICA={newest.text.replica} for both",
        )


def _print_options(settings: Settings, as_json: bool) -> None:
    shown = settings.masked()
    if as_json:
        output.print_json(
            {name: {"value": value, "description": option_description(name)} for name, value in shown.items()}
        )
        return
    rows = [
        (f"{PREFIX}{name.upper()}", str(value), option_description(name)) for name, value in shown.items()
    ]
    width, value_width = max(len(r[0]) for r in rows), 28
    for name, value, text in rows:
        output.out.print(f"{name:{width}}  {value:{value_width}}  {text}", markup=False, soft_wrap=True)
