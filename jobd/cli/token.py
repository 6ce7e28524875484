"""`jobd token`: tokens are kept in Postgres, and every node knows of a change within seconds.

Works whether jobd runs or not: the first token can be made before jobd listens where others can reach it.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from jobd.auth.table import create_token, read_tokens, revoke_tokens
from jobd.auth.token import RESERVED_NAMES, new_token
from jobd.backup.offline import connected, keeper
from jobd.cli.options import actor, config_options, json_option, load_quietly, print_note, queue_names
from jobd.cli.running import run_async
from jobd.config.model import OWN_JOBS_SCOPES, Scope
from jobd.errors import DataDirRefused
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.auth.table import TokenRow
    from jobd.config.model import Config


@click.group()
def token() -> None:
    """Make, list and revoke tokens: who may call, and what. As soon as there is one, every caller needs one."""


def holder(ctx: click.Context, parameter: click.Parameter, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.@-]{1,64}", name) or name in RESERVED_NAMES:
        raise click.BadParameter(f"{name!a} must be 1 to 64 letters, digits or any of _ . @ -, not anonymous or local")
    return name


def days(ctx: click.Context, parameter: click.Parameter, number: float | None) -> float | None:
    if number is not None and not 0 < number <= 36_500:  # which NaN is not either
        raise click.BadParameter(f"{number:g} must be above 0, at most 36500")
    return number


@token.command("create")
@config_options
@click.option("--name", required=True, callback=holder, help="Who will hold it. Several tokens may share a name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(get_args(Scope)),
    help="May be repeated. read: what client may read; metrics: /metrics only; admin: everything.",
)
@click.option("--queue", "queues", multiple=True, callback=queue_names, help="For workers: only these (default: all).")
@click.option(
    "--own-jobs", is_flag=True, help="For client and read: sees and touches only jobs that it has sent itself."
)
@click.option("--expires-days", type=float, callback=days, help="Default: never.")
@json_option
def token_create(
    file: str | None,
    data_dir: str | None,
    name: str,
    scopes: tuple[str, ...],
    queues: tuple[str, ...],
    own_jobs: bool,
    expires_days: float | None,
    as_json: bool,
) -> None:
    """Make a token and print it. It is shown this once; only its hash is kept.

    \b
    Examples:
      jobd token create --name me --scope admin
      jobd token create --name jetson-7 --scope worker --queue gpu --expires-days 90
      jobd token create --name ann --scope client --own-jobs
      export JOBD_TOKEN=$(jobd token create --name ci --scope client)
    """
    if queues and "worker" not in scopes:
        raise click.UsageError("--queue is for --scope worker")
    if own_jobs and not {*scopes} <= OWN_JOBS_SCOPES:
        raise click.UsageError("--own-jobs is for --scope client and read; the others show jobs of others")
    loaded = load_quietly(file, data_dir)
    created = run_async(
        create, loaded.config, name, list(dict.fromkeys(scopes)), list(dict.fromkeys(queues)), own_jobs, expires_days
    )
    click.echo(msgspec.json.encode(created) if as_json else created.token)


@token.command("list")
@config_options
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
def token_list(file: str | None, data_dir: str | None, as_json: bool) -> None:
    """List the tokens that were made with `jobd token create`, the revoked ones too.

    \b
    Examples:
      jobd token list
      jobd token list --json | jq -r '.[] | select(.state == "active") | .name'
    """
    loaded = load_quietly(file, data_dir)
    tokens = run_async(list_tokens, loaded.config)
    click.echo(msgspec.json.encode(tokens) if as_json else "\n".join(token.line() for token in tokens) or "no tokens")


@token.command("revoke")
@config_options
@click.argument("name_or_id", metavar="NAME|ID")
@json_option
def token_revoke(file: str | None, data_dir: str | None, name_or_id: str, as_json: bool) -> None:
    """Revoke a token by its id, or all of a name; it counts on every node within 5 seconds.

    \b
    Examples:
      jobd token revoke ci
      jobd token revoke 1f00c3a9
    """
    loaded = load_quietly(file, data_dir)
    revoked = run_async(revoke, loaded.config, name_or_id)
    click.echo(msgspec.json.encode(revoked) if as_json else f"revoked: {', '.join(revoked.ids) or 'none'}")
    if not revoked.ids:
        click.echo(f"jobd: no token in force has the name or id {name_or_id!a}; see jobd token list", err=True)
        sys.exit(1)
    if not revoked.left and not loaded.config.auth.tokens:
        print_note("no token is left, and callers still need one: jobd token create")


# -- what they do with the database ------------------------------------------------------------------------------------


class Made(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    #: The secret; only its hash is stored, so it cannot be shown again.
    token: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    scopes: list[str]
    #: The queues of a worker token; None: all.
    queues: list[str] | None
    #: Whether it sees and touches only its own jobs.
    own_jobs: bool
    created_at: datetime
    expires_at: datetime | None
    #: active, expired or revoked
    state: str

    def line(self) -> str:
        queues = "" if self.queues is None else f" for {', '.join(self.queues)}"
        own = " own jobs only" if self.own_jobs else ""
        until = "" if self.expires_at is None else f", until {self.expires_at.astimezone(timezone.utc):%F %H:%M} UTC"
        return f"{self.id}  {self.state:7}  {self.name:20}  {', '.join(self.scopes)}{own}{queues}{until}"


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[str]
    #: Active tokens that are left in the table.
    left: int


async def create(
    config: Config,
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str],
    own_jobs: bool,
    expires_days: float | None,
) -> Made:
    token = new_token()
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        await create_token(
            connection,
            actor(),
            id=token.id,
            name=name,
            sha256=token.sha256,
            scopes=scopes,
            queues=queues,
            expires_days=expires_days,
            own_jobs=own_jobs,
        )
    return Made(id=token.id, name=name, token=token.text)


async def list_tokens(config: Config) -> list[Shown]:
    _check_there_is_one(config)
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        return [_shown(row) for row in await read_tokens(connection)]


async def revoke(config: Config, name_or_id: str) -> Revoked:
    _check_there_is_one(config)
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        revoked = await revoke_tokens(connection, actor(), name_or_id)
        tokens = [_shown(row) for row in await read_tokens(connection)]
    return Revoked(ids=[id_ for id_, _ in revoked], left=sum(token.state == "active" for token in tokens))


def _check_there_is_one(config: Config) -> None:
    """Refuse if there is no database yet: a command that only reads creates none."""
    if not config.postgres.url and not DataDir(Path(config.data_dir), server_account()).is_ours():
        raise DataDirRefused(f"data directory {config.data_dir} has no jobd in it yet; name another with --data-dir")


def _shown(row: TokenRow) -> Shown:
    state = "active"
    if row.revoked_at is not None:
        state = "revoked"
    elif row.expires_in_s is not None and row.expires_in_s <= 0:
        state = "expired"
    return Shown(
        id=row.id,
        name=row.name,
        scopes=row.scopes,
        queues=row.queues,
        own_jobs=row.own_jobs,
        created_at=row.created_at,
        expires_at=row.expires_at,
        state=state,
    )
