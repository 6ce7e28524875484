"""Mark ready: one TICKET_READY event for every time that a ticket became TODO, however many nodes run this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.store.ids import new_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.session import Session

MARK_READY = statement("mark_ready", "jobd.tickets.pollers")


class Readied(msgspec.Struct, frozen=True, kw_only=True):
    #: Tickets that got their TICKET_READY event.
    ready: int
    #: Tickets that waited for others, which are all DONE now, and are TODO again.
    returned: int


async def mark_ready(connection: Session, *, most: int) -> Readied:
    (row,) = await connection.fetch(MARK_READY, most, new_ids(most))
    return Readied(ready=row["ready"], returned=row["returned"])
