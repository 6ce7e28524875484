"""Find work: which of the pollers would find something to do, in one statement for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.session import Session

FIND_WORK = statement("find_work", "jobd.tickets.pollers")


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Whether each poller has something to do."""

    readiness: bool
    scheduler: bool
    runner: bool
    gate: bool


async def find_work(connection: Session) -> Work:
    (row,) = await connection.fetch(FIND_WORK)
    return Work(**{name: row[name] for name in Work.__struct_fields__})
