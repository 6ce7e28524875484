"""What the tables themselves refuse, whatever a statement may try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobd.tickets.machine import TRANSITIONS, TicketStatus
from tests.tickets.factories import new_ticket, status_of, ticket_in

if TYPE_CHECKING:
    from jobd.store.postgres import Database

#: A NEW ticket can be edited and one that is TODO or in progress can take a step; others only move.
LEGAL = {(row.source, row.target) for row in TRANSITIONS if row.source is not None}
PAIRS = [(source, target) for source in TicketStatus for target in TicketStatus]

#: Columns that have to change with the status, for the row to make sense in it.
FITTING = {
    TicketStatus.NEW: "approved_by = NULL, step = NULL, blocked_reason = NULL",
    TicketStatus.TODO: "approved_by = 'bob', step = NULL, blocked_reason = NULL",
    TicketStatus.IN_PROGRESS: "approved_by = 'bob', step = 'RUN', blocked_reason = NULL",
    TicketStatus.BLOCKED: "approved_by = 'bob', step = NULL, blocked_reason = 'x'",
    TicketStatus.DONE: "approved_by = 'bob', step = NULL, blocked_reason = NULL",
}


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
async def test_exactly_the_transitions_of_the_machine_are_legal(
    db: Database, source: TicketStatus, target: TicketStatus
) -> None:
    ticket = await ticket_in(db, source.value)
    update = f"UPDATE tickets SET status = $2, {FITTING[target]}, version = version + 1 WHERE ticket_id = $1"

    if (source, target) in LEGAL:
        await db.pool.execute(update, ticket.ticket_id, target.value)
        assert await status_of(db, ticket.ticket_id) == target.value
    else:
        with pytest.raises(asyncpg.PostgresError, match=f"cannot go from {source.value} to {target.value}"):
            await db.pool.execute(update, ticket.ticket_id, target.value)
        assert await status_of(db, ticket.ticket_id) == source.value


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("status = 'READY', approved_by = 'bob'", "tickets_status_check"),
        ("status = 'TODO'", "people_approve"),
        ("step = 'RUN'", "in_progress_has_a_step"),
        ("blocked_reason = 'x'", "blocked_has_a_reason"),
        ("waits_for_tickets = true", "only_blocked_waits"),
        ("ready_no = 1", "ready_was_todo"),
        ("budget_ms = 0", "tickets_budget_ms_check"),
        ("max_runs = 0", "tickets_max_runs_check"),
        ("title = ''", "tickets_title_check"),
        ("payload = '[]'", "json_object_check"),
    ],
)
async def test_a_ticket_that_makes_no_sense_is_refused(db: Database, change: str, constraint: str) -> None:
    ticket = await new_ticket(db)

    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await db.pool.execute(
            f"UPDATE tickets SET {change}, version = version + 1 WHERE ticket_id = $1", ticket.ticket_id
        )


async def test_no_change_of_a_ticket_goes_without_a_line_in_its_log(db: Database) -> None:
    """A change that does not count the version up finds its line taken."""
    ticket = await new_ticket(db)

    with pytest.raises(asyncpg.UniqueViolationError):
        await db.pool.execute("UPDATE tickets SET title = 'x' WHERE ticket_id = $1", ticket.ticket_id)


async def test_an_event_is_told_once_for_each_time(db: Database) -> None:
    insert = (
        "INSERT INTO ticket_events (event_id, ticket_id, todo_no, created_at) VALUES (gen_random_uuid(), $1, 1, now())"
    )
    ticket = await new_ticket(db)
    await db.pool.execute(insert, ticket.ticket_id)

    with pytest.raises(asyncpg.UniqueViolationError, match="one_event_per_transition"):
        await db.pool.execute(insert, ticket.ticket_id)
