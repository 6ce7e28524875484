"""Errors of asyncpg, as jobd's own: `translated` is the one place that maps them, and `Database` the one that uses it.

Beside it only what connects without a pool does (doctor, backup, the first connection of `serve`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import asyncpg

from jobd.errors import ServerDown, ServerRefused
from jobd.host.masking import masked_url

if TYPE_CHECKING:
    from collections.abc import Iterator

#: asyncio's TimeoutError is the built-in one only since Python 3.11.
AWAY = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
)
#: Postgres did not do it and may later: read-only (a standby in a failover), out of disk, memory or connections, a lock
#: or a statement that took too long, a deadlock.
NOT_NOW = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.TransactionRollbackError,
)
#: The URL, the account or the database is wrong; or, if it worked before, is just being changed.
UNFIT = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)


class LineBroken(ServerDown):
    """The connection went away, perhaps in the middle of a statement: what came of it is unknown."""


@contextlib.contextmanager
def translated(url: str, *, strict: bool = False) -> Iterator[None]:
    """Map errors of asyncpg: temporary ones to `ServerDown`; wrong settings to `ServerRefused` if `strict`."""
    try:
        yield
    except UNFIT as error:
        unfit = ServerRefused if strict else ServerDown
        raise unfit(f"{_where(url)}: {_message(error)}; check user, password and database") from error
    except NOT_NOW as error:
        raise ServerDown(f"{_where(url)} cannot do it now ({_message(error)})") from error
    except (*AWAY, asyncpg.InterfaceError) as error:
        if not is_broken_line(error):
            raise
        raise LineBroken(f"{_where(url)} does not answer ({_message(error)})") from error


def is_broken_line(error: Exception) -> bool:
    """The connection went away, perhaps in the middle of a statement; asyncpg has many words for it.

    Its InterfaceError says that a connection cannot be used (closed, closing, released, ...), unless it is a ValueError
    too: then it is about the arguments of the call.
    """
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)
    return isinstance(error, AWAY)


def _where(url: str) -> str:
    return f"postgres.url {masked_url(url)}"


def _message(error: BaseException) -> str:
    """The error message in one line, without Postgres' DETAIL and HINT."""
    return str(error).partition("\n")[0] or type(error).__name__
