"""The protocol of the polling workers, point by point: claims, idempotency, coordination, and the human boundary."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import asyncpg
import jsonschema_rs
import msgspec
import pytest

from jobd.config.model import GateCommand, Leases, Tickets
from jobd.lifecycle.lease import LeaseProof, acquire, claim_record_schema, renew
from jobd.store.leader import OwnerNames
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from jobd.tickets.pollers.claims import ClaimKeeper, claim_heartbeat_s, claim_ttl_s
from jobd.tickets.pollers.judge import find_executed_workorders, read_for_judge, settle, write_settled
from jobd.tickets.pollers.run import Bundle, execute, find_open_workorders
from jobd.tickets.pollers.schedule import find_ready_events, schedule
from tests.support.factories import all_rows, truncate
from tests.support.wait import wait_until_async
from tests.tickets.factories import CONFIG, new_ticket, todo_ticket
from tests.tickets.ticket_pollers import TicketPollers, migrated, ticket_pollers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from uuid import UUID

    from jobd.lifecycle.lease import LeaseRecord, ResourceType

TTL_S = 60.0


@pytest.fixture(scope="module")
def url(shared_postgres: str) -> str:
    return anyio.run(migrated, shared_postgres)


@pytest.fixture(scope="module")
async def pool(url: str) -> AsyncIterator[Database]:
    database = Database(url, 8)
    async with database.opened():
        yield database


@pytest.fixture
async def db(pool: Database) -> Database:
    """With nothing in it."""
    await truncate(pool.pool)
    return pool


@pytest.fixture
async def pollers(db: Database, folder: Path) -> AsyncIterator[TicketPollers]:
    async with ticket_pollers(db, folder) as opened:
        yield opened


async def take(pollers: TicketPollers, kind: ResourceType, ids: list[UUID], owner: str = "other") -> list[LeaseRecord]:
    """Claim for another worker, which then does nothing."""
    records = await acquire(pollers.db.pool, kind, ids, owner_id=owner, ttl_s=TTL_S)
    return [record for record in records if record is not None]


async def ready_event(pollers: TicketPollers, **fields: Any) -> UUID:
    ticket = await pollers.ready(**fields)
    return (await pollers.trail(ticket.ticket_id)).events[-1].event_id


async def everything(pollers: TicketPollers) -> dict[str, list[str]]:
    """All that is stored but for the claims themselves."""
    rows = await all_rows(pollers.db)
    return {name: rows[name] for name in rows if name not in ("leases", "claim_history")}


async def reason_of(pollers: TicketPollers, event_id: UUID) -> str | None:
    reason: str | None = await pollers.db.pool.fetchval(
        "SELECT reason FROM ticket_events WHERE event_id = $1", event_id
    )
    return reason


# -- required claim fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["EVENT", "WORKORDER"])
async def test_a_claim_record_has_the_required_fields_and_fits_its_schema(
    pollers: TicketPollers, kind: ResourceType
) -> None:
    (record,) = await take(pollers, kind, [uuid4()], owner="worker-1")

    public = msgspec.json.decode(msgspec.json.encode(record.public()))

    jsonschema_rs.validate(claim_record_schema(), public)
    assert set(public) == {
        *("resource_type", "resource_id", "owner_id"),
        *("lease_expires_at", "heartbeat_at", "claim_version"),
    }
    assert (public["resource_type"], public["owner_id"], public["claim_version"]) == (kind, "worker-1", 1)
    assert public["lease_expires_at"].endswith("Z")


async def test_the_pollers_of_two_nodes_have_different_owner_ids(pollers: TicketPollers) -> None:
    owners = [
        ClaimKeeper(pollers.db, "EVENT", OwnerNames(node).of(poller), lambda: CONFIG)
        for node in ("one", "two")
        for poller in ("scheduler", "runner", "gate")
    ]
    records = [(await claims.acquire([uuid4()]))[0].record for claims in owners]

    assert len({record.owner_id for record in records}) == 6


# -- claim acquisition -------------------------------------------------------------------------------------------------


async def test_candidates_are_read_oldest_first(pollers: TicketPollers) -> None:
    events = [await ready_event(pollers) for _ in range(3)]
    await pollers.db.pool.execute(
        "UPDATE ticket_events SET created_at = created_at - interval '1 hour' WHERE event_id = $1", events[1]
    )

    found = await find_ready_events(pollers.db.pool, most=10)

    assert found == [events[1], events[0], events[2]]


async def test_of_many_who_claim_at_once_one_succeeds(pollers: TicketPollers) -> None:
    event_id, won = await ready_event(pollers), []

    async def try_it(n: int) -> None:
        won.extend(await take(pollers, "EVENT", [event_id], owner=f"w{n}"))

    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(try_it, n)

    assert len(won) == 1


async def test_a_claim_succeeds_when_there_is_none(pollers: TicketPollers) -> None:
    assert await take(pollers, "EVENT", [await ready_event(pollers)])


async def test_a_claim_fails_while_another_is_active(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    await take(pollers, "EVENT", [event_id], owner="first")

    assert await take(pollers, "EVENT", [event_id], owner="second") == []


async def test_a_claim_succeeds_when_the_other_is_expired_and_its_version_grows(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    (first,) = await take(pollers, "EVENT", [event_id], owner="first")
    await pollers.expire_claims()

    (second,) = await take(pollers, "EVENT", [event_id], owner="second")

    assert second.claim_version > first.claim_version
    assert second.lease_token != first.lease_token


async def test_a_poller_skips_what_is_claimed_and_goes_on_with_the_next(pollers: TicketPollers) -> None:
    held, free = await ready_event(pollers), await ready_event(pollers)
    await take(pollers, "EVENT", [held])

    await pollers.first.scheduler.run_once()

    assert (await reason_of(pollers, held), await reason_of(pollers, free)) == (None, "SCHEDULED")


# -- lease duration and renewal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("configured", "bounded"), [(60, 60), (86_400, 120), (2, 2)])
def test_a_claim_is_short_and_bounded(configured: int, bounded: float) -> None:
    leases = Leases(ttl_s=configured, heartbeat_s=configured / 3)

    assert claim_ttl_s(leases) == bounded
    assert claim_heartbeat_s(leases) <= min(30.0, bounded / 3)


async def test_long_work_renews_its_claim(db: Database, folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, leases=Leases(ttl_s=30, heartbeat_s=0.1))
    async with ticket_pollers(db, folder, config) as pollers, anyio.create_task_group() as tasks:
        await pollers.scheduled()
        handle = Handle(lambda: None)
        tasks.start_soon(pollers.first.runner.run, handle)

        async def was_renewed() -> bool:
            version = await db.pool.fetchval("SELECT max(claim_version) FROM leases WHERE resource_type = 'WORKORDER'")
            return version is not None and version >= 3

        await wait_until_async(was_renewed, timeout_s=15)
        handle.stop.set()


async def test_a_renewal_compares_the_version_so_that_one_of_two_loses(pollers: TicketPollers) -> None:
    (record,) = await take(pollers, "WORKORDER", [uuid4()])
    proof = LeaseProof(
        resource_id=record.resource_id, lease_token=record.lease_token, claim_version=record.claim_version
    )

    answers = [(await renew(pollers.db.pool, "WORKORDER", [proof], ttl_s=TTL_S))[0] for _ in range(2)]

    assert answers[0] is not None
    assert answers[0].claim_version == record.claim_version + 1
    assert answers[1] is None


async def test_a_runner_whose_renewal_fails_stops_and_writes_nothing(db: Database, folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, leases=Leases(ttl_s=60, heartbeat_s=0.01))
    async with ticket_pollers(db, folder, config) as pollers:
        ticket = await pollers.scheduled()
        await pollers.first.runner.run_once()
        await pollers.expire_claims()
        (order_id,) = await find_open_workorders(db.pool, most=10)
        await take(pollers, "WORKORDER", [order_id])
        await pollers.finish(ticket.ticket_id)
        before = await everything(pollers)

        await anyio.sleep(0.02)  # longer than the heartbeat, so that the renewal is due
        await pollers.first.runner.claims.renew_due()
        await pollers.first.runner.run_once()

        assert await everything(pollers) == before
        assert len(pollers.first.runner.claims) == 0


async def test_a_gate_whose_renewal_fails_ends_its_command_and_writes_nothing(db: Database, folder: Path) -> None:
    config = msgspec.structs.replace(
        CONFIG,
        leases=Leases(ttl_s=60, heartbeat_s=0.1),
        tickets=Tickets(gates={"slow": GateCommand(argv=("sleep", "600"), timeout_s=600)}),
    )
    async with ticket_pollers(db, folder, config) as pollers, anyio.create_task_group() as tasks:
        await pollers.executed(gates=[{"type": "command", "name": "slow"}])
        before, handle = await everything(pollers), Handle(lambda: None)
        tasks.start_soon(pollers.first.gate.run, handle)

        async def is_claimed() -> bool:
            return bool(list((folder / "gates").glob("*"))) if (folder / "gates").exists() else False

        async def has_ended() -> bool:
            return not await is_claimed()

        await wait_until_async(is_claimed, timeout_s=15)
        await db.pool.execute("UPDATE leases SET lease_token = gen_random_uuid() WHERE resource_type = 'WORKORDER'")
        await wait_until_async(has_ended, timeout_s=15)

        assert await everything(pollers) == before
        handle.stop.set()


# -- completion and release --------------------------------------------------------------------------------------------


async def test_a_claim_is_released_with_the_write_and_not_before(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    await pollers.first.scheduler.run_once()

    history = await pollers.db.pool.fetch(
        "SELECT action FROM claim_history WHERE resource_id = $1 ORDER BY seq", event_id
    )

    assert [row["action"] for row in history] == ["CLAIMED", "RELEASED"]
    assert (await pollers.claims(), await reason_of(pollers, event_id)) == (0, "SCHEDULED")


async def test_a_write_that_fails_leaves_the_claim_and_nothing_else(pollers: TicketPollers) -> None:
    bad, good = await ready_event(pollers), await ready_event(pollers)
    await pollers.db.pool.execute(
        "UPDATE tickets SET budget_ms = 9223372036854775807, version = version + 1, payload = '{\"a\": 1}' "
        "WHERE ticket_id = (SELECT ticket_id FROM ticket_events WHERE event_id = $1)",
        bad,
    )
    await pollers.db.pool.execute(
        "ALTER TABLE workorders ADD CONSTRAINT spoilt CHECK (budget_ms < 9223372036854775807)"
    )

    try:
        await pollers.first.scheduler.run_once()
    finally:
        await pollers.db.pool.execute("ALTER TABLE workorders DROP CONSTRAINT spoilt")

    assert (await reason_of(pollers, bad), await reason_of(pollers, good)) == (None, "SCHEDULED")
    held = await pollers.db.pool.fetch("SELECT resource_id FROM leases")
    assert [row["resource_id"] for row in held] == [bad]


async def test_after_a_crash_another_worker_takes_over_when_the_claim_expires(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    await take(pollers, "EVENT", [event_id], owner="crashed")
    await pollers.first.scheduler.run_once()
    before_expiry = await reason_of(pollers, event_id)

    await pollers.expire_claims()
    await pollers.first.scheduler.run_once()

    assert (before_expiry, await reason_of(pollers, event_id)) == (None, "SCHEDULED")
    history = await pollers.db.pool.fetch(
        "SELECT action FROM claim_history WHERE resource_id = $1 ORDER BY seq", event_id
    )
    assert [row["action"] for row in history] == ["CLAIMED", "EXPIRED", "CLAIMED", "RELEASED"]


# -- idempotency rules -------------------------------------------------------------------------------------------------


async def test_processing_a_processed_event_again_changes_nothing(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    await pollers.first.scheduler.run_once()
    before = await everything(pollers)

    again = await schedule(pollers.db.pool, await take(pollers, "EVENT", [event_id]))

    assert again == {}
    assert await everything(pollers) == before


async def test_schedulers_at_once_make_one_work_order_for_an_event(pollers: TicketPollers) -> None:
    for _ in range(5):
        await todo_ticket(pollers.db)
    await pollers.first.readiness.run_once()
    nodes = [pollers.node(f"n{n}") for n in range(4)]

    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(node.scheduler.run_once)

    assert await pollers.number("SELECT count(*) FROM workorders") == 5
    assert await pollers.number("SELECT count(DISTINCT event_id) FROM workorders") == 5


async def test_running_an_executed_work_order_again_changes_nothing(pollers: TicketPollers) -> None:
    ticket = await pollers.executed()
    order = (await pollers.trail(ticket.ticket_id)).workorders[0]
    before = await everything(pollers)

    (record,) = await take(pollers, "WORKORDER", [order.work_order_id])
    bundle = Bundle(work_order_id=order.work_order_id, lease_token=record.lease_token, outcome="DONE", output="7")
    again = await execute(pollers.db.pool, [bundle])
    await pollers.first.runner.run_once()

    assert again == set()
    assert await everything(pollers) == before


async def test_a_work_order_has_one_run_record_however_often_it_is_judged(pollers: TicketPollers) -> None:
    ticket = await pollers.executed()
    (order_id,) = await find_executed_workorders(pollers.db.pool, most=10)
    cases = await read_for_judge(pollers.db.pool, [order_id])
    await pollers.first.gate.run_once()
    before = await everything(pollers)

    (record,) = await take(pollers, "WORKORDER", [order_id])
    again = await write_settled(pollers.db.pool, [settle(cases[order_id], record.lease_token, {})])

    assert again == {}
    assert await everything(pollers) == before
    assert len((await pollers.trail(ticket.ticket_id)).run_records) == 1


@pytest.mark.parametrize("table", ["context_snapshots", "output_bundles", "run_records", "pause_states"])
@pytest.mark.parametrize("change", ["UPDATE {} SET created_at = now()", "DELETE FROM {}"])
async def test_an_artifact_never_changes_once_it_is_written(pollers: TicketPollers, table: str, change: str) -> None:
    await pollers.executed()
    await pollers.first.gate.run_once()

    with pytest.raises(asyncpg.PostgresError, match="are never changed"):
        await pollers.db.pool.execute(change.format(table))


# -- coordination rules ------------------------------------------------------------------------------------------------


async def test_an_event_is_not_processed_without_its_claim(pollers: TicketPollers) -> None:
    event_id = await ready_event(pollers)
    (record,) = await take(pollers, "EVENT", [event_id])
    before = await everything(pollers)

    done = await schedule(pollers.db.pool, [msgspec.structs.replace(record, lease_token=uuid4())])

    assert done == {}
    assert await everything(pollers) == before


async def test_a_work_order_is_neither_executed_nor_judged_without_its_claim(pollers: TicketPollers) -> None:
    await pollers.scheduled()
    (open_id,) = await find_open_workorders(pollers.db.pool, most=10)
    await pollers.executed()
    (executed_id,) = await find_executed_workorders(pollers.db.pool, most=10)
    cases, before = await read_for_judge(pollers.db.pool, [executed_id]), await everything(pollers)

    executed = await execute(
        pollers.db.pool, [Bundle(work_order_id=open_id, lease_token=uuid4(), outcome="DONE", output="7")]
    )
    judged = await write_settled(pollers.db.pool, [settle(cases[executed_id], uuid4(), {})])

    assert (executed, judged) == (set(), {})
    assert await everything(pollers) == before


async def test_a_runner_that_goes_on_after_a_crash_waits_for_the_same_job(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()  # it submits, and is never heard of again
    await pollers.expire_claims()
    two = pollers.node("two")

    await two.runner.run_once()
    await pollers.finish(ticket.ticket_id)
    await two.runner.run_once()

    assert await pollers.number("SELECT count(*) FROM jobs") == 1
    assert len((await pollers.trail(ticket.ticket_id)).output_bundles) == 1


async def test_a_job_is_submitted_once_even_when_its_key_was_forgotten(pollers: TicketPollers) -> None:
    await pollers.scheduled()
    (order_id,) = await find_open_workorders(pollers.db.pool, most=10)
    await pollers.first.runner.run_once()
    await pollers.db.pool.execute("DELETE FROM idempotency_keys")
    await pollers.expire_claims()

    await pollers.node("two").runner.run_once()

    assert await pollers.number("SELECT count(*) FROM jobs") == 1
    assert await pollers.number("SELECT count(*) FROM leases WHERE resource_id = $1", order_id) == 1


async def test_ready_is_told_once_however_many_look(pollers: TicketPollers) -> None:
    tickets = [await todo_ticket(pollers.db) for _ in range(5)]

    async with anyio.create_task_group() as tasks:
        for n in range(4):
            tasks.start_soon(pollers.node(f"n{n}").readiness.run_once)
    await pollers.first.readiness.run_once()

    assert await pollers.number("SELECT count(*) FROM ticket_events") == len(tickets)


async def test_the_end_does_not_depend_on_who_looks_when(pollers: TicketPollers) -> None:
    """Two nodes look in an order of chance, and some of their claims expire under their hands."""
    dice, nodes = random.Random(7), [pollers.first, pollers.node("two")]
    tickets = [(await todo_ticket(pollers.db)).ticket_id for _ in range(6)]
    deadline = time.monotonic() + 15

    while await pollers.number("SELECT count(*) FROM tickets WHERE status <> 'DONE'"):
        assert time.monotonic() < deadline
        node = dice.choice(nodes)
        await dice.choice([node.readiness, node.scheduler, node.runner, node.gate]).run_once()
        if dice.random() < 0.2:
            await pollers.expire_claims()
        for row in await pollers.db.pool.fetch(
            "SELECT w.ticket_id FROM workorders w JOIN jobs ON jobs.id = w.job_id WHERE jobs.status = 'queued'"
        ):
            await pollers.finish(row["ticket_id"])

    for ticket_id in tickets:
        trail = await pollers.trail(ticket_id)
        assert [
            len(artifacts) for artifacts in (trail.events, trail.workorders, trail.output_bundles, trail.run_records)
        ] == [1] * 4


# -- split brain -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken_over", [False, True], ids=["expired", "taken over"])
async def test_a_scheduler_frozen_past_its_claim_writes_nothing(pollers: TicketPollers, taken_over: bool) -> None:
    event_id = await ready_event(pollers)
    frozen = await take(pollers, "EVENT", [event_id], owner="frozen")
    await pollers.expire_claims()
    if taken_over:
        await pollers.first.scheduler.run_once()
    before = await everything(pollers)

    thawed = await schedule(pollers.db.pool, frozen)

    assert thawed == {}
    assert await everything(pollers) == before


@pytest.mark.parametrize("taken_over", [False, True], ids=["expired", "taken over"])
async def test_a_runner_frozen_past_its_claim_writes_nothing(pollers: TicketPollers, taken_over: bool) -> None:
    ticket = await pollers.scheduled()
    (order_id,) = await find_open_workorders(pollers.db.pool, most=10)
    (frozen,) = await take(pollers, "WORKORDER", [order_id], owner="frozen")
    await pollers.expire_claims()
    if taken_over:
        await pollers.first.runner.run_once()
        await pollers.finish(ticket.ticket_id)
        await pollers.first.runner.run_once()
    before = await everything(pollers)

    thawed = await execute(
        pollers.db.pool, [Bundle(work_order_id=order_id, lease_token=frozen.lease_token, outcome="DONE", output="7")]
    )

    assert thawed == set()
    assert await everything(pollers) == before


@pytest.mark.parametrize("gates", [[], [{"type": "sign_off"}]], ids=["judged", "left to a person"])
@pytest.mark.parametrize("taken_over", [False, True], ids=["expired", "taken over"])
async def test_a_gate_frozen_past_its_claim_writes_nothing(
    pollers: TicketPollers, taken_over: bool, gates: list[Any]
) -> None:
    await pollers.executed(gates=gates)
    (order_id,) = await find_executed_workorders(pollers.db.pool, most=10)
    cases = await read_for_judge(pollers.db.pool, [order_id])
    (frozen,) = await take(pollers, "WORKORDER", [order_id], owner="frozen")
    await pollers.expire_claims()
    if taken_over:
        await pollers.first.gate.run_once()
    before = await everything(pollers)

    thawed = await write_settled(pollers.db.pool, [settle(cases[order_id], frozen.lease_token, {})])

    assert thawed == {}
    assert await everything(pollers) == before


# -- the human boundary ------------------------------------------------------------------------------------------------


async def test_no_poller_moves_a_new_ticket(pollers: TicketPollers) -> None:
    ticket = await new_ticket(pollers.db)
    before = await everything(pollers)

    await pollers.first.turn()

    assert await everything(pollers) == before
    assert await pollers.status(ticket.ticket_id) == "NEW"


async def test_not_even_the_table_lets_a_ticket_become_todo_without_a_person(pollers: TicketPollers) -> None:
    ticket = await new_ticket(pollers.db)

    with pytest.raises(asyncpg.CheckViolationError, match="people_approve"):
        await pollers.db.pool.execute(
            "UPDATE tickets SET status = 'TODO', version = 2 WHERE ticket_id = $1", ticket.ticket_id
        )
