"""The tables of tokens and of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Connection, Session

READ_TOKENS = statement("read_tokens", "jobd.auth")
CREATE_TOKEN = statement("create_token", "jobd.auth")
REVOKE_TOKENS = statement("revoke_tokens", "jobd.auth")
APPEND_AUDIT = statement("append_audit", "jobd.auth")
READ_AUDIT = statement("read_audit", "jobd.auth")


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    #: The public part of the token.
    id: str
    name: str
    sha256: bytes
    scopes: list[str]
    #: Queues that a worker with this token may serve; None: all.
    queues: list[str] | None
    #: Whether it sees and touches only jobs that a token of its name has sent.
    own_jobs: bool
    created_at: datetime
    expires_at: datetime | None
    #: Seconds from the read to its expiry, by the clock of the database; None: never.
    expires_in_s: float | None
    revoked_at: datetime | None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    #: Grows with every row.
    id: int
    at: datetime
    #: Name of a token, or the user of a command line.
    actor: str
    #: `token.create`, `backup.restore`, ...
    action: str
    #: What it was done to.
    subject: str


async def read_tokens(session: Session) -> list[TokenRow]:
    return [TokenRow(**row) for row in await session.fetch(READ_TOKENS)]


async def create_token(
    connection: Connection,
    actor: str,
    *,
    id: str,
    name: str,
    sha256: bytes,
    scopes: Sequence[str],
    queues: Sequence[str] = (),
    expires_days: float | None = None,
    own_jobs: bool = False,
) -> None:
    async with connection.transaction():
        await connection.fetch(CREATE_TOKEN, id, name, sha256, scopes, queues or None, expires_days, own_jobs)
        what = f"{','.join(scopes)}{' own_jobs' if own_jobs else ''}"
        await audit(connection, actor, "token.create", f"{name} {id} {what}")


async def revoke_tokens(connection: Connection, actor: str, name_or_id: str) -> list[tuple[str, str]]:
    """Ids and names of what was revoked."""
    async with connection.transaction():
        revoked = [(row["id"], row["name"]) for row in await connection.fetch(REVOKE_TOKENS, name_or_id)]
        for id_, name in revoked:
            await audit(connection, actor, "token.revoke", f"{name} {id_}")
        return revoked


async def audit(session: Session, actor: str, action: str, subject: str) -> None:
    """Add a row to the audit table, in the transaction of the change that it records."""
    await session.fetch(APPEND_AUDIT, actor, action, subject)


async def read_audit(session: Session, *, before: int | None, most: int) -> list[AuditRow]:
    """What was recorded, newest first; `before`: only rows older than the one with this id."""
    return [AuditRow(**row) for row in await session.fetch(READ_AUDIT, before, most)]
