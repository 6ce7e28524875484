"""The engine on a real Postgres: callers share commits, a bad one fails alone, a lost connection loses nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import anyio
import asyncpg
import msgspec
import pytest

from jobd.config.model import Config
from jobd.engine import engine as engine_module
from jobd.engine.engine import Engine
from jobd.errors import ServerDown
from jobd.job.model import AlreadyFinished, Completed, Requeued
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, KeyBusy, NewJob
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.read import queue_stats, read_jobs
from jobd.lifecycle.report import Held
from jobd.store.ids import new_id, new_ids
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.support.claims import take_any
from tests.support.factories import new_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.daemon import Jobd


@contextlib.asynccontextmanager
async def running_engine(url: str) -> AsyncIterator[tuple[Engine, Database]]:
    database = Database(url, 4)
    engine = Engine(database, Config)
    handle = Handle(lambda: None)
    async with database.opened(), anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run, handle)
        yield engine, database
        handle.stop.set()


@pytest.fixture
async def engine(shared_postgres: str) -> AsyncIterator[Engine]:
    async with running_engine(shared_postgres) as (engine, _):
        yield engine


async def gather(*calls: Callable[[], object]) -> list[object]:
    """Run calls at the same time; what each returned or raised, in order."""
    answers: list[object] = [None] * len(calls)

    async def run(n: int) -> None:
        try:
            answers[n] = await calls[n]()  # type: ignore[misc]  # each returns an awaitable
        except Exception as error:
            answers[n] = error

    async with anyio.create_task_group() as tasks:
        for n in range(len(calls)):
            tasks.start_soon(run, n)
    return answers


async def test_many_callers_get_their_own_answers(engine: Engine) -> None:
    jobs = [new_job() for _ in range(300)]

    answers = await gather(*[lambda job=job: engine.enqueue(job) for job in jobs])

    assert answers == [Created(job.id) for job in jobs]


async def test_bad_item_fails_alone(engine: Engine) -> None:
    good, bad = [new_job() for _ in range(20)], new_job(payload='{"text": "\\u0000"}')

    answers = await gather(*[lambda job=job: engine.enqueue(job) for job in [*good[:10], bad, *good[10:]]])

    assert [answer for n, answer in enumerate(answers) if n != 10] == [Created(job.id) for job in good]
    assert isinstance(answers[10], Exception)


async def test_one_key_from_fifty_callers_makes_one_job(engine: Engine) -> None:
    key = IdempotencyKey("me", f"key-{new_id()}", b"hash", 600)
    jobs = [msgspec.structs.replace(new_job(), key=key) for _ in range(50)]

    answers = await gather(*[lambda job=job: engine.enqueue(job) for job in jobs])

    assert sum(isinstance(answer, Created) for answer in answers) == 1
    assert sum(isinstance(answer, Existing) for answer in answers) == 49
    assert len({answer.job_id for answer in answers if isinstance(answer, (Created, Existing))}) == 1


async def test_job_goes_from_enqueue_to_done(engine: Engine) -> None:
    job = new_job()
    await engine.enqueue(job)

    (claimed,) = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="test")])
    assert isinstance(claimed, ClaimedJob)
    (renewed,) = await engine.heartbeat([LeaseProof(resource_id=job.id, lease_token=claimed.lease_token)])
    report = Completion(
        job_id=job.id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result='{"ok": true}'
    )
    first = await engine.complete(report)
    again = await engine.complete(report)

    assert isinstance(renewed, Renewal)
    assert first == Completed()
    assert isinstance(again, AlreadyFinished)


async def test_released_job_is_claimed_by_poll(engine: Engine) -> None:
    queue = f"q{new_id().hex}"
    job = new_job(queue=queue)
    await engine.enqueue(job)
    (claimed,) = await take_any(engine, queue, 10)

    released = await engine.release(Held(job_id=job.id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token))
    (again,) = await take_any(engine, queue, 10)

    assert isinstance(released, Requeued)
    assert (again.attempt_no, again.attempt_count) == (2, 1)


async def test_locked_key_delays_nobody_but_its_own_caller(
    shared_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "KEY_BUSY_S", 60.0)
    keyed = [
        msgspec.structs.replace(new_job(), key=IdempotencyKey("p", f"k{n}-{new_id()}", b"1", 60)) for n in range(9)
    ]
    locked, *others = keyed
    dead = await asyncpg.connect(shared_postgres)  # a node that died between booking its keys and its commit
    transaction = dead.transaction()
    await transaction.start()
    assert locked.key is not None
    await dead.execute(
        "INSERT INTO jobd.idempotency_keys (principal, key, job_id, body_hash, expires_at)"
        " VALUES ($1, $2, $3, $4, now() + interval '1 hour')",
        *(locked.key.principal, locked.key.key, locked.id, locked.key.body_hash),
    )
    answers: list[object] = []

    async with running_engine(shared_postgres) as (engine, _), anyio.create_task_group() as tasks:

        async def enqueue_locked() -> None:
            answers.append(await engine.enqueue(locked))

        tasks.start_soon(enqueue_locked)
        with anyio.fail_after(20):  # less than any lock timeout of Postgres
            for _ in range(3):
                async with anyio.create_task_group() as together:
                    for job in [*others, new_job()]:
                        together.start_soon(engine.enqueue, msgspec.structs.replace(job, id=new_id()))
        assert answers == []
        await transaction.rollback()

    assert answers == [Created(locked.id)]
    await dead.close()


async def test_whole_batch_with_a_locked_key_is_refused_whole(shared_postgres: str) -> None:
    jobs = [msgspec.structs.replace(new_job(), key=IdempotencyKey("p", str(new_id()), b"1", 60)) for _ in range(3)]
    async with running_engine(shared_postgres) as (engine, database):
        await engine.enqueue_whole(jobs)
        async with database.pool.acquire() as other, other.transaction():
            await other.execute("SELECT FROM idempotency_keys WHERE job_id = $1 FOR UPDATE", jobs[1].id)

            again = [msgspec.structs.replace(job, id=new_id()) for job in jobs]
            answers = await engine.enqueue_whole(again)

    assert answers == [Existing(jobs[0].id), KeyBusy(), Existing(jobs[2].id)]


@pytest.mark.timeout(180)
async def test_kills_of_postgres_lose_no_answer_and_no_job(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd(JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    jobs = [new_job() for _ in range(3000)]
    answers: list[object] = []

    async def enqueue_some(engine: Engine, some: list[NewJob]) -> None:
        for job in some:
            answer = await engine.enqueue(job)
            answers.append(answer)

    async with running_engine(daemon.addresses["DATABASE_URL"]) as (engine, database):
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(enqueue_some, engine, jobs[n::20])
            for _ in range(3):
                seen = len(answers)
                while len(answers) < min(seen + 300, 2900):
                    await anyio.sleep(0.005)
                with contextlib.suppress(LookupError, ProcessLookupError):
                    os.kill(daemon.server_pid("postgres"), signal.SIGKILL)
        kept = await read_jobs(database.pool, [job.id for job in jobs])
        stats = await queue_stats(database.pool)

    assert len(answers) == 3000
    assert {type(answer) for answer in answers} == {Created}
    assert set(kept) == {job.id for job in jobs}
    assert stats[0].queued == 3000


@pytest.mark.timeout(180)
async def test_kills_of_postgres_finish_no_job_twice(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd(JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    done: list[object] = []

    async def work(engine: Engine, owner: str) -> None:
        while len(done) < 600:
            claimed = await take(engine, owner)
            with contextlib.suppress(ServerDown):
                claimed += await take_any(engine, "default", 2, owner)
            for job in claimed:
                report = Completion(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token)
                done.append(await engine.complete(report))

    pending: list[NewJob] = []

    async def take(engine: Engine, owner: str) -> list[ClaimedJob]:
        some, pending[:5] = pending[:5], []
        found = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id=owner) for job in some])
        return [answer for answer in found if isinstance(answer, ClaimedJob)]

    async with running_engine(daemon.addresses["DATABASE_URL"]) as (engine, database):
        pending += [new_job() for _ in range(1200)]
        await engine.enqueue_whole(pending)
        async with anyio.create_task_group() as tasks:
            for owner in new_ids(8):
                tasks.start_soon(work, engine, str(owner))
            for target in (100, 300):
                while len(done) < target:
                    await anyio.sleep(0.005)
                with contextlib.suppress(LookupError, ProcessLookupError):
                    os.kill(daemon.server_pid("postgres"), signal.SIGKILL)
        finished = await database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'")
        attempts = await database.pool.fetchval("SELECT count(*) FROM attempts WHERE outcome = 'done'")

    assert all(isinstance(answer, (Completed, AlreadyFinished)) for answer in done)
    assert finished == attempts == len(done)
