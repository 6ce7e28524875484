"""The table of the clock: each step of Postgres' clock against each thing that waits, lasts or is kept.

Each cell prepares its thing before the step, then looks twice: before any node has noticed the step, and after that.
Nothing is lost, deleted, expired, started early or run twice because of the step.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import pytest
from msgspec import structs

from jobd.auth.sessions import open_session, prune_sessions
from jobd.auth.table import create_token, read_tokens
from jobd.batches.table import NewBatch, create_batch, finish_batch, read_batch
from jobd.config.model import Config, Leases
from jobd.engine.results import Results
from jobd.files.storage import FileStorage
from jobd.files.table import NewStoredFile, create_file, list_files, prune_files, read_file
from jobd.job.model import Completed, NotClaimable
from jobd.job.retry import RetryPolicy
from jobd.lifecycle.admit import QueueLimits, admit
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import Existing, IdempotencyKey, enqueue
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import Release, release
from jobd.lifecycle.search import JobFilter, search_jobs
from jobd.maintenance.files import FileSweep
from jobd.maintenance.janitor import Janitor
from jobd.schedules.change import create as create_schedule
from jobd.schedules.definition import Definition
from jobd.schedules.fire import fire_due, plan_again_after_step_back
from jobd.schedules.table import read_schedule
from jobd.servers.connections import StoreLink
from jobd.store import ids
from jobd.store.ids import new_id
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.schedules.factories import occurrences_of
from tests.support import servers
from tests.support.claims import take_first
from tests.support.clock import TO_1970_S, TO_2056_S, set_clock
from tests.support.factories import completion, empty, failure, new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from jobd.lifecycle.enqueue import NewJob

#: How far the clock is off before and after each step, in seconds.
STEPS = {
    "1970 at the start, then today": (TO_1970_S, 0.0),
    "30 years ahead": (0.0, TO_2056_S),
    "an hour back": (0.0, -3600.0),
    "a day back": (0.0, -86_400.0),
}
#: Seconds that each wait of a cell lasts: longer than any test.
WAIT_S = 600.0
ABOUT_WAIT_S = pytest.approx(WAIT_S, abs=60)
LIMITS = {"default": QueueLimits(rate=1, rate_s=WAIT_S)}

#: With whether the step has been noticed.
Look: TypeAlias = Callable[[bool], Awaitable[None]]
Cell: TypeAlias = Callable[[Database, Path], Awaitable[Look]]


async def running_job(database: Database, _: Path) -> Look:
    await enqueue(database, [new_job()])
    (claimed,) = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=WAIT_S)

    async def look(is_noticed: bool) -> None:
        assert await reap(database.pool, policy=RetryPolicy()) == []
        other = Ask(job_id=claimed.job_id, enqueue_id=claimed.enqueue_id, owner_id="other")
        (answer,) = await claim(database.pool, [other], ttl_s=WAIT_S)
        assert isinstance(answer, NotClaimable)
        if is_noticed:
            assert await _left_s(database, "SELECT lease_expires_at AS at FROM leases") == [ABOUT_WAIT_S]

    return look


async def running_job_is_completed(database: Database, _: Path) -> Look:
    await enqueue(database, [new_job(), new_job()])
    claimed = await take_first(database.pool, ["default"], owner_id="w", most=2, ttl_s=WAIT_S)

    async def look(is_noticed: bool) -> None:
        (answer,) = await complete(database.pool, [completion(claimed.pop())])
        assert isinstance(answer, Completed)

    return look


async def delayed_job(database: Database, _: Path) -> Look:
    job = new_job(delay_s=WAIT_S)
    await enqueue(database, [job])
    return functools.partial(_waits, database, job, 1)


async def retry_with_backoff(database: Database, _: Path) -> Look:
    job = new_job()
    await enqueue(database, [job])
    claimed = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=WAIT_S)
    policy = RetryPolicy(base_s=WAIT_S, cap_s=WAIT_S)
    await fail(database.pool, [failure(claimed[0])], policy=policy, jitter=1.0)
    return functools.partial(_waits, database, job, 2)


async def snoozed_job(database: Database, _: Path) -> Look:
    job = new_job()
    await enqueue(database, [job])
    claimed = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=WAIT_S)
    await release(database.pool, [Release(**structs.asdict(claimed[0].held), delay_s=WAIT_S)])
    return functools.partial(_waits, database, job, 2)


async def schedule(database: Database, _: Path) -> Look:
    an_hour_ago = await database.pool.fetchval("SELECT clock(NULL) - interval '1 hour'")
    await create_schedule(database, "s", Definition(every="10m", task="chat"), actor="test", now=an_hour_ago)
    await fire_due(database, Config())

    async def look(is_noticed: bool) -> None:
        """At most one occurrence that the step has made late starts; none starts twice, or is planned to."""
        for _ in range(2):
            await fire_due(database, Config())
            await plan_again_after_step_back(database)
        started = await occurrences_of(database, "s")
        found = await read_schedule(database, "s")
        assert found is not None and found.occurrence not in started
        assert len(set(started)) == len(started) <= 2

    return look


async def retention(database: Database, data_dir: Path) -> Look:
    await enqueue(database, [new_job()])
    claimed = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=WAIT_S)
    await complete(database.pool, [completion(claimed[0])])
    batch_id = await _new_batch(database)
    await database.execute(
        "UPDATE batches SET status = 'cancelling', ending = 'cancelled', cancelling_at = clock(NULL)"
    )
    await finish_batch(database, batch_id, completed=0, failed=0, usage=None, output_file_id=None, error_file_id=None)
    config = Config()

    async def look(is_noticed: bool) -> None:
        sweep = FileSweep(database, FileStorage(data_dir), lambda: config)
        janitor = Janitor(database, Results(data_dir, lambda: config), lambda: config, files=sweep)
        swept = await janitor.run_once(Handle(lambda: None))
        assert (swept.jobs, swept.memories, swept.rollups) == (0, 0, 0)
        assert await read_batch(database, batch_id) is not None

    return look


async def idempotency_key(database: Database, _: Path) -> Look:
    def keyed() -> NewJob:
        return new_job(key=IdempotencyKey(principal="p", key="k", body_hash=b"body", life_s=86_400))

    job = keyed()
    await enqueue(database, [job])

    async def look(is_noticed: bool) -> None:
        assert await enqueue(database, [keyed()]) == [Existing(job.id)]

    return look


async def expiry_of_a_job(database: Database, _: Path) -> Look:
    taken, claimed = ([new_job(queue=queue, expires_in_s=WAIT_S) for _ in range(2)] for queue in ("taken", "claimed"))
    await enqueue(database, [*taken, *claimed])

    async def look(is_noticed: bool) -> None:
        """It is neither canceled nor kept from those who ask for it."""
        assert await expire(database) == []
        first = await take_first(database.pool, ["taken"], owner_id="w", most=1, ttl_s=WAIT_S)
        assert [job.job_id for job in first] == [taken.pop(0).id]
        (answer,) = await claim(
            database.pool, [Ask(job_id=claimed.pop(0).id, enqueue_id=1, owner_id="w")], ttl_s=WAIT_S
        )
        assert isinstance(answer, ClaimedJob)

    return look


async def rate_of_a_key(database: Database, data_dir: Path) -> Look:
    look = await rate_with_a_take_to_be_noted(database, data_dir)
    await admit(database, LIMITS)
    return look


async def rate_with_a_take_to_be_noted(database: Database, _: Path) -> Look:
    """Nobody has admitted since the take."""
    await enqueue(database, [new_job(limit_key="a") for _ in range(4)])
    assert await admit(database, LIMITS) == {"default"}
    assert len(await take_first(database.pool, ["default"], owner_id="w", most=4, ttl_s=WAIT_S)) == 1

    async def look(is_noticed: bool) -> None:
        await enqueue(database, [new_job(limit_key="a")])  # so that the key is looked at
        assert await admit(database, LIMITS) == set()
        if is_noticed:
            starts = f"SELECT started_at + make_interval(secs => {WAIT_S}) AS at FROM limit_starts"
            assert await _left_s(database, starts) == [ABOUT_WAIT_S]
            assert await _left_s(database, "SELECT next_at AS at FROM limit_keys") == [ABOUT_WAIT_S]

    return look


async def rate_with_a_take_that_is_noted_late(database: Database, data_dir: Path) -> Look:
    look = await rate_with_a_take_to_be_noted(database, data_dir)

    async def look_late(is_noticed: bool) -> None:
        if is_noticed:
            await look(is_noticed)

    return look_late


async def window_of_a_batch(database: Database, _: Path) -> Look:
    batch_id = await _new_batch(database)

    async def look(is_noticed: bool) -> None:
        batch = await read_batch(database, batch_id)
        assert batch is not None and not batch.is_over
        if is_noticed:
            assert await _left_s(database, "SELECT expires_at AS at FROM batches") == [ABOUT_WAIT_S]

    return look


async def expiry_of_a_file(database: Database, _: Path) -> Look:
    file_id = await _new_file(database)

    async def look(is_noticed: bool) -> None:
        assert await prune_files(database, most=9) == []
        assert await read_file(database, file_id) is not None
        for newest_first in (True, False):
            assert [file.id for file in await list_files(database, most=9, newest_first=newest_first)] == [file_id]
        if is_noticed:
            assert await _left_s(database, "SELECT expires_at AS at FROM files") == [ABOUT_WAIT_S]

    return look


async def token_and_session(database: Database, _: Path) -> Look:
    """Their ends are instants of the clock. A clock that is wrong takes neither away for good."""
    await set_clock(database.pool, 0.0)
    await database.clock.check()
    async with database.pool.acquire() as session:
        await create_token(
            session, "test", id="00000001", name="t", sha256=b"x" * 32, scopes=["client"], expires_days=30.0
        )
        await open_session(session, "secret", "00000001", "test")

    async def look(is_noticed: bool) -> None:
        assert await prune_sessions(database) == 0
        assert [row.name for row in await read_tokens(database)] == ["t"]

    return look


CELLS: tuple[Cell, ...] = (
    running_job,
    running_job_is_completed,
    delayed_job,
    retry_with_backoff,
    snoozed_job,
    schedule,
    retention,
    idempotency_key,
    expiry_of_a_job,
    rate_of_a_key,
    rate_with_a_take_to_be_noted,
    rate_with_a_take_that_is_noted_late,
    window_of_a_batch,
    expiry_of_a_file,
    token_and_session,
)


@pytest.mark.parametrize("step", STEPS)
async def test_no_step_changes_what_becomes_of_anything(shared_postgres: str, tmp_path: Path, step: str) -> None:
    before_s, after_s = STEPS[step]
    wrong = list[str]()
    url = await new_database(shared_postgres)
    for cell in CELLS:
        database = Database(url, 4)
        async with database.opened():
            await empty(database)
            await set_clock(database.pool, before_s)
            await database.clock.check()
            look = await cell(database, tmp_path)
            await set_clock(database.pool, after_s)
            for is_noticed in (False, True):
                try:
                    await look(is_noticed)
                except AssertionError as error:
                    wrong.append(f"{cell.__name__}, {'noticed' if is_noticed else 'not noticed yet'}: {error}")
                await database.clock.check()
    assert wrong == []


# Under load


async def test_jobs_of_busy_workers_run_once_over_all_steps(shared_postgres: str, folder: Path) -> None:
    url, number = await new_database(shared_postgres), 150
    done: list[UUID] = []
    config = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3))
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, config).running() as node, anyio.create_task_group() as tasks:

            async def work() -> None:
                while True:
                    for claimed in await node.dispatcher.take(("default",), f"test-{new_id()}", 1):
                        hold = node.leases.hold(claimed)
                        await anyio.sleep(0.1)
                        assert not hold.lost.is_set()
                        assert isinstance(await node.done(claimed), Completed)
                        node.leases.let_go(hold)
                        done.append(claimed.job_id)

            jobs = [await node.enqueue() for _ in range(number)]
            for _ in range(8):
                tasks.start_soon(work)
            for off_by_s in (TO_1970_S, 0.0, TO_2056_S, -3600.0, -86_400.0, 0.0):
                await set_clock(node.database.pool, off_by_s)
                await anyio.sleep(0.4)
            await wait_until_async(lambda: len(done) >= number)
            rows = await node.database.pool.fetch("SELECT DISTINCT status, attempt_no FROM jobs")
            assert [tuple(row) for row in rows] == [("done", 1)]
            tasks.cancel_scope.cancel()
    assert sorted(done) == sorted(job.id for job in jobs)


# Parts of cells


async def _waits(database: Database, job: NewJob, enqueue_id: int, is_noticed: bool) -> None:
    """Nobody gets the job, by its time or by a message that came early."""
    assert await promote_due(database.pool) == []
    (answer,) = await claim(database.pool, [Ask(job_id=job.id, enqueue_id=enqueue_id, owner_id="early")], ttl_s=WAIT_S)
    assert isinstance(answer, NotClaimable)
    if is_noticed:
        assert await _left_s(database, "SELECT due_at AS at FROM jobs") == [ABOUT_WAIT_S]


async def _left_s(database: Database, instants: str) -> list[float]:
    """Seconds from now to each of these by Postgres' clock."""
    rows = await database.fetch(f"SELECT extract(epoch FROM at - clock(NULL))::float8 AS s FROM ({instants}) AS i")
    return [row["s"] for row in rows]


async def _new_file(database: Database) -> UUID:
    file_id = new_id()
    file = NewStoredFile(
        id=file_id, owner=None, filename="f", purpose="batch", bytes=1, ref=f"files/{file_id}", keep_s=WAIT_S
    )
    await create_file(database, file)
    return file_id


async def _new_batch(database: Database) -> UUID:
    batch = NewBatch(
        id=new_id(),
        owner=None,
        endpoint="/v1/chat/completions",
        input_file_id=await _new_file(database),
        metadata=None,
        keep_output_s=None,
        window_s=WAIT_S,
    )
    assert await create_batch(database, batch)
    return batch.id


# The next start


async def test_ids_made_after_a_start_in_1970_follow_those_made_before(
    shared_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists and cursors go by ids: a job of now must not be listed behind those of years."""
    database = Database(await new_database(shared_postgres), 4)
    monkeypatch.setattr(ids, "_last", 0)
    jobs = [new_job()]
    async with _started(database):
        await enqueue(database, jobs)
        await set_clock(database.pool, TO_1970_S)

    monkeypatch.setattr(ids, "_last", 0)  # as in a new process
    monkeypatch.setattr(time, "time_ns", lambda: 300 * 10**9)
    async with _started(database):
        jobs += [new_job(), new_job()]
        await enqueue(database, jobs[1:])
        newest = await search_jobs(database, JobFilter(), most=2)
        rest = await search_jobs(database, JobFilter(), before=newest.next_before)

    found = [job.id for page in (newest, rest) for job in page.jobs]
    assert found == [job.id for job in reversed(jobs)]


@contextlib.asynccontextmanager
async def _started(database: Database) -> AsyncIterator[None]:
    """The service that opens the database of a jobd."""
    ready = anyio.Event()
    handle = Handle(ready.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(StoreLink(database, 4).run, handle)
        with anyio.fail_after(30):
            await ready.wait()
        yield
        handle.stop.set()
