"""Approve: a person has validated a NEW ticket, and lets it become TODO. Nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.ids import new_id
from jobd.store.postgres import fetch
from jobd.store.statements import statement
from jobd.tickets.machine import decide_approve
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Connection
    from jobd.wire import tickets as wire

APPROVE_IF_NEW = statement("approve_if_new", "jobd.tickets")


async def approve(
    connection: Connection,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    four_eyes: bool = False,
    version: int | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Let a NEW ticket become TODO; raises TicketRefused."""
    rows = await fetch(connection, APPROVE_IF_NEW, ticket_id, new_id(), by, why, four_eyes, version, now)
    if not rows:
        raise await why_not(
            connection, ticket_id, lambda ticket: decide_approve(ticket, by, four_eyes=four_eyes), version
        )
    return ticket_of(rows[0])
