"""Trail: the whole history of a ticket, read in one snapshot; and its log, line by line, for its followers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.store.statements import statement
from jobd.tickets.read import read_ticket, struct_of
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Session

READ_EVENTS = statement("read_events", "jobd.tickets")
READ_SNAPSHOTS = statement("read_snapshots", "jobd.tickets")
READ_WORKORDERS = statement("read_workorders", "jobd.tickets")
READ_BUNDLES = statement("read_bundles", "jobd.tickets")
READ_RUN_RECORDS = statement("read_run_records", "jobd.tickets")
READ_PAUSES = statement("read_pauses", "jobd.tickets")
READ_DECISIONS = statement("read_decisions", "jobd.tickets")
READ_LOG = statement("read_log", "jobd.tickets")

#: Most lines of a ticket's trail in one answer.
MAX_LINES = 500


async def read_trail(database: Database, ticket_id: UUID) -> wire.Trail:
    """Raises TicketRefused (unknown_ticket, gone_ticket)."""
    async with database.connection() as connection:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return wire.Trail(
                ticket=await read_ticket(connection, ticket_id),
                events=await _all(connection, READ_EVENTS, wire.Event, ticket_id),
                context_snapshots=await _all(connection, READ_SNAPSHOTS, wire.ContextSnapshot, ticket_id),
                workorders=await _all(connection, READ_WORKORDERS, wire.Workorder, ticket_id),
                output_bundles=await _all(connection, READ_BUNDLES, wire.OutputBundle, ticket_id),
                run_records=await _all(connection, READ_RUN_RECORDS, wire.RunRecord, ticket_id),
                pause_states=await _all(connection, READ_PAUSES, wire.PauseState, ticket_id),
                decisions=await _all(connection, READ_DECISIONS, wire.Decision, ticket_id),
            )


async def _all(connection: Session, text: str, struct: type[Any], ticket_id: UUID) -> list[Any]:
    return [struct_of(struct, row) for row in await connection.fetch(text, ticket_id)]


async def read_log(
    connection: Session, after: Mapping[UUID, int], most: int = MAX_LINES
) -> dict[UUID, list[wire.LogLine]]:
    """The lines after the given version of each ticket, in order, at most `most` of each; 0: from the beginning."""
    lines: dict[UUID, list[wire.LogLine]] = {ticket_id: [] for ticket_id in after}
    for row in await connection.fetch(READ_LOG, list(after), list(after.values()), most):
        lines[row["ticket_id"]].append(struct_of(wire.LogLine, row))
    return lines
