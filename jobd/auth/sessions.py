"""Sessions of browsers in Postgres: a login turns a token, or a code of `jobd open`, into the secret of a cookie.

Only hashes are stored. A session ends after `LIFE_S`, at logout, or with its token. It is in Postgres, so that it
outlives a crash of jobd and counts on every node.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from jobd.auth.table import audit
from jobd.auth.token import digest_of
from jobd.store.statements import statement
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Connection, Session

OPEN_SESSION = statement("open_session", "jobd.auth")
OPEN_SESSION_BY_CODE = statement("open_session_by_code", "jobd.auth")
READ_SESSIONS = statement("read_sessions", "jobd.auth")
CLOSE_SESSION = statement("close_session", "jobd.auth")
CREATE_LOGIN_CODE = statement("create_login_code", "jobd.auth")
PRUNE_SESSIONS = statement("prune_sessions", "jobd.auth")

#: Name of the cookie.
COOKIE = "jobd_session"
#: Seconds that a session lasts, however much it is used: a working day.
LIFE_S = 12 * 3600
#: Seconds in which a login code must be used: time to start a browser, or to copy a line.
CODE_LIFE_S = 60
#: Random bytes of a session's secret and of a login code.
SECRET_BYTES = 32
#: Sessions of one token; a further login ends the oldest. Bounds the table and the memory of every node.
MAX_SESSIONS = 100


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    #: Hash of the secret in the cookie.
    sha256: bytes
    #: Id of its token in the table of tokens, or
    token_id: str | None
    #: hash of its token in the configuration; neither: a login code, which makes it `local`.
    token_sha256: bytes | None
    expires_at: datetime
    #: Seconds from the read to its end, by the clock of the database.
    expires_in_s: float


def new_secret() -> str:
    """For a cookie or a login code; letters, digits, - and _ only."""
    return secrets.token_urlsafe(SECRET_BYTES)


def session_in(cookies: bytes) -> bytes | None:
    """The hash of the session's secret in a Cookie header, if there is one.

    Raises ApiError for two: the second may have been put there by another server on the same host.
    """
    values = [
        value.strip()
        for name, _, value in (part.partition(b"=") for part in cookies.split(b";"))
        if name.strip() == COOKIE.encode()
    ]
    if len(values) > 1:
        raise ApiError("bad_request", f"there are two cookies {COOKIE}; delete the cookies of this host, log in again")
    return digest_of(values[0]) if values and values[0] else None


async def open_session(session: Session, secret: str, token_key: str | bytes, actor: str) -> SessionRow:
    """`token_key`: the id of a token in the table, or the hash of one in the configuration."""
    token_id, token_sha256 = (token_key, None) if isinstance(token_key, str) else (None, token_key)
    digest = digest_of(secret.encode())
    (row,) = await session.fetch(OPEN_SESSION, digest, token_id, token_sha256, float(LIFE_S), MAX_SESSIONS, actor)
    return SessionRow(**row)


async def open_session_by_code(session: Session, secret: str, code: str, actor: str) -> SessionRow | None:
    """None: there is no such code (any more)."""
    digests = digest_of(code.encode()), digest_of(secret.encode())
    rows = await session.fetch(OPEN_SESSION_BY_CODE, *digests, float(LIFE_S), actor)
    return SessionRow(**rows[0]) if rows else None


async def read_sessions(session: Session, digests: Sequence[bytes]) -> list[SessionRow]:
    """Those of them that are in force."""
    return [SessionRow(**row) for row in await session.fetch(READ_SESSIONS, digests)] if digests else []


async def close_session(session: Session, digest: bytes) -> None:
    await session.fetch(CLOSE_SESSION, digest)


async def create_login_code(connection: Connection, actor: str) -> str:
    """A code that opens one session as `local` within `CODE_LIFE_S`."""
    code = new_secret()
    async with connection.transaction():
        await connection.fetch(CREATE_LOGIN_CODE, digest_of(code.encode()), float(CODE_LIFE_S))
        await audit(connection, actor, "login_code.create", "local")
    return code


async def prune_sessions(session: Session) -> int:
    """Delete what has expired; returns how many sessions and codes."""
    pruned = await session.fetchval(PRUNE_SESSIONS)
    assert isinstance(pruned, int)
    return pruned
