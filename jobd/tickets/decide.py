"""Decide: what a person says about a ticket. Nothing else approves, rejects, unblocks, reopens or signs off a ticket.

One statement moves the ticket from wherever the decision applies. What it refuses is explained by the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobd.store.ids import new_id
from jobd.store.statements import statement
from jobd.tickets.machine import decide_approve, decide_reject, decide_reopen, decide_sign_off, decide_unblock
from jobd.tickets.read import ticket_of, why_not

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from jobd.store.session import Session
    from jobd.tickets.machine import Moved, Refused, TicketView
    from jobd.wire import tickets as wire

DECIDE_IF_ALLOWED = statement("decide_if_allowed", "jobd.tickets")

#: Each kind of decision, and the machine's answer to it: for this ticket, by this person, with or without four_eyes.
DECISIONS: Final[dict[wire.DecisionKind, Callable[[TicketView, str, bool], Moved | Refused]]] = {
    "APPROVE": lambda ticket, by, four_eyes: decide_approve(ticket, by, four_eyes=four_eyes),
    "REJECT": lambda ticket, by, four_eyes: decide_reject(ticket),
    "UNBLOCK": lambda ticket, by, four_eyes: decide_unblock(ticket),
    "REOPEN": lambda ticket, by, four_eyes: decide_reopen(ticket, by, four_eyes=four_eyes),
    "SIGN_OFF": lambda ticket, by, four_eyes: decide_sign_off(ticket, by, four_eyes=four_eyes, accept=True),
    "REFUSE": lambda ticket, by, four_eyes: decide_sign_off(ticket, by, four_eyes=four_eyes, accept=False),
}


async def decide(
    connection: Session,
    kind: wire.DecisionKind,
    ticket_id: UUID,
    *,
    by: str,
    why: str = "",
    four_eyes: bool = False,
    version: int | None = None,
) -> wire.Ticket:
    """Move the ticket as this kind of decision does, and keep the decision; raises TicketRefused."""
    rows = await connection.fetch(DECIDE_IF_ALLOWED, ticket_id, new_id(), kind, by, why, four_eyes, version)
    if not rows:
        raise await why_not(connection, ticket_id, lambda ticket: DECISIONS[kind](ticket, by, four_eyes), version)
    return ticket_of(rows[0])
