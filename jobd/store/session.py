"""What a verb needs of Postgres, as types: asyncpg's pool and connections fit, and so does `Database`.

A `Session` runs single statements, each perhaps on another connection. A `Connection` is one and the same connection,
so it can hold a transaction; only verbs of several statements that must commit together ask for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from asyncpg import Record as Row


class Session(Protocol):
    async def fetch(self, query: str, /, *args: object) -> list[Row]: ...

    async def fetchrow(self, query: str, /, *args: object) -> Row | None: ...

    async def fetchval(self, query: str, /, *args: object) -> object: ...

    async def execute(self, query: str, /, *args: object) -> str: ...


class Connection(Session, Protocol):
    def transaction(
        self, *, isolation: Literal["repeatable_read"] | None = ..., readonly: bool = ...
    ) -> AbstractAsyncContextManager[object]:
        """A transaction, or a savepoint inside of one."""
        ...


#: Called in the transaction of a change, before it commits, with the number of rows that changed: to record it there.
BeforeCommit: TypeAlias = "Callable[[Session, int], Awaitable[None]]"
