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
from jobd.job.history import Cursor
from jobd.job.model import Canceled, Completed, Requeued, Superseded
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.events import Kept
from jobd.lifecycle.lease import acquire
from jobd.lifecycle.notices import CANCELED, EMITTED, ENDED, ChangeKind, Changes
from jobd.lifecycle.prune import prune
from jobd.store.leader import OwnerNames
from jobd.supervise.service import Handle
from jobd.tickets.pollers import runner as ticket_runner
from jobd.tickets.pollers.claims import ClaimKeeper
from jobd.tickets.pollers.find_work import Work, find_work
from jobd.tickets.pollers.free_claims import free_claims
from jobd.tickets.prune import prune_tickets
from tests.support.factories import claim_one
from tests.support.wait import wait_until_async
from tests.tickets.factories import CONFIG, asked, new_ticket, todo_ticket
from tests.tickets.ticket_pollers import PollerNode, TicketPollers, ticket_pollers

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


class RunningPollers:
    """A node whose pollers run, and an engine that tells them of jobs."""

    def __init__(self, db: Database, folder: Path, config: Config) -> None:
        self.node: PollerNode
        self.engine = Engine(db, lambda: config, on_changes=lambda changes: self.node.wakeups.jobs_changed(changes))
        self.node = PollerNode(db, self.engine, folder, config, "one")
        self.db = db

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RunningPollers]:
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
        return await self.node.service.trail(ticket_id)

    async def wait_for_status(self, ticket_id: UUID, status: str, step: str | None = None) -> None:
        async def is_there() -> bool:
            ticket = await self.node.service.read(ticket_id)
            return (ticket.status, ticket.step) == (status, step)

        await wait_until_async(is_there, timeout_s=15)

    async def until_submitted(self, ticket_id: UUID) -> UUID:
        async def is_there() -> bool:
            orders = (await self.trail(ticket_id)).workorders
            return bool(orders) and bool(
                await self.db.pool.fetchval("SELECT count(*) FROM jobs WHERE id = $1", orders[0].job_id)
            )

        await wait_until_async(is_there, timeout_s=15)
        return (await self.trail(ticket_id)).workorders[0].job_id

    async def finish(self, job_id: UUID) -> None:
        claimed = await claim_one(self.db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
        report = Completion(
            job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result='{"ok": true}'
        )
        await self.engine.complete(report)


async def test_rings_alone_carry_a_ticket_to_its_end(empty_db: Database, folder: Path) -> None:
    """Nobody polls for an hour unless a wakeup is set."""
    async with RunningPollers(empty_db, folder, polling(3600)).running() as running:
        ticket = await running.node.service.create(asked(), created_by="ann")
        await running.node.service.decide("APPROVE", ticket.ticket_id, by="bob")

        await running.finish(await running.until_submitted(ticket.ticket_id))

        await running.wait_for_status(ticket.ticket_id, "DONE")


async def test_runner_is_woken_by_the_end_of_its_own_jobs_alone(pollers: TicketPollers) -> None:
    await pollers.ready()
    await pollers.first.scheduler.run_once()
    await pollers.first.runner.run_once()
    (job_id,) = pollers.first.wakeups.awaited_jobs
    wakeup = pollers.first.wakeups.runner
    proof: dict[str, Any] = {"attempt_id": uuid4(), "lease_token": uuid4()}

    async def wakes(kind: ChangeKind, item: object, answer: object) -> bool:
        pollers.first.wakeups.jobs_changed(Changes(kind, [item], [answer]))
        return await wakeup.wait(0)

    own, other = Completion(job_id=job_id, **proof), Completion(job_id=uuid4(), **proof)
    await wakeup.wait(0)
    assert not await wakes(ENDED, other, Completed())
    assert not await wakes(EMITTED, own, Kept(Cursor(1, 1)))
    assert not await wakes(ENDED, own, Superseded())
    assert not await wakes(ENDED, own, Requeued(outcome=AttemptOutcome.FAILED, enqueue_id=2, run_after=0.0))
    assert await wakes(ENDED, own, Completed())
    assert await wakes(CANCELED, job_id, Canceled(None))


async def test_looking_alone_carries_a_ticket_to_its_end(empty_db: Database, folder: Path) -> None:
    """What other nodes do sets no wakeup here."""
    async with RunningPollers(empty_db, folder, polling(0.05)).running() as running:
        ticket = await todo_ticket(empty_db)
        job_id = await running.until_submitted(ticket.ticket_id)
        claimed = await claim_one(empty_db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
        await complete(
            empty_db.pool,
            [Completion(job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result="1")],
        )

        await running.wait_for_status(ticket.ticket_id, "DONE")


async def test_a_look_rings_for_whoever_has_something_to_do_and_for_nobody_else(pollers: TicketPollers) -> None:
    """The first node goes step by step; the second sees where it stands."""
    two = pollers.node("two")

    async def woken() -> set[str]:
        await two.readiness.poll()
        return {name for name in Work.__struct_fields__ if await getattr(two.wakeups, name).wait(0)}

    seen = [await woken()]
    ticket = await todo_ticket(pollers.db)
    for poller in (pollers.first.readiness, pollers.first.scheduler, pollers.first.runner):
        seen.append(await woken())
        await poller.run_once()
    seen.append(await woken())  # its job runs, and the runner holds the claim
    await pollers.finish(ticket.ticket_id)
    await pollers.first.runner.run_once()
    seen.append(await woken())
    await pollers.first.gate.run_once()
    seen.append(await woken())

    assert seen == [set(), {"readiness"}, {"scheduler"}, {"runner"}, set(), {"gate"}, set()]


async def test_a_look_rings_once_the_tickets_are_done_that_another_waits_for(pollers: TicketPollers) -> None:
    first = await pollers.executed()
    await todo_ticket(pollers.db, blocked_on=[str(first.ticket_id)])
    await pollers.first.readiness.run_once()
    await pollers.first.scheduler.run_once()

    before = await find_work(pollers.db.pool)
    await pollers.first.gate.run_once()

    assert (before.readiness, (await find_work(pollers.db.pool)).readiness) == (False, True)


async def test_what_is_claimed_rings_for_nobody_until_the_claim_ends(pollers: TicketPollers) -> None:
    await pollers.ready()
    event_id = await pollers.db.pool.fetchval("SELECT event_id FROM ticket_events")
    await acquire(pollers.db.pool, "EVENT", [event_id], owner_id="x", ttl_s=600)

    held = await find_work(pollers.db.pool)
    await pollers.expire_claims()

    assert (held.scheduler, (await find_work(pollers.db.pool)).scheduler) == (False, True)


async def test_a_runner_that_stops_gives_its_claims_up_at_once(empty_db: Database, folder: Path) -> None:
    async with RunningPollers(empty_db, folder, polling(0.05)).running() as running:
        ticket = await todo_ticket(empty_db)
        await running.until_submitted(ticket.ticket_id)

    assert await empty_db.pool.fetchval("SELECT count(*) FROM leases WHERE resource_type <> 'JOB'") == 0


async def test_what_a_dead_poller_of_this_node_held_is_free_at_the_start(empty_db: Database) -> None:
    mine, others = uuid4(), uuid4()
    await acquire(empty_db.pool, "EVENT", [mine], owner_id="dead:scheduler", ttl_s=60)
    await acquire(empty_db.pool, "EVENT", [others], owner_id="alive:scheduler", ttl_s=60)
    owners = OwnerNames("new", ("dead",)).of("scheduler")

    await ClaimKeeper(empty_db, "EVENT", owners, lambda: CONFIG).free_dead()

    rows = await empty_db.pool.fetch("SELECT resource_id FROM leases")
    assert [row["resource_id"] for row in rows] == [others]


async def test_a_claim_that_ended_long_ago_is_cleared_away_and_others_are_not(empty_db: Database) -> None:
    old, new = uuid4(), uuid4()
    await acquire(empty_db.pool, "EVENT", [old, new], owner_id="x", ttl_s=60)
    await empty_db.pool.execute(
        "UPDATE leases SET lease_expires_at = clock_timestamp() - interval '1 hour' WHERE resource_id = $1", old
    )

    freed = await free_claims(empty_db.pool, ())

    assert freed == 1
    assert await empty_db.pool.fetchval("SELECT resource_id FROM leases") == new


# -- outputs in files --------------------------------------------------------------------------------------------------

LARGE = msgspec.json.encode({"text": "x" * 100_000, "score": 0.9})


async def finish_in_file(pollers: TicketPollers, ticket_id: UUID, folder: Path) -> None:
    """The job is done with a result that is too large for its row."""
    job_id = await pollers.job_of(ticket_id)
    claimed = await claim_one(pollers.db, job_id, now=None)  # type: ignore[arg-type]  # by the clock
    ref = await Results(folder, lambda: CONFIG).keep(claimed, LARGE)
    report = Completion(
        job_id=job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result=None, result_ref=ref
    )
    await complete(pollers.db.pool, [report])


async def test_an_output_in_a_file_is_kept_whole_with_the_ticket(pollers: TicketPollers, folder: Path) -> None:
    ticket = await pollers.scheduled(gates=[{"type": "minimum", "pointer": "/score", "value": 0.5}])
    await pollers.first.runner.run_once()
    await finish_in_file(pollers, ticket.ticket_id, folder)
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert trail.output_bundles[0].output == msgspec.json.decode(LARGE)
    assert (trail.output_bundles[0].output_ref, trail.ticket.status) == (None, "DONE")


async def test_job_whose_file_is_the_output_of_a_ticket_stays_for_as_long_as_the_ticket(
    pollers: TicketPollers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_runner, "OUTPUT_BYTES", 1000)
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await finish_in_file(pollers, ticket.ticket_id, folder)
    await pollers.first.turn()
    bundle = (await pollers.trail(ticket.ticket_id)).output_bundles[0]

    with_ticket = await prune(pollers.db.pool, keep_s=0.0)
    while (await prune_tickets(pollers.db.pool, keep_s=0.0)).tickets:
        pass
    without_ticket = await prune(pollers.db.pool, keep_s=0.0)

    assert bundle.output_ref is not None
    assert (with_ticket.jobs, list(with_ticket.result_refs)) == (0, [])
    assert (without_ticket.jobs, list(without_ticket.result_refs)) == (1, [bundle.output_ref])


@pytest.mark.parametrize(
    ("gates", "status"), [([], "DONE"), ([{"type": "schema", "schema": True}], "BLOCKED")], ids=["none", "one"]
)
async def test_an_output_in_a_file_that_nobody_has_passes_no_gate(
    pollers: TicketPollers, folder: Path, monkeypatch: pytest.MonkeyPatch, gates: list[Any], status: str
) -> None:
    monkeypatch.setattr(ticket_runner, "PASSES", 0)
    ticket = await pollers.scheduled(gates=gates)
    await pollers.first.runner.run_once()
    (folder / "elsewhere").mkdir()
    await finish_in_file(pollers, ticket.ticket_id, folder / "elsewhere")
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.output_bundles[0].output, trail.output_bundles[0].output_ref is not None) == (None, True)
    assert trail.ticket.status == status


async def test_an_output_in_a_file_elsewhere_is_left_to_the_node_that_has_it(
    pollers: TicketPollers, folder: Path
) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    there = PollerNode(pollers.db, pollers.engine, elsewhere, pollers.config, "there")
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await finish_in_file(pollers, ticket.ticket_id, elsewhere)

    await pollers.first.runner.run_once()
    await pollers.first.runner.run_once()
    claims = await pollers.claims()
    await there.runner.run_once()

    assert claims == 0
    bundle = (await pollers.trail(ticket.ticket_id)).output_bundles[0]
    assert (bundle.output, bundle.output_ref) == (msgspec.json.decode(LARGE), None)


# -- jobs that are not to be had ---------------------------------------------------------------------------------------


async def test_a_full_queue_makes_a_work_order_wait_and_not_fail(empty_db: Database, folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, limits=Limits(max_queued=1))
    async with ticket_pollers(empty_db, folder, config) as pollers:
        first, second = await pollers.scheduled(), await pollers.scheduled()
        await pollers.first.runner.run_once()
        waiting = await pollers.number("SELECT count(*) FROM jobs")
        await pollers.finish(first.ticket_id)
        await pollers.first.runner.run_once()
        await pollers.first.runner.run_once()
        await pollers.finish(second.ticket_id)
        await pollers.first.turn()
        await pollers.first.turn()

        assert waiting == 1
        assert {await pollers.status(ticket.ticket_id) for ticket in (first, second)} == {"DONE"}


async def test_a_job_that_retention_took_away_ends_the_run_in_error(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await pollers.finish(ticket.ticket_id)
    await prune(pollers.db.pool, keep_s=0, most=10)
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert trail.output_bundles[0].error == {
        "code": "gone_job",
        "message": f"job {trail.workorders[0].job_id} was deleted",
    }
    assert trail.ticket.status == "BLOCKED"


async def test_many_tickets_go_their_way_together(pollers: TicketPollers) -> None:
    """More than fit into one look of any poller."""
    tickets = [(await todo_ticket(pollers.db)).ticket_id for _ in range(130)]
    other = await new_ticket(pollers.db)
    for poller in (pollers.first.readiness, pollers.first.scheduler, pollers.first.runner):
        while await poller.run_once():
            pass
    for row in await pollers.db.pool.fetch("SELECT ticket_id FROM workorders"):
        await pollers.finish(row["ticket_id"])
    await pollers.first.runner.run_once()
    while await pollers.first.gate.run_once():
        pass

    rows = await pollers.db.pool.fetch("SELECT status, count(*) AS n FROM tickets GROUP BY 1 ORDER BY 1")
    assert [(row["status"], row["n"]) for row in rows] == [("DONE", len(tickets)), ("NEW", 1)]
    assert await pollers.status(other.ticket_id) == "NEW"


async def test_event_that_another_node_ends_before_it_is_claimed_is_left_without_a_claim(
    db: Database, folder: Path
) -> None:
    async with ticket_pollers(db, folder) as pollers:
        await pollers.ready()
        two = pollers.node("two")
        acquire_here = pollers.first.scheduler.claims.acquire

        async def acquire_late(event_ids: Sequence[UUID]) -> list[Claim]:
            await two.scheduler.run_once()
            return await acquire_here(event_ids)

        pollers.first.scheduler.claims.acquire = acquire_late  # type: ignore[assignment,method-assign]  # the other comes first

        await pollers.first.scheduler.run_once()

        assert await db.pool.fetchval("SELECT count(*) FROM leases WHERE resource_type = 'EVENT'") == 0
        assert len(pollers.first.scheduler.claims) == 0
