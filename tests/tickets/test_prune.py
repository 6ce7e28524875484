"""Prune: tickets that are DONE for long go with all that hangs on them, and never one that somebody needs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobd.store.ids import new_id
from jobd.tickets.edit import edit
from jobd.tickets.prune import prune_tickets
from jobd.tickets.read import read_ticket
from jobd.wire.tickets import EditTicket
from tests.tickets.factories import CONFIG, code_of, new_ticket, ticket_in
from tests.tickets.pruning import DAY_S, done, prune, rows_of
from tests.tickets.test_statements import plan, walk

if TYPE_CHECKING:
    from jobd.store.postgres import Database
    from tests.tickets.ticket_pollers import TicketPollers

UNFINISHED = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED")


# What goes


@pytest.mark.parametrize("status", [*UNFINISHED, "DONE"])
async def test_only_a_done_ticket_is_pruned(empty_db: Database, status: str) -> None:
    ticket = await ticket_in(empty_db, status)

    pruned = await prune(empty_db.pool)

    assert pruned.tickets == (status == "DONE")
    assert await code_of(read_ticket(empty_db.pool, ticket.ticket_id)) == ("gone_ticket" if status == "DONE" else None)


@pytest.mark.parametrize(("seconds", "pruned"), [(DAY_S, 0), (DAY_S + 0.001, 1)])
async def test_a_ticket_is_kept_for_the_whole_time(empty_db: Database, seconds: float, pruned: int) -> None:
    ticket = await ticket_in(empty_db, "DONE")
    now = ticket.updated_at + timedelta(seconds=seconds)

    assert (await prune_tickets(empty_db.pool, keep_s=DAY_S, now=now)).tickets == pruned


async def test_all_that_belongs_to_a_ticket_goes_with_it_and_nothing_else(pollers: TicketPollers) -> None:
    old = await done(pollers, gates=[{"type": "minimum", "pointer": "/score", "value": 0.5}])
    other = await done(pollers)
    kept, history = await rows_of(pollers.db, other.ticket_id), "SELECT count(*) FROM claim_history"
    trail = await pollers.trail(other.ticket_id)
    claims = await pollers.number(history)

    assert (await prune(pollers.db.pool, most=1)).tickets == 1

    assert set((await rows_of(pollers.db, old.ticket_id)).values()) == {0}
    assert await rows_of(pollers.db, other.ticket_id) == kept
    assert min(kept.values()) >= 1, "a table without a row of the ticket proves nothing"
    assert await pollers.trail(other.ticket_id) == trail
    resources = [trail.events[0].event_id, trail.workorders[0].work_order_id]
    assert await pollers.number(history) == claims // 2 > 0
    assert await pollers.number(f"{history} WHERE resource_id <> ALL ($1::uuid[])", resources) == 0


async def test_a_job_leaves_no_claims_in_the_history(pollers: TicketPollers) -> None:
    await done(pollers)

    assert await pollers.number("SELECT count(*) FROM attempts") == 1
    assert await pollers.number("SELECT count(*) FROM claim_history WHERE resource_type = 'JOB'") == 0


async def test_all_runs_of_a_reopened_ticket_go(pollers: TicketPollers) -> None:
    ticket = await done(pollers)
    await pollers.first.service.decide("REOPEN", ticket.ticket_id, by="bob")
    assert (await prune(pollers.db.pool)).tickets == 0
    await pollers.first.turn()
    await pollers.finish(ticket.ticket_id)
    await pollers.first.turn()
    assert len((await pollers.trail(ticket.ticket_id)).run_records) == 2

    assert (await prune(pollers.db.pool)).tickets == 1

    assert set((await rows_of(pollers.db, ticket.ticket_id)).values()) == {0}
    assert await pollers.number("SELECT count(*) FROM claim_history") == 0


async def test_a_decision_goes_no_sooner_than_its_ticket(pollers: TicketPollers) -> None:
    await done(pollers)

    with pytest.raises(asyncpg.PostgresError, match="deleted only with their ticket"):
        await pollers.db.pool.execute("DELETE FROM ticket_decisions")


# Batches


async def test_batches_of_bounded_size_reach_every_old_ticket(empty_db: Database) -> None:
    for _ in range(5):
        await ticket_in(empty_db, "DONE")
    await ticket_in(empty_db, "TODO")

    found = [await prune(empty_db.pool, most=2) for _ in range(4)]

    assert [(batch.tickets, batch.place is None) for batch in found] == [(2, False), (2, False), (1, True), (0, True)]
    assert await empty_db.pool.fetchval("SELECT count(*) FROM tickets") == 1


async def test_those_that_stay_do_not_stand_in_the_way(empty_db: Database) -> None:
    needed = [await ticket_in(empty_db, "DONE") for _ in range(3)]
    await new_ticket(empty_db, blocked_on=[str(ticket.ticket_id) for ticket in needed])
    await ticket_in(empty_db, "DONE")

    first = await prune(empty_db.pool, most=2)
    second = await prune(empty_db.pool, most=2, after=first.place)
    third = await prune(empty_db.pool, most=2, after=second.place)

    assert [batch.tickets for batch in (first, second, third)] == [0, 1, 0]
    assert third.place is None


async def test_the_statement_goes_through_its_indexes_and_no_others(empty_db: Database) -> None:
    await ticket_in(empty_db, "DONE")  # of a table known to be empty, any index is as good

    nodes = list(walk(await plan(empty_db, "prune_tickets")))

    assert {node["Index Name"] for node in nodes if "Index Name" in node} == {
        *("tickets_ended", "tickets_pkey", "tickets_blocked_on", "leases_pkey", "one_event_per_transition"),
        *("workorders_of", "ticket_log_pkey", "ticket_decisions_of", "pause_states_of", "run_records_of"),
        *("output_bundles_of", "context_snapshots_of", "claim_history_of"),
    }


# What is needed


@pytest.mark.parametrize("status", [*UNFINISHED, "DONE"])
async def test_a_ticket_is_kept_while_an_unfinished_one_waits_for_it(empty_db: Database, status: str) -> None:
    first, second = await ticket_in(empty_db, "DONE"), await ticket_in(empty_db, "DONE")
    await ticket_in(empty_db, status, blocked_on=[str(first.ticket_id), str(second.ticket_id)])

    pruned = await prune(empty_db.pool)

    assert pruned.tickets == (3 if status == "DONE" else 0)


LEASE = """
INSERT INTO leases (resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at)
SELECT {}, '{}', 'poller', gen_random_uuid(), now(), now(), now() FROM {}
"""


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ticket_events SET processed = false, reason = NULL, processed_at = NULL",
        LEASE.format("event_id", "EVENT", "ticket_events"),
        LEASE.format("work_order_id", "WORKORDER", "workorders"),
    ],
    ids=["open event", "held event", "held work order"],
)
async def test_a_ticket_is_kept_while_a_poller_is_at_it(pollers: TicketPollers, change: str) -> None:
    ticket = await done(pollers)
    await pollers.db.pool.execute(change)

    assert (await prune(pollers.db.pool)).tickets == 0

    assert await pollers.status(ticket.ticket_id) == "DONE"


async def test_a_ticket_whose_blocker_was_pruned_can_be_reopened_and_runs(pollers: TicketPollers) -> None:
    first = await done(pollers)
    second = await done(pollers, blocked_on=[str(first.ticket_id)])
    assert (await prune(pollers.db.pool, most=1)).tickets == 1

    await pollers.first.service.decide("REOPEN", second.ticket_id, by="bob")
    await pollers.first.turn()

    assert await code_of(pollers.first.service.read(first.ticket_id)) == "gone_ticket"
    assert await pollers.status(second.ticket_id) == "IN_PROGRESS"


async def test_a_ticket_that_waits_for_one_that_is_gone_goes_on(pollers: TicketPollers) -> None:
    first = await new_ticket(pollers.db)
    second = await pollers.scheduled(blocked_on=[str(first.ticket_id)])
    assert await pollers.status(second.ticket_id) == "BLOCKED"
    await pollers.db.pool.execute("DELETE FROM tickets WHERE ticket_id = $1", first.ticket_id)

    await pollers.first.readiness.run_once()

    assert await pollers.status(second.ticket_id) == "TODO"


async def test_a_ticket_whose_blocker_is_gone_can_be_edited(empty_db: Database) -> None:
    first = await ticket_in(empty_db, "DONE")
    second = await new_ticket(empty_db, blocked_on=[str(first.ticket_id)])
    await empty_db.pool.execute("DELETE FROM tickets WHERE ticket_id = $1", first.ticket_id)

    edited = await edit(empty_db.pool, second.ticket_id, EditTicket(title="Count the dogs"), config=CONFIG)
    another = edit(empty_db.pool, second.ticket_id, EditTicket(blocked_on=[first.ticket_id, new_id()]), config=CONFIG)

    assert (edited.title, edited.blocked_on) == ("Count the dogs", [first.ticket_id])
    assert await code_of(another) == "unknown_blocker"
