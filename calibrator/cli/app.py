"""The Typer application and the one place where errors become an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from calibrator.cli import output
from calibrator.cli.demo import demo
from calibrator.cli.doctor import doctor
from calibrator.cli.engine import engine
from calibrator.cli.evaluate import evaluate
from calibrator.cli.fit import fit
from calibrator.cli.profile import profile_engine
from calibrator.cli.recalibrate import recalibrate
from calibrator.cli.report import report
from calibrator.cli.serve import serve
from calibrator.cli.services import collect, migrate, sidecar
from calibrator.cli.token import token
from calibrator.cli.value import value
from calibrator.formats.temperatures import FormatError
from calibrator.store import StoreError
from collectors.errors import RecordError
from serving_adapter.contract import ContractError
from serving_adapter.ports import TransportError
from serving_adapter.settings import SettingsError

# Typer carries its own copy of click; the base of its usage errors is not exported by name.
_CommandError: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException" and issubclass(c, Exception)
)

app = typer.Typer(
    name="dspark-calibrator",
    help="Keeps DSpark speculative decoding calibrated while it serves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(fit)
app.command()(evaluate)
app.command()(value)
app.command()(sidecar)
app.command()(collect)
app.command()(serve)
app.command()(recalibrate)
app.command()(report)
app.command()(migrate)
app.add_typer(token)
app.command()(doctor)
app.command()(engine)
app.command("profile")(profile_engine)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; wrong input is one line on stderr and 2."""
    try:
        result = app(args=list(arguments), prog_name="dspark-calibrator", standalone_mode=False)
    except _CommandError as error:
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except (output.UsageError, FormatError, RecordError, ContractError, SettingsError) as error:
        return _fail(str(error))
    except (StoreError, TransportError) as error:
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
