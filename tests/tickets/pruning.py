"""Retention for tickets as tests try it: time that has passed, tickets that went the whole way, and what they left."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jobd.tickets.prune import prune_tickets

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.tickets.prune import PrunedTickets
    from jobd.wire.tickets import Ticket
    from tests.tickets.ticket_pollers import TicketPollers

DAY_S = 86_400.0


async def after_days(connection: Session, days: float) -> datetime:
    now = await connection.fetchval("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now + timedelta(days=days)


async def prune(connection: Session, **more: Any) -> PrunedTickets:
    """As if all that is there were three days older."""
    return await prune_tickets(connection, keep_s=DAY_S, now=await after_days(connection, 3), **more)


async def done(pollers: TicketPollers, **fields: Any) -> Ticket:
    """A ticket that went the whole way."""
    ticket = await pollers.executed(**fields)
    await pollers.first.gate.run_once()
    assert await pollers.status(ticket.ticket_id) == "DONE"
    return ticket


async def tables_of_tickets(db: Database) -> list[str]:
    rows = await db.pool.fetch(
        "SELECT table_name FROM information_schema.columns"
        " WHERE table_schema = 'jobd' AND column_name = 'ticket_id' AND table_name <> 'gone_tickets'"
    )
    return [row["table_name"] for row in rows]


async def rows_of(db: Database, ticket_id: UUID) -> dict[str, int]:
    """How many rows of each table belong to the ticket."""
    return {
        table: await db.pool.fetchval(f"SELECT count(*) FROM {table} WHERE ticket_id = $1", ticket_id)
        for table in await tables_of_tickets(db)
    }
