"""Create: a ticket as a person wrote it. It is NEW, and nothing happens to it until a person approves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.store.ids import new_id
from jobd.store.statements import statement
from jobd.tickets.draft import Draft, budget_of, check_draft
from jobd.tickets.errors import TicketRefused
from jobd.tickets.read import ticket_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.store.session import Session
    from jobd.wire import tickets as wire

CREATE_TICKET = statement("create_ticket", "jobd.tickets")
UNKNOWN_BLOCKERS = statement("unknown_blockers", "jobd.tickets")


async def create(
    connection: Session,
    asked: wire.CreateTicket,
    *,
    created_by: str,
    config: Config,
    ticket_id: UUID | None = None,
) -> wire.Ticket:
    """Write a ticket; raises TicketRefused."""
    draft = Draft(
        title=asked.title,
        acceptance_criteria=asked.acceptance_criteria,
        task=asked.task,
        payload=bytes(asked.payload).decode(),
        gates=asked.gates,
        blocked_on=list(dict.fromkeys(asked.blocked_on)),
        budget_ms=budget_of(asked.task, config) if asked.budget_ms is UNSET else asked.budget_ms,
        max_runs=asked.max_runs,
        repo_ref=asked.repo_ref,
        base_branch=asked.base_branch,
    )
    check_draft(draft, config)
    rows = await connection.fetch(CREATE_TICKET, ticket_id or new_id(), *draft.columns(), created_by)
    if not rows:
        await refuse_unknown_blockers(connection, draft.blocked_on)
    return ticket_of(rows[0])


async def refuse_unknown_blockers(connection: Session, blocked_on: Sequence[UUID]) -> None:
    unknown = [row["ticket_id"] for row in await connection.fetch(UNKNOWN_BLOCKERS, blocked_on)]
    if unknown:
        raise TicketRefused(
            "unknown_blocker", f"blocked_on: there is no ticket {unknown[0]}; leave it out if it was deleted"
        )
