"""The Typer application and the one place where errors become an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from calibrator.cli import output
from serving_adapter.contract import ContractError
from serving_adapter.ports import TransportError
from serving_adapter.settings import SettingsError

COMMANDS = {
    "demo": "calibrator.cli.demo:demo",
    "fit": "calibrator.cli.fit:fit",
    "evaluate": "calibrator.cli.evaluate:evaluate",
    "value": "calibrator.cli.value:value",
    "sidecar": "calibrator.cli.services:sidecar",
    "collect": "calibrator.cli.services:collect",
    "serve": "calibrator.cli.serve:serve",
    "recalibrate": "calibrator.cli.recalibrate:recalibrate",
    "report": "calibrator.cli.report:report",
    "migrate": "calibrator.cli.services:migrate",
    "token": "calibrator.cli.token:token",
    "doctor": "calibrator.cli.doctor:doctor",
    "engine": "calibrator.cli.engine:engine",
    "profile": "calibrator.cli.profile:profile_engine",
}
"""Name and place of every command, in the order of the help. Only the one that runs is imported: together
they take seconds, with a web server, a plotting library and two scientific ones among them."""

# Typer carries its own copy of click; the base of its usage errors is not exported by name.
_CommandError: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException" and issubclass(c, Exception)
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        output.out.print(f"dspark-calibrator {metadata.version('dspark-calibrator')}", highlight=False)
        raise typer.Exit


def application(arguments: Sequence[str]) -> typer.Typer:
    """Build the command line with the command that the arguments name, or with all of them for the help."""
    app = typer.Typer(
        name="dspark-calibrator",
        help="Keeps DSpark speculative decoding calibrated while it serves.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    wanted = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name, place in COMMANDS.items():
        if wanted in (None, name):
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name)
            else:
                app.command(name)(command)
    return app


def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command; having any keeps the command's name where there is one command alone."""


def _wrong_input() -> tuple[type[Exception], ...]:
    """Exceptions that name what was wrong with the input; their modules are loaded only when one is there."""
    from calibrator.formats.temperatures import FormatError
    from collectors.errors import RecordError

    return (output.UsageError, FormatError, RecordError, ContractError, SettingsError)


def _out_of_reach() -> tuple[type[Exception], ...]:
    """Exceptions of a store, bus or server that cannot be reached."""
    from calibrator.store.errors import StoreError

    return (StoreError, TransportError)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; wrong input is one line on stderr and 2."""
    arguments = arguments or ["--help"]
    try:
        result = application(arguments)(
            args=list(arguments), prog_name="dspark-calibrator", standalone_mode=False
        )
    except _CommandError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without its command: its help
            output.out.print(error.format_message(), markup=False, soft_wrap=True)  # type: ignore[attr-defined]
            return output.EXIT_WRONG_INPUT
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except _wrong_input() as error:
        return _fail(str(error))
    except _out_of_reach() as error:
        # Nothing wrong with what was typed: something that it names cannot be reached.
        return _fail(str(error), code=1)
    except typer.Abort:
        return _fail("interrupted")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): not our error, and nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except Exception as error:
        # Our mistake, not the user's; whoever reports it can get the traceback.
        if os.environ.get("DSPARK_LOG_LEVEL", "").lower() == "debug":
            raise
        return _fail(
            f"unexpected {type(error).__name__}: {error} (DSPARK_LOG_LEVEL=debug shows where)", code=1
        )
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int = output.EXIT_WRONG_INPUT) -> int:
    # File names may hold anything, escape sequences of a terminal among it.
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    output.err.print(f"error: {line}", markup=False, soft_wrap=True)
    return code
