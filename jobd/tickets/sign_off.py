"""Sign off: a person says what they think of an output that waits for them. The gate poller goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_id
from jobd.store.postgres import fetch
from jobd.store.statements import statement
from jobd.tickets.machine import decide_sign_off
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Connection
    from jobd.wire import tickets as wire

SIGN_OFF_IF_AWAITED = statement("sign_off_if_awaited", "jobd.tickets")


async def sign_off(
    connection: Connection,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    accept: bool = True,
    four_eyes: bool = False,
    version: int | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Answer the sign-off that a ticket waits for; raises TicketRefused."""
    rows = await fetch(connection, SIGN_OFF_IF_AWAITED, ticket_id, new_id(), by, why, accept, four_eyes, version, now)
    if not rows:
        raise await why_not(
            connection,
            ticket_id,
            lambda ticket: decide_sign_off(ticket, by, four_eyes=four_eyes, accept=accept),
            version,
        )
    return ticket_of(rows[0])
