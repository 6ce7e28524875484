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
) -> wire.Ticket:
    """Change a NEW ticket; raises TicketRefused. `by` None: the editor is not known."""
    while True:
        ticket = await read_ticket(connection, ticket_id)
        decision = decide_edit(view_of(ticket))
        if isinstance(decision, Refused):
            raise refused(decision)
        draft = _merged(ticket, asked, config)
        check_draft(draft, config)
        await _check_blockers(connection, ticket, draft.blocked_on)
        rows = await connection.fetch(EDIT_IF_NEW, ticket_id, *draft.columns(), ticket.version, by)
        if rows:  # no row: the ticket was changed since it was read, so read it again
            return ticket_of(rows[0])


def _merged(ticket: wire.Ticket, asked: wire.EditTicket, config: Config) -> Draft:
    def either(new: object, old: object) -> object:
        return old if new is UNSET else new

    values = {name: either(getattr(asked, name), getattr(ticket, name)) for name in Draft.__struct_fields__}
    values["payload"] = bytes(values["payload"]).decode()  # type: ignore[call-overload]  # Raw, of either
    had_default = ticket.budget_ms == _default_budget(ticket.task, config)
    if asked.task is not UNSET and asked.budget_ms is UNSET and had_default:
        values["budget_ms"] = budget_of(asked.task, config)
    return Draft(**values)  # type: ignore[arg-type]  # each of its own type


def _default_budget(task: str, config: Config) -> int | None:
    return budget_of(task, config) if task in config.tasks else None


async def _check_blockers(connection: Session, ticket: wire.Ticket, blocked_on: Sequence[UUID]) -> None:
    """Check the new blockers only: those that the ticket had before may have been deleted by retention since."""
    if not blocked_on:
        return
    await refuse_unknown_blockers(connection, [blocker for blocker in blocked_on if blocker not in ticket.blocked_on])
    (row,) = await connection.fetch(WAITS_FOR_ITSELF, ticket.ticket_id, blocked_on)
    if row["is_so"]:
        raise TicketRefused("blocker_cycle", f"blocked_on would make ticket {ticket.ticket_id} wait for itself")
