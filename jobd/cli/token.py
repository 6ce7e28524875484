"""What `jobd token` does: tokens are kept in Postgres, and every node knows of a change within seconds.

Works whether jobd runs or not: the first token can be made before jobd listens where others can reach it.
"""

from __future__ import annotations

import os
import pwd
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.auth.table import create_token, read_tokens, revoke_tokens
from jobd.auth.token import new_token
from jobd.backup.offline import connected, keeper
from jobd.errors import DataDirRefused
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.auth.table import TokenRow
    from jobd.config.model import Config


class Made(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    #: Cannot be shown again.
    token: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    scopes: list[str]
    #: None: all.
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    #: active, expired or revoked
    state: str

    def line(self) -> str:
        queues = "" if self.queues is None else f" for {', '.join(self.queues)}"
        until = "" if self.expires_at is None else f", until {self.expires_at.astimezone(timezone.utc):%F %H:%M} UTC"
        return f"{self.id}  {self.state:7}  {self.name:20}  {', '.join(self.scopes)}{queues}{until}"


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[str]
    #: Tokens in the table that are still good.
    left: int


async def create(
    config: Config, name: str, scopes: Sequence[str], queues: Sequence[str], expires_days: float | None
) -> Made:
    token = new_token()
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        await create_token(
            connection,
            _actor(),
            id=token.id,
            name=name,
            sha256=token.sha256,
            scopes=scopes,
            queues=queues,
            expires_days=expires_days,
        )
    return Made(id=token.id, name=name, token=token.text)


async def all_tokens(config: Config) -> list[Shown]:
    _check_there_is_one(config)
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        return [_shown(row) for row in await read_tokens(connection)]


async def revoke(config: Config, name_or_id: str) -> Revoked:
    _check_there_is_one(config)
    async with connected(config) as connection:
        await migrate(connection, keeper(config))
        revoked = await revoke_tokens(connection, _actor(), name_or_id)
        tokens = [_shown(row) for row in await read_tokens(connection)]
    return Revoked(ids=[id_ for id_, _ in revoked], left=sum(token.state == "active" for token in tokens))


def _check_there_is_one(config: Config) -> None:
    """Only to look, no database is made."""
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
        created_at=row.created_at,
        expires_at=row.expires_at,
        state=state,
    )


def _actor() -> str:
    """Who types, for the audit table."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:{os.getuid()}"
