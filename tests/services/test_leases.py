"""Leases by the clock of their holder: it stops before a lease ends, whatever becomes of claims and renewals."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import msgspec
import pytest

from jobd.config.model import Config, Leases
from jobd.engine.engine import Engine
from jobd.leases.jobs import JobLeases
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.take import stray_claims
from jobd.store.leader import OwnerNames
from jobd.store.migrate import migrate
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from jobd.tasks.mock import MockRunner
from jobd.tickets.pollers.claims import ClaimKeeper
from jobd.worker.claims import RemoteClaims
from jobd.worker.engine import RemoteEngine
from jobd.worker.session import WorkerSession
from tests.client.test_client_faults import Puppet, ScriptedAnswer
from tests.services.test_remote_calls import claimed, job, taken_from
from tests.support.claims import take_any
from tests.support.factories import new_job
from tests.support.node import new_database
from tests.support.proxy import proxy
from tests.support.running_slots import CONFIG, running_slots
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: A renewal that hangs is given up after almost half of the lease: what asks the clock only then is too late.
LEASES = Leases(ttl_s=4, heartbeat_s=1.3)
SHORT = Config(leases=LEASES)


@pytest.fixture
async def url(shared_postgres: str) -> str:
    return await new_database(shared_postgres)


@contextlib.asynccontextmanager
async def running_engine(url: str, config: Config = SHORT) -> AsyncIterator[tuple[Engine, Database]]:
    database = Database(url, 4)
    engine = Engine(database, lambda: config)
    async with database.opened(), anyio.create_task_group() as tasks:
        async with database.pool.acquire() as connection:
            await migrate(connection)
        tasks.start_soon(engine.run, Handle(lambda: None))
        yield engine, database
        tasks.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def locked(url: str, query: str, *arguments: object) -> AsyncIterator[None]:
    """Whoever writes to these rows or this table waits."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "jobd"})
    try:
        async with connection.transaction():
            await connection.execute(query, *arguments)
            yield
    finally:
        await connection.close()


async def until_someone_waits_for_a_lock(database: Database) -> None:
    async def waits() -> object:
        return await database.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

    await wait_until_async(waits)


async def claim(engine: Engine) -> ClaimedJob:
    job = new_job()
    await engine.enqueue(job)
    (answer,) = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="test")])
    assert isinstance(answer, ClaimedJob), answer
    return answer


# -- renewals that hang ------------------------------------------------------------------------------------------------


async def test_slot_is_stopped_before_its_lease_ends_though_renewals_hang(url: str) -> None:
    async with running_engine(url) as (engine, database), anyio.create_task_group() as tasks:
        leases = JobLeases(engine, lambda: SHORT)
        tasks.start_soon(leases.run, Handle(lambda: None))
        began = time.monotonic()
        held = await claim(engine)
        hold, stopped_at = leases.hold(held), []
        hold.on_stop = lambda: stopped_at.append(time.monotonic())

        async with locked(url, "SELECT FROM leases WHERE resource_id = $1 FOR UPDATE", held.job_id):
            await until_someone_waits_for_a_lock(database)
            with anyio.fail_after(30):
                await hold.lost.wait()

        assert began + LEASES.ttl_s / 2 < stopped_at[0] < began + LEASES.ttl_s
        tasks.cancel_scope.cancel()


async def test_lease_that_was_lost_is_never_taken_for_a_claim_whose_answer_was_lost(url: str) -> None:
    async with running_engine(url) as (engine, database):
        leases = JobLeases(engine, lambda: SHORT)
        holds = [leases.hold(await claim(engine)) for _ in range(2)]
        leases.lose(holds[0])

        leases.let_go(*holds)

        strays = await stray_claims(database, "test", leases.tokens())
        assert [stray.job_id for stray in strays] == [holds[1].job.job_id]


async def test_ticket_claim_is_lost_before_it_ends_though_renewals_hang(url: str) -> None:
    async with running_engine(url) as (_, database), anyio.create_task_group() as tasks:
        claims = ClaimKeeper(database, "EVENT", OwnerNames("test"), lambda: SHORT)
        tasks.start_soon(claims.keep_renewing)
        began = time.monotonic()
        (ticket_claim,) = await claims.acquire([uuid.uuid4()])
        lost, stopped_at = anyio.Event(), []

        def on_lost() -> None:
            stopped_at.append(time.monotonic())
            lost.set()

        ticket_claim.on_stop = on_lost
        async with locked(url, "SELECT FROM leases WHERE resource_id = $1 FOR UPDATE", ticket_claim.resource_id):
            await until_someone_waits_for_a_lock(database)
            with anyio.fail_after(30):
                await lost.wait()

        assert began + LEASES.ttl_s / 2 < stopped_at[0] < began + LEASES.ttl_s
        assert len(claims) == 0
        tasks.cancel_scope.cancel()


async def test_remote_worker_is_stopped_before_its_lease_ends_though_jobd_falls_silent() -> None:
    short = {**job(), "lease_ttl_seconds": 4, "heartbeat_interval_seconds": 1.3}
    swallowed = [ScriptedAnswer(200, {"jobs": []})] * 10
    with (
        Puppet(claimed(short), *swallowed).serving() as puppet,
        proxy(lambda: puppet.url.removeprefix("http://")) as line,
    ):
        async with WorkerSession(line.url, None) as session, anyio.create_task_group() as tasks:
            engine = RemoteEngine(session, "w-1")
            claims = RemoteClaims(session, "w-1", ["default"], release=engine.release)
            leases = JobLeases(engine, lambda: Config(leases=claims.leases or Leases()))
            tasks.start_soon(leases.run, Handle(lambda: None))
            began = time.monotonic()
            hold, stopped_at = leases.hold(await taken_from(claims)), []
            hold.on_stop = lambda: stopped_at.append(time.monotonic())

            line.is_silent = True
            with anyio.fail_after(30):
                await hold.lost.wait()

            assert began + LEASES.ttl_s / 2 < stopped_at[0] < began + LEASES.ttl_s
            tasks.cancel_scope.cancel()


async def test_lease_that_is_renewed_is_kept_for_longer_than_it_lasts(url: str) -> None:
    config = Config(leases=Leases(ttl_s=2, heartbeat_s=0.3))
    async with running_engine(url, config) as (engine, database), anyio.create_task_group() as tasks:
        leases = JobLeases(engine, lambda: config)
        tasks.start_soon(leases.run, Handle(lambda: None))
        hold = leases.hold(await claim(engine))

        await anyio.sleep(2.5)

        assert not hold.lost.is_set()
        expires_at = await database.pool.fetchval("SELECT lease_expires_at - clock_timestamp() FROM leases")
        assert expires_at.total_seconds() > 0
        tasks.cancel_scope.cancel()


# -- claims that are answered late -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["by message", "by poll"])
async def test_lease_counts_from_when_its_claim_was_sent(url: str, way: str) -> None:
    async with running_engine(url) as (engine, database), anyio.create_task_group() as tasks:
        waiting = new_job()
        await engine.enqueue(waiting)
        got: list[ClaimedJob] = []

        async def take() -> None:
            if way == "by poll":
                got.extend(await take_any(engine, "default", 1))
            else:
                answers = await engine.claim([Ask(job_id=waiting.id, enqueue_id=1, owner_id="test")])
                got.extend(answer for answer in answers if isinstance(answer, ClaimedJob))

        async with locked(url, "LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE"):
            asked_at = time.monotonic()
            tasks.start_soon(take)
            await until_someone_waits_for_a_lock(database)
            answered_at = time.monotonic()

        await wait_until_async(lambda: bool(got))
        assert asked_at <= got[0].sent_at <= answered_at
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("after_ms", "since"), [(0, "sent"), (60_000, "arrived"), (None, "arrived"), (-5, "sent")])
async def test_remote_worker_counts_from_when_jobd_claimed(after_ms: int | None, since: str) -> None:
    """As far as it can know: never from later than the answer, nor from before its own call."""
    said = claimed(job())
    if after_ms is not None:
        said = ScriptedAnswer(200, {**said.body, "claimed_after_ms": after_ms})
    with Puppet(said).serving() as puppet:
        async with WorkerSession(puppet.url, None) as session:
            claims = RemoteClaims(session, "w-1", ["default"], release=RemoteEngine(session, "w-1").release)
            called_at: list[float] = []
            post = session.post_at_once

            async def noting(*arguments: Any, **more: Any) -> Any:
                called_at.append(time.monotonic())
                answer: Any = await post(*arguments, **more)
                called_at.append(time.monotonic())
                return answer

            session.post_at_once = noting  # type: ignore[method-assign]  # to know when it is called

            taken = await taken_from(claims)

    assert (taken.sent_at <= called_at[0]) == (since == "sent")
    assert (taken.sent_at >= called_at[1]) == (since == "arrived")


async def test_ticket_claim_that_was_answered_too_late_is_released_at_once(url: str) -> None:
    brief = Config(leases=Leases(ttl_s=1, heartbeat_s=0.3))
    async with running_engine(url) as (_, database), anyio.create_task_group() as tasks:
        claims = ClaimKeeper(database, "EVENT", OwnerNames("test"), lambda: brief)
        got: list[object] = ["not answered"]

        async def acquire() -> None:
            got[:] = await claims.acquire([uuid.uuid4()])

        async with locked(url, "LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE"):
            tasks.start_soon(acquire)
            await until_someone_waits_for_a_lock(database)
            await anyio.sleep(1)

        await wait_until_async(lambda: got != ["not answered"])
        assert (got, len(claims)) == ([], 0)
        assert await database.pool.fetchval("SELECT count(*) FROM leases") == 0


async def test_job_whose_lease_is_over_before_it_begins_is_handed_back_and_not_run(
    shared_postgres: str, folder: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, leases=Leases(ttl_s=3, heartbeat_s=1))
    submitted: list[uuid.UUID] = []
    async with running_slots(shared_postgres, folder, {"chat": MockRunner()}, config) as slots:

        async def submit() -> (
            None
        ):  # the commit that enqueues may be the one that takes, and then waits for the lock too
            submitted.append(await slots.submit({"seconds": 0, "tokens": 0}, max_attempts=1))

        async with anyio.create_task_group() as tasks:
            async with locked(slots.node.database.url, "LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE"):
                tasks.start_soon(submit)
                await until_someone_waits_for_a_lock(slots.node.database)
                await anyio.sleep(3)

        (job_id,) = submitted
        await slots.wait_for_status(job_id, "done", "error")

        assert await slots.outcomes(job_id) == ["released", "done"]


# -- two nodes ---------------------------------------------------------------------------------------------------------


async def test_of_two_nodes_the_second_begins_after_the_first_was_stopped(shared_postgres: str, folder: Path) -> None:
    """The line of the first to Postgres hangs; the second has none but the lease's end to go by."""
    url = await new_database(shared_postgres)
    async with running_engine(url) as (first, _), anyio.create_task_group() as tasks:
        leases = JobLeases(first, lambda: SHORT)
        tasks.start_soon(leases.run, Handle(lambda: None))
        held = await claim(first)
        hold, stopped_at = leases.hold(held), []
        hold.on_stop = lambda: stopped_at.append(time.monotonic())
        stuck = anyio.Event()
        first.heartbeat = lambda beats: stuck.wait()  # type: ignore[assignment,method-assign,return-value]

        async with running_engine(url) as (second, _):
            again: list[object] = []
            ask = Ask(job_id=held.job_id, enqueue_id=1, owner_id="second")
            while not any(isinstance(answer, ClaimedJob) for answer in again):
                again = list(await second.claim([ask]))
                await anyio.sleep(0.02)
            began_at = time.monotonic()

        assert stopped_at
        assert stopped_at[0] < began_at
        tasks.cancel_scope.cancel()
