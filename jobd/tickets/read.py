"""Read: tickets by id and in pages (keyset pagination). The cost does not grow with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobd.store.statements import statement
from jobd.tickets.errors import TicketRefused, gone_ticket, refused, unknown_ticket
from jobd.tickets.machine import Moved, Refused, TicketStatus, TicketView, decide_version
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    import asyncpg

    from jobd.store.session import Session

READ_TICKET = statement("read_ticket", "jobd.tickets")
IS_GONE_TICKET = statement("is_gone_ticket", "jobd.tickets")
LIST_TICKETS = statement("list_tickets", "jobd.tickets")
LIST_TICKETS_IN_STATUS = statement("list_tickets_in_status", "jobd.tickets")

#: Most rows that are read for one page; a filter that few rows fit gives short pages, never slow ones.
STRETCH = 5_000

_decode_gates = msgspec.json.Decoder(list[wire.Gate]).decode
#: Columns that hold JSON text, with their decoders; other columns are taken as they are.
_FROM_JSON: dict[str, Any] = {
    "acceptance_criteria": msgspec.json.decode,
    "payload": lambda text: msgspec.Raw(text.encode()),
    "data": lambda text: msgspec.Raw(text.encode()),
    "gates": _decode_gates,
    "gate_results": msgspec.json.Decoder(list[wire.GateResult]).decode,
    "output": msgspec.json.decode,
    "error": msgspec.json.decode,
}


def struct_of(struct: type[Any], row: asyncpg.Record) -> Any:
    """A row as its Struct; columns that the Struct does not have are left out."""
    values: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = row[name]
        values[name] = _FROM_JSON[name](value) if name in _FROM_JSON and value is not None else value
    return struct(**values)


def ticket_of(row: asyncpg.Record) -> wire.Ticket:
    ticket: wire.Ticket = struct_of(wire.Ticket, row)
    return ticket


def view_of(ticket: wire.Ticket) -> TicketView:
    """The fields of a ticket that the machine reads."""
    return TicketView(
        ticket_id=ticket.ticket_id,
        status=TicketStatus(ticket.status),
        created_by=ticket.created_by,
        edited_by=ticket.edited_by,
        approved_by=ticket.approved_by,
        step=ticket.step,
        run_count=ticket.run_count,
        max_runs=ticket.max_runs,
        version=ticket.version,
    )


async def read_ticket(connection: Session, ticket_id: UUID) -> wire.Ticket:
    """Raises TicketRefused (unknown_ticket, gone_ticket)."""
    rows = await connection.fetch(READ_TICKET, ticket_id)
    if not rows:
        is_gone = await connection.fetch(IS_GONE_TICKET, ticket_id)
        raise gone_ticket(ticket_id) if is_gone else unknown_ticket(ticket_id)
    return ticket_of(rows[0])


async def list_tickets(
    connection: Session,
    *,
    most: int = 50,
    before: UUID | None = None,
    status: str | None = None,
    task: str | None = None,
    created_by: str | None = None,
    stretch: int = STRETCH,
) -> wire.TicketPage:
    """A page of tickets, newest first. A short or empty page need not be the last one: only `next` None is."""
    limit = most if task is None and created_by is None else stretch
    if status is None:
        rows = await connection.fetch(LIST_TICKETS, before, limit, task, created_by)
    else:
        rows = await connection.fetch(LIST_TICKETS_IN_STATUS, before, limit, task, created_by, status)
    fitting = [row for row in rows if row["fits"]][:most]
    if len(fitting) == most:
        end = fitting[-1]["ticket_id"]
    else:
        end = rows[-1]["ticket_id"] if rows else None
    return wire.TicketPage([ticket_of(row) for row in fitting], end)


async def why_not(
    connection: Session,
    ticket_id: UUID,
    decide: Callable[[TicketView], Moved | Refused],
    version: int | None = None,
) -> TicketRefused:
    """Why a statement has changed nothing, as the machine explains it."""
    ticket = view_of(await read_ticket(connection, ticket_id))
    decision = decide(ticket)
    if isinstance(decision, Moved):
        decision = decide_version(ticket, version) or decision
    if isinstance(decision, Refused):
        return refused(decision)
    return TicketRefused("illegal_transition", f"ticket {ticket_id} was changed by another just now; look at it again")
