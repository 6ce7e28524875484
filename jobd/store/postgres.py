"""The connection pool to Postgres, embedded or not, and what a Postgres must be for jobd to trust it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from jobd.errors import ServerDown, ServerRefused
from jobd.host.masking import masked_url
from jobd.store.clock import Clock
from jobd.store.faults import translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from jobd.store.session import Connection, Session

    AnyConnection = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

T = TypeVar("T")

#: Oldest major version of Postgres whose SQL the statements use.
MIN_VERSION = 14
APPLICATION = {"application_name": "jobd"}
#: The settings of every session. They are set after the connect: a PgBouncer refuses them as startup parameters.
SESSION = {
    "search_path": "jobd",
    # A statement that takes this long is stuck, not slow. Who waits for a lock outlives a holder that died.
    "statement_timeout": "60s",
    "lock_timeout": "15s",
    # A node that lost its power or its network says nothing: its locks are free after this time, not after hours.
    # The tcp settings do nothing on a unix socket.
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15s",
    # The statements are written for one plan each: from the caller's array, row by row, through an index. It costs the
    # same with any number of rows in the table, and it takes row locks in the array's order, so batches cannot
    # deadlock. The planner must not choose another one because a table was empty when it planned.
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
}
SET_UP = "; ".join(f"SET {name} = '{value}'" for name, value in SESSION.items())
#: How often a statement that met a deadlock is run in all: Postgres undoes it whole, so that is safe.
DEADLOCK_TRIES = 5
#: Seconds for a new connection.
CONNECT_S = 10.0
#: Connections that others (migrations, psql, backups) need beside the pool.
RESERVE = 5

#: (setting, value that will not do, what to run)
UNSAFE = (
    ("fsync", "off", "an acknowledged job would not survive a power cut; set fsync = on in postgresql.conf"),
    ("full_page_writes", "off", "a torn page could lose jobs; set full_page_writes = on in postgresql.conf"),
    ("synchronous_commit", "off", "an acknowledged job could vanish; ALTER ROLE ... SET synchronous_commit = on"),
)
CHECKS = """
SELECT current_setting('server_version_num')::int / 10000 AS version,
       current_setting('max_connections')::int AS max_connections,
       current_setting('server_encoding') AS encoding,
       current_user AS role,
       current_database() AS database,
       to_regnamespace('jobd') IS NOT NULL AS has_schema,
       CASE WHEN to_regnamespace('jobd') IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege('jobd', 'CREATE, USAGE') END AS may_create
"""


class Database:
    """A pool that comes and goes with its server; its callers get `ServerDown` while it is away."""

    def __init__(self, url: str, pool_size: int) -> None:
        self.url = url
        self._pool_size = pool_size
        self.clock = Clock(self)
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    @property
    def pool(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise ServerDown("Postgres is not connected; try again in a moment")
        return self._pool

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with translated(self.url, strict=True):
            pool = await asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=self._pool_size,
                server_settings=APPLICATION,
                timeout=CONNECT_S,
                init=_set_up,
                reset=_leave_as_is,
            )
        self._pool = pool
        try:
            yield
        finally:
            self._pool = None
            pool.terminate()

    # -- a session: single statements, each on whichever connection is free --------------------------------------

    async def fetch(self, query: str, /, *args: object) -> list[asyncpg.Record]:
        return await self._run(lambda: self.pool.fetch(query, *args))

    async def fetchrow(self, query: str, /, *args: object) -> asyncpg.Record | None:
        return await self._run(lambda: self.pool.fetchrow(query, *args))

    async def fetchval(self, query: str, /, *args: object) -> object:
        return await self._run(lambda: self.pool.fetchval(query, *args))

    async def execute(self, query: str, /, *args: object) -> str:
        return await self._run(lambda: self.pool.execute(query, *args))

    async def _run(self, statement: Callable[[], Awaitable[T]]) -> T:
        """Run one statement. A deadlock undoes it whole, so it is run again rather than shown to the caller."""
        with translated(self.url):
            for _ in range(DEADLOCK_TRIES - 1):
                with contextlib.suppress(asyncpg.DeadlockDetectedError):
                    return await statement()
            return await statement()

    # -- one connection for several statements -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def connection(self, *, strict: bool = False) -> AsyncIterator[Connection]:
        """A connection of the pool. Its errors are asyncpg's inside of the block, and ours outside of it."""
        with translated(self.url, strict=strict):
            async with self.pool.acquire() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """The same in one transaction; a deadlock in it is for the caller to try again."""
        async with self.connection() as connection, connection.transaction():
            yield connection


async def connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A session beside the pool, with the same settings."""
    with translated(url, strict=True):
        connection = await asyncpg.connect(url, server_settings=APPLICATION, timeout=CONNECT_S)
        await connection.execute(SET_UP)
        return connection


async def _set_up(connection: AnyConnection) -> None:
    """Postgres says at the connect whether it is a standby: a pool that met one must not keep sessions there."""
    if getattr(connection.get_settings(), "in_hot_standby", "off") == "on":
        raise ServerDown("this is a read-only standby; point postgres.url at the primary")
    await connection.execute(SET_UP)


async def _leave_as_is(connection: AnyConnection) -> None:
    """No session state is changed after `_set_up`, so none is reset: that would be a round trip for every statement."""


async def check_writable(session: Session, url: str) -> None:
    """Raise `ServerDown` for a standby, whose writes would all fail."""
    if await session.fetchval("SELECT current_setting('transaction_read_only')::boolean"):
        raise ServerDown(f"postgres.url {masked_url(url)} is read-only (a standby?); point it at the primary")


async def check_server(connection: Connection, url: str, pool_size: int) -> None:
    """Refuse a Postgres that could lose jobs or that jobd may not use; each refusal names setting and remedy."""
    where = f"postgres.url {masked_url(url)}"
    await check_writable(connection, url)  # that may pass: a standby is promoted, a name is pointed at another server
    row = await connection.fetchrow(CHECKS)
    assert row is not None  # it selects from no table
    if row["version"] < MIN_VERSION:
        raise ServerRefused(f"{where}: Postgres {row['version']} is too old; {MIN_VERSION} or newer is needed")
    if row["encoding"] != "UTF8":
        raise ServerRefused(f"{where}: database {row['database']} has encoding {row['encoding']}; make one with UTF8")
    for setting, unsafe, remedy in UNSAFE:
        if await connection.fetchval("SELECT current_setting($1)", setting) == unsafe:
            raise ServerRefused(f"{where}: {setting} is {unsafe}: {remedy}")
    if not row["may_create"]:
        what = "schema jobd" if row["has_schema"] else f"database {row['database']}"
        raise ServerRefused(
            f"{where}: role {row['role']} may not create in {what}; as its owner: "
            f"GRANT CREATE{', USAGE' if row['has_schema'] else ''} ON {what.upper().split()[0]} "
            f'{what.split()[1]} TO "{row["role"]}"'
        )
    if pool_size + RESERVE > row["max_connections"]:
        raise ServerRefused(
            f"{where}: max_connections is {row['max_connections']}, too few for postgres.pool_size = {pool_size} "
            f"and {RESERVE} in reserve; raise the one or lower the other"
        )
