"""``dspark-calibrator token``: make, list and revoke the bearer tokens of the REST API."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson
from calibrator.cli.running import existing_store, opened_store
from calibrator.cli.services import DatabaseOption
from calibrator.service.access import Role
from calibrator.service.access.tokens import create as create_token
from calibrator.service.web.times import format_time
from calibrator.store import tokens
from serving_adapter.clock import SystemClock
from serving_adapter.settings import Settings, load_settings

DAY = 86_400.0

token = typer.Typer(
    name="token",
    help="Make, list and revoke the bearer tokens of the REST API and the dashboard.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@token.command("create")
def create(
    role: Annotated[Role, typer.Option(help="viewer reads, operator changes, admin reads the audit too.")],
    name: Annotated[str, typer.Option(help="Who or what it is for.")] = "",
    expires_days: Annotated[
        float | None, typer.Option(help="Days until it ends; never when left out.", min=0.0, max=36_500.0)
    ] = None,
    database_url: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: only its hash is kept, it cannot be shown again.

    Examples:

      dspark-calibrator token create --role operator --name deploy --expires-days 90
    """
    if len(name) > 128 or not name.isprintable():
        raise output.UsageError(f"--name: got {name!r:.60}, expected at most 128 printable characters")
    now = SystemClock().now()
    ends = None if expires_days is None else now + expires_days * DAY
    with opened_store(_settings(database_url)) as store:
        store.migrate()
        text, made = create_token(store, role, now, name=name, expires_at=ends)
    if as_json:
        output.print_json({"id": made.id, "role": made.role, "name": made.name, "token": text})
        return
    output.out.print(text, markup=False, soft_wrap=True)
    output.print_note(f"token {made.id} with the role {made.role}; it is shown this once")


@token.command("list")
def list_tokens(database_url: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Show all tokens, without their secrets.

    Examples:

      dspark-calibrator token list
    """
    with existing_store(_settings(database_url)) as store:
        store.check_schema()
        with store.read() as connection:
            known = tokens.every(connection)
    now = SystemClock().now()
    if as_json:
        output.print_json(
            [
                {
                    "id": t.id,
                    "name": t.name,
                    "role": t.role,
                    "usable": t.usable(now),
                    "created_at": _time(t.created_at),
                    "expires_at": _time(t.expires_at),
                    "revoked_at": _time(t.revoked_at),
                    "last_used_at": _time(t.last_used_at),
                }
                for t in known
            ]
        )
        return
    rows = [
        [
            t.id,
            t.name or "-",
            t.role,
            "revoked" if t.revoked_at is not None else "usable" if t.usable(now) else "expired",
            *(_time(moment) or "-" for moment in (t.created_at, t.expires_at, t.last_used_at)),
        ]
        for t in known
    ]
    columns = ["id", "name", "role", "status", "created", "expires", "last used"]
    output.out.print(output.table("tokens", columns, rows))


@token.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token, as `token list` shows it.")],
    database_url: DatabaseOption = None,
) -> None:
    """End a token at once and for good.

    Examples:

      dspark-calibrator token revoke 4f0c2a9be1d7
    """
    with existing_store(_settings(database_url)) as store:
        store.check_schema()
        with store.write() as connection:
            revoked = tokens.revoke(connection, token_id, SystemClock().now())
    if not revoked:
        raise output.UsageError(f"token revoke: got {token_id!r:.60}, expected the id of a token in use")
    output.print_note(f"token {token_id} is revoked")


def _settings(database_url: str | None) -> Settings:
    return load_settings({"database_url": database_url})


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)
