"""The pollers as services: what wakes them, what they leave when they stop, and what they find when they start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import msgspec
import pytest

from jobd.config.model import Config, Limits, Tickets
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.lease import acquire
from jobd.lifecycle.prune import prune
from jobd.supervise.service import Handle
from jobd.tickets.pollers import runner as ticket_runner
from jobd.tickets.pollers.claims import Claims, OwnerNames
from jobd.tickets.pollers.look import Work, look_for_work
from jobd.tickets.pollers.take_back import free_claims_of
from jobd.tickets.prune import prune_tickets
from tests.support.factories import claim_one
from tests.support.node import eventually
from tests.tickets.desk import CONFIG, asked, new_ticket, todo_ticket
from tests.tickets.hall import Hall, Node, open_hall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.supervise.service import Service
    from jobd.tickets.pollers.claims import Claim
    from jobd.wire.tickets import Trail


def polling(poll_s: float) -> Config:
    return msgspec.structs.replace(CONFIG, tickets=Tickets(poll_s=poll_s))


class Works:
    """A node whose pollers run, and an engine that tells them of jobs."""

    def __init__(self, db: Database, folder: Path, config: Config) -> None:
        self.node: Node
        self.engine = Engine(db, lambda: config, lambda: self.node.wakeups.job_committed())
        self.node = Node(db, self.engine, folder, config, "one")
        self.db = db

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Works]:
        node = self.node
        handles = [Handle(lambda: None) for _ in range(5)]
        services: list[Service] = [self.engine, node.gate, node.runner, node.scheduler, node.readiness]
        async with anyio.create_task_group() as tasks:
            for service, handle in zip(services, handles, strict=True):
                tasks.start_soon(service.run, handle)
            yield self
            for handle in reversed(handles):
                handle.stop.set()

    async def trail(self, ticket_id: UUID) -> Trail:
        return await self.node.desk.trail(ticket_id)

    async def until(self, ticket_id: UUID, status: str, step: str | None = None) -> None:
        async def is_there() -> bool:
            ticket = await self.node.desk.read(ticket_id)
            return (ticket.status, ticket.step) == (status, step)

        await eventually(is_there, 15)

    async def until_submitted(self, ticket_id: UUID) -> UUID:
        async def is_there() -> bool:
            orders = (await self.trail(ticket_id)).workorders
            return bool(orders) and bool(
                await self.db.pool.fetchval("SELECT count(*) FROM jobs WHERE id = $1", orders[0].job_id)
            )

        await eventually(is_there, 15)
        return (await self.trail(ticket_id)).workorders[0].job_id

    async def finish(self, job_id: UUID) -> None:
        claimed = await claim_one(self.db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
        report = Completion(
            job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result='{"ok": true}'
        )
        await self.engine.complete(report)


async def test_rings_alone_carry_a_ticket_to_its_end(empty_db: Database, folder: Path) -> None:
    """Nobody polls for an hour unless a wakeup is set."""
    async with Works(empty_db, folder, polling(3600)).running() as works:
        ticket = await works.node.desk.create(asked(), created_by="ann")
        await works.node.desk.approve(ticket.ticket_id, by="bob")

        await works.finish(await works.until_submitted(ticket.ticket_id))

        await works.until(ticket.ticket_id, "DONE")


async def test_looking_alone_carries_a_ticket_to_its_end(empty_db: Database, folder: Path) -> None:
    """What other nodes do sets no wakeup here."""
    async with Works(empty_db, folder, polling(0.05)).running() as works:
        ticket = await todo_ticket(empty_db)
        job_id = await works.until_submitted(ticket.ticket_id)
        claimed = await claim_one(empty_db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
        await complete(
            empty_db.pool,
            [Completion(job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result="1")],
        )

        await works.until(ticket.ticket_id, "DONE")


async def test_a_look_rings_for_whoever_has_something_to_do_and_for_nobody_else(hall: Hall) -> None:
    """The first node goes step by step; the second sees where it stands."""
    two = hall.node("two")

    async def woken() -> set[str]:
        await two.readiness.look()
        return {name for name in Work.__struct_fields__ if await getattr(two.wakeups, name).wait(0)}

    seen = [await woken()]
    ticket = await todo_ticket(hall.db)
    for poller in (hall.one.readiness, hall.one.scheduler, hall.one.runner):
        seen.append(await woken())
        await poller.run_once()
    seen.append(await woken())  # its job runs, and the runner holds the claim
    await hall.finish(ticket.ticket_id)
    await hall.one.runner.run_once()
    seen.append(await woken())
    await hall.one.gate.run_once()
    seen.append(await woken())

    assert seen == [set(), {"readiness"}, {"scheduler"}, {"runner"}, set(), {"gate"}, set()]


async def test_a_look_rings_once_the_tickets_are_done_that_another_waits_for(hall: Hall) -> None:
    first = await hall.executed()
    await todo_ticket(hall.db, blocked_on=[str(first.ticket_id)])
    await hall.one.readiness.run_once()
    await hall.one.scheduler.run_once()

    before = await look_for_work(hall.db.pool)
    await hall.one.gate.run_once()

    assert (before.readiness, (await look_for_work(hall.db.pool)).readiness) == (False, True)


async def test_what_is_claimed_rings_for_nobody_until_the_claim_ends(hall: Hall) -> None:
    await hall.ready()
    event_id = await hall.db.pool.fetchval("SELECT event_id FROM ticket_events")
    await acquire(hall.db.pool, "EVENT", [event_id], owner_id="x", ttl_s=600)

    held = await look_for_work(hall.db.pool)
    await hall.expire_claims()

    assert (held.scheduler, (await look_for_work(hall.db.pool)).scheduler) == (False, True)


async def test_a_runner_that_stops_gives_its_claims_up_at_once(empty_db: Database, folder: Path) -> None:
    async with Works(empty_db, folder, polling(0.05)).running() as works:
        ticket = await todo_ticket(empty_db)
        await works.until_submitted(ticket.ticket_id)

    assert await empty_db.pool.fetchval("SELECT count(*) FROM leases WHERE resource_type <> 'JOB'") == 0


async def test_what_a_dead_poller_of_this_node_held_is_free_at_the_start(empty_db: Database) -> None:
    mine, others = uuid4(), uuid4()
    await acquire(empty_db.pool, "EVENT", [mine], owner_id="dead:scheduler", ttl_s=60)
    await acquire(empty_db.pool, "EVENT", [others], owner_id="alive:scheduler", ttl_s=60)
    owners = OwnerNames("new", ("dead",)).of("scheduler")

    await Claims(empty_db, "EVENT", owners, lambda: CONFIG).take_back()

    rows = await empty_db.pool.fetch("SELECT resource_id FROM leases")
    assert [row["resource_id"] for row in rows] == [others]


async def test_a_claim_that_ended_long_ago_is_cleared_away_and_others_are_not(empty_db: Database) -> None:
    old, new = uuid4(), uuid4()
    await acquire(empty_db.pool, "EVENT", [old, new], owner_id="x", ttl_s=60)
    await empty_db.pool.execute(
        "UPDATE leases SET lease_expires_at = clock_timestamp() - interval '1 hour' WHERE resource_id = $1", old
    )

    freed = await free_claims_of(empty_db.pool, ())

    assert freed == 1
    assert await empty_db.pool.fetchval("SELECT resource_id FROM leases") == new


# -- outputs in files --------------------------------------------------------------------------------------------------

LARGE = msgspec.json.encode({"text": "x" * 100_000, "score": 0.9})


async def finish_in_file(hall: Hall, ticket_id: UUID, folder: Path) -> None:
    """The job is done with a result that is too large for its row."""
    job_id = await hall.job_of(ticket_id)
    claimed = await claim_one(hall.db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
    ref = await Results(folder, lambda: CONFIG).keep(claimed, LARGE)
    report = Completion(
        job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result=None, result_ref=ref
    )
    await complete(hall.db.pool, [report])


async def test_an_output_in_a_file_is_kept_whole_with_the_ticket(hall: Hall, folder: Path) -> None:
    ticket = await hall.scheduled(gates=[{"type": "minimum", "pointer": "/score", "value": 0.5}])
    await hall.one.runner.run_once()
    await finish_in_file(hall, ticket.ticket_id, folder)
    await hall.one.turn()

    trail = await hall.trail(ticket.ticket_id)
    assert trail.output_bundles[0].output == msgspec.json.decode(LARGE)
    assert (trail.output_bundles[0].output_ref, trail.ticket.status) == (None, "DONE")


async def test_job_whose_file_is_the_output_of_a_ticket_stays_for_as_long_as_the_ticket(
    hall: Hall, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_runner, "OUTPUT_BYTES", 1000)
    ticket = await hall.scheduled()
    await hall.one.runner.run_once()
    await finish_in_file(hall, ticket.ticket_id, folder)
    await hall.one.turn()
    bundle = (await hall.trail(ticket.ticket_id)).output_bundles[0]

    with_ticket = await prune(hall.db.pool, keep_s=0.0)
    while (await prune_tickets(hall.db.pool, keep_s=0.0)).tickets:
        pass
    without_ticket = await prune(hall.db.pool, keep_s=0.0)

    assert bundle.output_ref is not None
    assert (with_ticket.jobs, list(with_ticket.result_refs)) == (0, [])
    assert (without_ticket.jobs, list(without_ticket.result_refs)) == (1, [bundle.output_ref])


@pytest.mark.parametrize(
    ("gates", "status"), [([], "DONE"), ([{"type": "schema", "schema": True}], "BLOCKED")], ids=["none", "one"]
)
async def test_an_output_in_a_file_that_nobody_has_passes_no_gate(
    hall: Hall, folder: Path, monkeypatch: pytest.MonkeyPatch, gates: list[Any], status: str
) -> None:
    monkeypatch.setattr(ticket_runner, "PASSES", 0)
    ticket = await hall.scheduled(gates=gates)
    await hall.one.runner.run_once()
    (folder / "elsewhere").mkdir()
    await finish_in_file(hall, ticket.ticket_id, folder / "elsewhere")
    await hall.one.turn()

    trail = await hall.trail(ticket.ticket_id)
    assert (trail.output_bundles[0].output, trail.output_bundles[0].output_ref is not None) == (None, True)
    assert trail.ticket.status == status


async def test_an_output_in_a_file_elsewhere_is_left_to_the_node_that_has_it(hall: Hall, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    there = Node(hall.db, hall.engine, elsewhere, hall.config, "there")
    ticket = await hall.scheduled()
    await hall.one.runner.run_once()
    await finish_in_file(hall, ticket.ticket_id, elsewhere)

    await hall.one.runner.run_once()
    await hall.one.runner.run_once()
    claims = await hall.claims()
    await there.runner.run_once()

    assert claims == 0
    bundle = (await hall.trail(ticket.ticket_id)).output_bundles[0]
    assert (bundle.output, bundle.output_ref) == (msgspec.json.decode(LARGE), None)


# -- jobs that are not to be had ---------------------------------------------------------------------------------------


async def test_a_full_queue_makes_a_work_order_wait_and_not_fail(empty_db: Database, folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, limits=Limits(max_queued=1))
    async with open_hall(empty_db, folder, config) as hall:
        first, second = await hall.scheduled(), await hall.scheduled()
        await hall.one.runner.run_once()
        waiting = await hall.number("SELECT count(*) FROM jobs")
        await hall.finish(first.ticket_id)
        await hall.one.runner.run_once()
        await hall.one.runner.run_once()
        await hall.finish(second.ticket_id)
        await hall.one.turn()
        await hall.one.turn()

        assert waiting == 1
        assert {await hall.status(one.ticket_id) for one in (first, second)} == {"DONE"}


async def test_a_job_that_retention_took_away_ends_the_run_in_error(hall: Hall) -> None:
    ticket = await hall.scheduled()
    await hall.one.runner.run_once()
    await hall.finish(ticket.ticket_id)
    await prune(hall.db.pool, keep_s=0, most=10)
    await hall.one.turn()

    trail = await hall.trail(ticket.ticket_id)
    assert trail.output_bundles[0].error == {
        "code": "gone_job",
        "message": f"job {trail.workorders[0].job_id} was deleted",
    }
    assert trail.ticket.status == "BLOCKED"


async def test_many_tickets_go_their_way_together(hall: Hall) -> None:
    """More than fit into one look of any poller."""
    tickets = [(await todo_ticket(hall.db)).ticket_id for _ in range(130)]
    other = await new_ticket(hall.db)
    for poller in (hall.one.readiness, hall.one.scheduler, hall.one.runner):
        while await poller.run_once():
            pass
    for row in await hall.db.pool.fetch("SELECT ticket_id FROM workorders"):
        await hall.finish(row["ticket_id"])
    await hall.one.runner.run_once()
    while await hall.one.gate.run_once():
        pass

    rows = await hall.db.pool.fetch("SELECT status, count(*) AS n FROM tickets GROUP BY 1 ORDER BY 1")
    assert [(row["status"], row["n"]) for row in rows] == [("DONE", len(tickets)), ("NEW", 1)]
    assert await hall.status(other.ticket_id) == "NEW"


async def test_event_that_another_node_ends_before_it_is_claimed_is_left_without_a_claim(
    db: Database, folder: Path
) -> None:
    async with open_hall(db, folder) as hall:
        await hall.ready()
        two = hall.node("two")
        acquire_here = hall.one.scheduler.claims.acquire

        async def acquire_late(event_ids: Sequence[UUID]) -> list[Claim]:
            await two.scheduler.run_once()
            return await acquire_here(event_ids)

        hall.one.scheduler.claims.acquire = acquire_late  # type: ignore[assignment,method-assign]  # the other comes first

        await hall.one.scheduler.run_once()

        assert await db.pool.fetchval("SELECT count(*) FROM leases WHERE resource_type = 'EVENT'") == 0
        assert len(hall.one.scheduler.claims) == 0
