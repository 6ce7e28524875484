"""Prune while others reopen, prune or ask: nobody waits for long, and nobody finds half of a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.lifecycle.enqueue import IdempotencyKey
from jobd.lifecycle.prune import delete_jobs
from jobd.tickets.create_once import create_once
from jobd.tickets.decide import decide
from jobd.tickets.edit import edit
from jobd.tickets.prune import forget_gone_tickets
from jobd.tickets.read import read_ticket
from jobd.tickets.trail import read_trail
from jobd.wire.tickets import EditTicket
from tests.support.wait import wait_until_async
from tests.tickets.factories import CONFIG, asked, code_of, status_of, ticket_in
from tests.tickets.pruning import DAY_S, after_days, done, prune, rows_of
from tests.tickets.test_decisions import VERBS

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database
    from tests.tickets.ticket_pollers import TicketPollers


# At the same time


async def test_a_ticket_that_is_being_reopened_is_not_waited_for_and_stays(empty_db: Database) -> None:
    ticket, other = await ticket_in(empty_db, "DONE"), await ticket_in(empty_db, "DONE")
    async with empty_db.pool.acquire() as person, person.transaction():
        await decide(person, "REOPEN", ticket.ticket_id, by="bob")

        with anyio.fail_after(20):
            assert (await prune(empty_db.pool)).tickets == 1

    assert (await prune(empty_db.pool)).tickets == 0
    assert await status_of(empty_db, ticket.ticket_id) == "TODO"
    assert await code_of(read_ticket(empty_db.pool, other.ticket_id)) == "gone_ticket"


async def test_who_reopens_a_ticket_that_is_being_pruned_learns_that_it_is_gone(empty_db: Database) -> None:
    ticket = await ticket_in(empty_db, "DONE")
    codes: list[str | None] = []

    async def reopened() -> None:
        codes.append(await code_of(decide(empty_db.pool, "REOPEN", ticket.ticket_id, by="bob")))

    async def waits() -> bool:
        found: bool = await empty_db.pool.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query LIKE '%decide_if_allowed%')"
        )
        return found

    async with anyio.create_task_group() as tasks:
        async with empty_db.pool.acquire() as janitor, janitor.transaction():
            assert (await prune(janitor)).tickets == 1
            tasks.start_soon(reopened)
            await wait_until_async(waits)

    assert codes == ["gone_ticket"]
    assert await empty_db.pool.fetchval("SELECT count(*) FROM ticket_decisions") == 0


async def test_pruning_and_reopening_at_once_leave_each_ticket_whole_or_gone(pollers: TicketPollers) -> None:
    tickets = [await done(pollers) for _ in range(12)]
    codes: dict[UUID, str | None] = {}

    async def prune_all() -> None:
        async with pollers.db.pool.acquire() as janitor:
            for _ in range(6):
                async with janitor.transaction():  # a deadlock would be raised, and not tried again
                    await prune(janitor, most=3)

    async def reopen_one(ticket_id: UUID) -> None:
        async with pollers.db.pool.acquire() as person, person.transaction():
            codes[ticket_id] = await code_of(decide(person, "REOPEN", ticket_id, by="bob"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(prune_all)
        tasks.start_soon(prune_all)
        for ticket in reversed(tickets):
            tasks.start_soon(reopen_one, ticket.ticket_id)

    for ticket in tickets:
        left = await rows_of(pollers.db, ticket.ticket_id)
        if codes[ticket.ticket_id] is None:
            assert (await pollers.status(ticket.ticket_id), left["ticket_decisions"], left["run_records"]) == (
                "TODO",
                2,
                1,
            )
        else:
            assert (codes[ticket.ticket_id], set(left.values())) == ("gone_ticket", {0})


async def test_two_who_prune_at_once_skip_what_the_other_is_pruning(empty_db: Database) -> None:
    for _ in range(4):
        await ticket_in(empty_db, "DONE")
    async with empty_db.pool.acquire() as other, other.transaction():
        assert (await prune(other, most=3)).tickets == 3

        with anyio.fail_after(20):
            assert (await prune(empty_db.pool)).tickets == 1


# What is remembered


async def test_a_pruned_ticket_is_gone_and_not_unknown_for_a_while(empty_db: Database) -> None:
    ticket = await ticket_in(empty_db, "DONE")
    pool = empty_db.pool
    await prune(pool)

    calls = [read_trail(empty_db, ticket.ticket_id), edit(pool, ticket.ticket_id, EditTicket(title="x"), config=CONFIG)]
    calls += [decide(pool, kind, ticket.ticket_id, by="bob") for kind in VERBS.values()]
    assert {await code_of(call) for call in calls} == {"gone_ticket"}
    assert await forget_gone_tickets(pool, keep_gone_s=DAY_S, now=await after_days(pool, 3.9)) == 0
    assert await forget_gone_tickets(pool, keep_gone_s=DAY_S, now=await after_days(pool, 4.1)) == 1
    assert await code_of(read_ticket(pool, ticket.ticket_id)) == "unknown_ticket"


async def test_gone_tickets_are_forgotten_in_batches(empty_db: Database) -> None:
    await empty_db.pool.execute("INSERT INTO gone_tickets SELECT gen_random_uuid(), now() FROM generate_series(1, 5)")
    now = await after_days(empty_db.pool, 1)

    counts = [await forget_gone_tickets(empty_db.pool, keep_gone_s=1, most=2, now=now) for _ in range(4)]

    assert counts == [2, 2, 1, 0]


async def test_a_key_whose_ticket_is_gone_says_so_and_makes_no_other(empty_db: Database) -> None:
    key = IdempotencyKey(principal="ann", key="once", body_hash=b"b", life_s=DAY_S)
    made = await create_once(empty_db, asked(), key, created_by="ann", config=CONFIG)
    for step in ("TODO", "IN_PROGRESS", "DONE"):
        columns = {"TODO": "NULL, approved_by = 'bob'", "IN_PROGRESS": "'RUN'", "DONE": "NULL"}[step]
        await empty_db.pool.execute(f"UPDATE tickets SET status = '{step}', step = {columns}, version = version + 1")
    await prune(empty_db.pool)

    again = await code_of(create_once(empty_db, asked(), key, created_by="ann", config=CONFIG))

    assert again == "gone_ticket"
    assert await code_of(read_ticket(empty_db.pool, made.ticket_id)) == "gone_ticket"
    assert await empty_db.pool.fetchval("SELECT count(*) FROM tickets") == 0


async def test_a_job_is_not_deleted_before_its_ticket_has_its_outcome(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await pollers.finish(ticket.ticket_id)
    job_id = await pollers.job_of(ticket.ticket_id)

    early = await delete_jobs(pollers.db, [job_id])
    await pollers.first.runner.run_once()
    late = await delete_jobs(pollers.db, [job_id])

    assert (early.jobs, late.jobs) == (0, 1)
    assert (await pollers.trail(ticket.ticket_id)).output_bundles[0].outcome == "DONE"
