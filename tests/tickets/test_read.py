from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from jobd.tickets.errors import TicketRefused
from jobd.tickets.read import list_tickets, read_ticket
from jobd.tickets.trail import read_trail
from tests.tickets.factories import new_ticket, ticket_in

if TYPE_CHECKING:
    from jobd.store.postgres import Database


async def test_pages_go_from_the_newest_to_the_oldest_without_gap_or_double(empty_db: Database) -> None:
    made = [(await new_ticket(empty_db)).ticket_id for _ in range(5)]
    seen: list[UUID] = []

    before: UUID | None = None
    while True:
        page = await list_tickets(empty_db.pool, most=2, before=before)
        seen += [ticket.ticket_id for ticket in page.tickets]
        before = page.next
        if before is None:
            break

    assert seen == made[::-1]


async def test_a_page_has_only_what_fits_every_filter(empty_db: Database) -> None:
    done = await ticket_in(empty_db, "DONE", created_by="ann")
    other = await ticket_in(empty_db, "DONE", created_by="zoe", task="other")
    await new_ticket(empty_db, created_by="zoe")

    by_status = await list_tickets(empty_db.pool, status="DONE")
    by_author = await list_tickets(empty_db.pool, status="DONE", created_by="zoe")
    by_task = await list_tickets(empty_db.pool, task="other")

    assert [ticket.ticket_id for ticket in by_status.tickets] == [other.ticket_id, done.ticket_id]
    assert [ticket.ticket_id for ticket in by_author.tickets] == [other.ticket_id]
    assert [ticket.ticket_id for ticket in by_task.tickets] == [other.ticket_id]


async def test_a_rare_ticket_is_found_page_by_page_and_no_page_looks_at_everything(empty_db: Database) -> None:
    rare = await new_ticket(empty_db, created_by="rare")
    for _ in range(4):
        await new_ticket(empty_db)

    first = await list_tickets(empty_db.pool, created_by="rare", stretch=3)
    second = await list_tickets(empty_db.pool, created_by="rare", stretch=3, before=first.next)

    assert (first.tickets, first.next is not None) == ([], True)
    assert [ticket.ticket_id for ticket in second.tickets] == [rare.ticket_id]


async def test_an_unknown_ticket_is_told(db: Database) -> None:
    with pytest.raises(TicketRefused, match="there is no ticket 00000000-0000-0000-0000-000000000001") as refused:
        await read_ticket(db.pool, UUID(int=1))
    assert refused.value.code == "unknown_ticket"
    with pytest.raises(TicketRefused):
        await read_trail(db, UUID(int=1))


async def test_the_trail_of_a_new_ticket_is_empty_lists(db: Database) -> None:
    ticket = await new_ticket(db)

    trail = await read_trail(db, ticket.ticket_id)

    assert trail.ticket == ticket
    assert not any((trail.events, trail.workorders, trail.run_records, trail.decisions, trail.pause_states))
