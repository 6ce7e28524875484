"""Reject: a person sends a ticket away that is not in progress. It is BLOCKED, and has to be approved again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_id
from jobd.store.postgres import fetch
from jobd.store.statements import statement
from jobd.tickets.machine import decide_reject
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Connection
    from jobd.wire import tickets as wire

REJECT_IF_WAITING = statement("reject_if_waiting", "jobd.tickets")


async def reject(
    connection: Connection,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    version: int | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Block a NEW, TODO or BLOCKED ticket; raises TicketRefused."""
    rows = await fetch(connection, REJECT_IF_WAITING, ticket_id, new_id(), by, why, version, now)
    if not rows:
        raise await why_not(connection, ticket_id, lambda ticket: decide_reject(ticket), version)
    return ticket_of(rows[0])
