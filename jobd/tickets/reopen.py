"""Reopen: a person lets a DONE ticket run again, which is as good as an approval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_id
from jobd.store.postgres import fetch
from jobd.store.statements import statement
from jobd.tickets.machine import decide_reopen
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Connection
    from jobd.wire import tickets as wire

REOPEN_IF_DONE = statement("reopen_if_done", "jobd.tickets")


async def reopen(
    connection: Connection,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    four_eyes: bool = False,
    version: int | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Let a DONE ticket become TODO; raises TicketRefused."""
    rows = await fetch(connection, REOPEN_IF_DONE, ticket_id, new_id(), by, why, four_eyes, version, now)
    if not rows:
        raise await why_not(
            connection, ticket_id, lambda ticket: decide_reopen(ticket, by, four_eyes=four_eyes), version
        )
    return ticket_of(rows[0])
