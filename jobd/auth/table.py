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


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    #: The public part of the token.
    id: str
    name: str
    sha256: bytes
    scopes: list[str]
    #: Queues that a worker with this token may serve; None: all.
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    #: Seconds from the read to its expiry, by the clock of the database; None: never.
    expires_in_s: float | None
    revoked_at: datetime | None


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
) -> None:
    async with connection.transaction():
        await connection.fetch(CREATE_TOKEN, id, name, sha256, scopes, queues or None, expires_days)
        await audit(connection, actor, "token.create", f"{name} {id} {','.join(scopes)}")


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
