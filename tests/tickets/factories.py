"""Tickets as tests write them, and the questions that they ask about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobd.config.model import Config, GateCommand, Queue, Task, Tickets
from jobd.tickets.create import create
from jobd.tickets.decide import decide
from jobd.tickets.edit import edit
from jobd.tickets.errors import TicketRefused
from jobd.tickets.read import read_ticket
from jobd.wire.tickets import CreateTicket, EditTicket, Ticket

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from uuid import UUID

    from jobd.store.postgres import Database

CONFIG = Config(
    queues={"default": Queue(slots=2)},
    tasks={"work": Task(run="mock", timeout_s=600), "other": Task(run="mock", timeout_s=30)},
    tickets=Tickets(gates={"agree": GateCommand(argv=("/bin/true",)), "object": GateCommand(argv=("/bin/false",))}),
)
_decode = msgspec.json.Decoder(CreateTicket).decode


def asked(**fields: Any) -> CreateTicket:
    return _decode(msgspec.json.encode({"title": "Count the cats", "task": "work", "payload": {"n": 1}, **fields}))


async def new_ticket(db: Database, *, created_by: str = "ann", config: Config = CONFIG, **fields: Any) -> Ticket:
    return await create(db.pool, asked(**fields), created_by=created_by, config=config)


async def todo_ticket(db: Database, **fields: Any) -> Ticket:
    ticket = await new_ticket(db, **fields)
    return await decide(db.pool, "APPROVE", ticket.ticket_id, by="bob", why="fine")


#: The way to each status, and the columns that have to change with it.
_STEPS = {
    "NEW": [],
    "TODO": ["status = 'TODO', approved_by = 'bob', todo_no = 1, todo_at = now()"],
}
_STEPS["BLOCKED"] = [*_STEPS["TODO"], "status = 'BLOCKED', blocked_reason = 'it failed'"]
_STEPS["IN_PROGRESS"] = [*_STEPS["TODO"], "status = 'IN_PROGRESS', ready_no = 1, step = 'RUN'"]
_STEPS["DONE"] = [*_STEPS["IN_PROGRESS"], "status = 'DONE', step = NULL"]


async def ticket_in(db: Database, status: str, edited_by: str | None = None, **fields: Any) -> Ticket:
    """A ticket as if it had come there; only its own row is made."""
    ticket = await new_ticket(db, **fields)
    if edited_by is not None:
        await edit(db.pool, ticket.ticket_id, EditTicket(title="Edited"), config=CONFIG, by=edited_by)
    for step in _STEPS[status]:
        await db.pool.execute(
            f"UPDATE tickets SET {step}, version = version + 1 WHERE ticket_id = $1", ticket.ticket_id
        )
    return await read_ticket(db.pool, ticket.ticket_id)


async def status_of(db: Database, ticket_id: UUID) -> str:
    return (await read_ticket(db.pool, ticket_id)).status


async def code_of(call: Awaitable[object]) -> str | None:
    """The code that a call is refused with."""
    try:
        await call
    except TicketRefused as refused:
        return refused.code
    return None


#: All that a refused call must leave as it was.
_TRACES = """
SELECT
    (SELECT string_agg(tickets::text, ';' ORDER BY ticket_id) FROM tickets),
    (SELECT count(*) FROM ticket_log), (SELECT count(*) FROM ticket_decisions), (SELECT count(*) FROM ticket_events)
"""


async def traces(db: Database) -> tuple[Any, ...]:
    row = await db.pool.fetchrow(_TRACES)
    assert row is not None
    return tuple(row)
