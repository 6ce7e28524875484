"""Unblock: a person sets a BLOCKED ticket going again; one that was rejected has to be approved anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_id
from jobd.store.postgres import fetch
from jobd.store.statements import statement
from jobd.tickets.machine import decide_unblock
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Connection
    from jobd.wire import tickets as wire

UNBLOCK_IF_BLOCKED = statement("unblock_if_blocked", "jobd.tickets")


async def unblock(
    connection: Connection,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    version: int | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Let a BLOCKED ticket become TODO, or NEW if it was rejected; raises TicketRefused."""
    rows = await fetch(connection, UNBLOCK_IF_BLOCKED, ticket_id, new_id(), by, why, version, now)
    if not rows:
        raise await why_not(connection, ticket_id, lambda ticket: decide_unblock(ticket), version)
    return ticket_of(rows[0])
