"""Edit: a ticket that is still NEW, as a person wants it instead. What they do not mention stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.store.statements import statement
from jobd.tickets.create import refuse_unknown_blockers
from jobd.tickets.draft import Draft, budget_of, check_draft
from jobd.tickets.errors import TicketRefused, refused
from jobd.tickets.machine import Refused, decide_edit
from jobd.tickets.read import read_ticket, ticket_of, view_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.store.session import Session
    from jobd.wire import tickets as wire

EDIT_IF_NEW = statement("edit_if_new", "jobd.tickets")
WAITS_FOR_ITSELF = statement("waits_for_itself", "jobd.tickets")


async def edit(
    connection: Session,
    ticket_id: UUID,
    asked: wire.EditTicket,
    *,
    config: Config,
    by: str | None = None,
    now: datetime | None = None,
) -> wire.Ticket:
    """Change a NEW ticket; raises TicketRefused. `by` None: nobody knows who does."""
    while True:
        ticket = await read_ticket(connection, ticket_id)
        decision = decide_edit(view_of(ticket))
        if isinstance(decision, Refused):
            raise refused(decision)
        draft = _merged(ticket, asked, config)
        check_draft(draft, config)
        await _check_blockers(connection, ticket, draft.blocked_on)
        rows = await connection.fetch(EDIT_IF_NEW, ticket_id, *draft.columns(), ticket.version, by, now)
        if rows:  # else somebody was faster, and it is looked at again
            return ticket_of(rows[0])


def _merged(ticket: wire.Ticket, asked: wire.EditTicket, config: Config) -> Draft:
    def either(new: object, old: object) -> object:
        return old if new is UNSET else new

    values = {name: either(getattr(asked, name), getattr(ticket, name)) for name in Draft.__struct_fields__}
    values["payload"] = bytes(values["payload"]).decode()  # type: ignore[call-overload]  # Raw, of either
    if asked.task is not UNSET and asked.budget_ms is UNSET and ticket.budget_ms == _usual(ticket.task, config):
        values["budget_ms"] = budget_of(asked.task, config)
    return Draft(**values)  # type: ignore[arg-type]  # each of its own type


def _usual(task: str, config: Config) -> int | None:
    return budget_of(task, config) if task in config.tasks else None


async def _check_blockers(connection: Session, ticket: wire.Ticket, blocked_on: Sequence[UUID]) -> None:
    """Those that the ticket had before were there once; retention may have deleted them since."""
    if not blocked_on:
        return
    await refuse_unknown_blockers(connection, [one for one in blocked_on if one not in ticket.blocked_on])
    (row,) = await connection.fetch(WAITS_FOR_ITSELF, ticket.ticket_id, blocked_on)
    if row["is_so"]:
        raise TicketRefused("blocker_cycle", f"blocked_on would make ticket {ticket.ticket_id} wait for itself")
