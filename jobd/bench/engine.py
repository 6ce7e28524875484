"""`jobd bench engine`: the verbs against Postgres alone, beside the least that the same rows cost on the same server.

Rounds of floor and engine take turns at every batch size, because a machine is seldom equally fast for long; the median
of the rounds counts. A round keeps calling for a while with new jobs, then claims all of them, then completes them, so
that the queue is as deep as what fits in the time. Only the calls are timed, not the making of their arguments.

The jobs are like a daemon's, with spec hash, message and outcome hash, so that every index and column is paid for.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from hashlib import sha256
from time import perf_counter, process_time
from typing import TYPE_CHECKING, TypeVar

import anyio

from jobd.bench.report import (
    BatchRates,
    EngineReport,
    Profile,
    load_average,
    machine,
    row,
    side_figure,
)
from jobd.bench.server import QUEUE, server
from jobd.job.model import Completed
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.enqueue import Created, NewJob, enqueue
from jobd.store.ids import new_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Connection

INSERT_FLOOR = statement("insert_floor", "jobd.bench")
UPDATE_FLOOR = statement("update_floor", "jobd.bench")
COMMIT_ONE_ROW = statement("commit_one_row", "jobd.bench")

#: Numbers of jobs in one statement that are measured, one line each.
BATCHES = (1, 10, 100, 500, 1000)
#: The size of `--profile` and of the line with two connections: what a busy daemon's calls are like.
TYPICAL = 500
#: Never reached; there, so that the limit is checked as it is in a daemon.
MAX_QUEUED = 100_000_000
#: Lease time in seconds; longer than a round, so that no lease ends in it.
TTL_S = 60.0
PAYLOAD = '{"prompt": "What a small job carries", "temperature": 0.7, "max_tokens": 256}'
RESULT = '{"text": "and what it brings back", "tokens": 42}'
HASH = sha256(RESULT.encode()).digest()
#: Functions in the profile that is printed.
PROFILE_LINES = 20

T = TypeVar("T")


class Spent:
    """Time spent waiting for one kind of call."""

    def __init__(self) -> None:
        self.s = 0.0

    async def on(self, call: Awaitable[T]) -> T:
        started = perf_counter()
        answer = await call
        self.s += perf_counter() - started
        return answer


async def measure(url: str | None, seconds: float, rounds: int, progress: Callable[[str], None]) -> EngineReport:
    """All figures; each of them is measured for about `seconds` in every round."""
    load = load_average()
    progress("starting")
    async with server(url) as where:
        await warm_up(where.databases)
        rates: dict[int, list[BatchRates]] = {batch: [] for batch in BATCHES}
        commits: list[float] = []
        together: list[float] = []
        for number in range(1, rounds + 1):
            for batch in BATCHES:
                progress(f"round {number} of {rounds}: batches of {batch}")
                rates[batch].append(await compare(where.databases[0], batch, seconds))
            progress(f"round {number} of {rounds}: two connections")
            together.append(await rate_together(where.databases, seconds))
            commits.append(await rate_of_commits(where.databases[0], seconds))
        progress("cleaning up")
    progress("")
    return EngineReport(
        **machine(load),
        server=where.name,
        seconds=seconds,
        batches=[row(batch, figures) for batch, figures in rates.items()],
        two_connections=side_figure(together),
        commits=side_figure(commits),
    )


async def warm_up(databases: Sequence[Database]) -> None:
    """Prepare every statement on every connection."""
    for database in databases:
        await compare(database, 10, 0.0)
        await rate_of_commits(database, 0.0)


async def compare(database: Database, batch: int, seconds: float) -> BatchRates:
    async with database.pool.acquire() as connection:
        insert, update = await floor_rates(connection, batch, seconds)
    jobs, enqueue_s, claim_s, complete_s = await engine_times(database, batch, seconds)
    return BatchRates(
        insert=insert,
        update=update,
        enqueue=jobs / enqueue_s,
        claim=jobs / claim_s,
        complete=jobs / complete_s,
        claim_complete=jobs / (claim_s + complete_s),
        lifecycle=jobs / (enqueue_s + claim_s + complete_s),
    )


async def floor_rates(connection: Connection, batch: int, seconds: float) -> tuple[float, float]:
    inserting, updating = Spent(), Spent()
    inserted: list[list[UUID]] = []
    payloads, results = [PAYLOAD] * batch, [RESULT] * batch
    while not inserted or inserting.s < seconds:
        ids = new_ids(batch)
        await inserting.on(connection.execute(INSERT_FLOOR, ids, payloads))
        inserted.append(ids)
    for ids in inserted:
        await updating.on(connection.execute(UPDATE_FLOOR, ids, results))
    rows = batch * len(inserted)
    return rows / inserting.s, rows / updating.s


async def engine_times(database: Database, batch: int, seconds: float) -> tuple[int, float, float, float]:
    """How many jobs went through, and how long all of them took to enqueue, to claim and to complete."""
    enqueuing, claiming, completing = Spent(), Spent(), Spent()
    queued: list[list[Ask]] = []
    claimed: list[list[Completion]] = []
    while not queued or enqueuing.s < seconds:
        jobs = new_jobs(batch)
        all_of(Created, await enqueuing.on(enqueue(database, jobs, max_queued=MAX_QUEUED)))
        queued.append(asks_for(jobs))
    for asks in queued:
        answers = await claiming.on(claim(database, asks, ttl_s=TTL_S))
        claimed.append(completions_of(all_of(ClaimedJob, answers)))
    for completions in claimed:
        all_of(Completed, await completing.on(complete(database, completions)))
    return batch * len(queued), enqueuing.s, claiming.s, completing.s


async def rate_together(databases: Sequence[Database], seconds: float) -> float:
    """Jobs per second through their whole life, with every connection at work on jobs of its own."""
    done = 0

    async def work(database: Database) -> None:
        nonlocal done
        while not done or perf_counter() < until:
            await live(database, TYPICAL)
            done += TYPICAL

    started = perf_counter()
    until = started + seconds
    async with anyio.create_task_group() as tasks:
        for database in databases:
            tasks.start_soon(work, database)
    return done / (perf_counter() - started)


async def live(database: Database, batch: int) -> None:
    """One batch through its whole life."""
    jobs = new_jobs(batch)
    all_of(Created, await enqueue(database, jobs, max_queued=MAX_QUEUED))
    claimed = all_of(ClaimedJob, await claim(database, asks_for(jobs), ttl_s=TTL_S))
    all_of(Completed, await complete(database, completions_of(claimed)))


async def rate_of_commits(database: Database, seconds: float) -> float:
    committing, commits = Spent(), 0
    async with database.pool.acquire() as connection:
        while not commits or committing.s < seconds:
            await committing.on(connection.execute(COMMIT_ONE_ROW, commits))
            commits += 1
    return commits / committing.s


async def profile(url: str | None, seconds: float) -> Profile:
    """Where this process spends its time on lifecycles in batches of TYPICAL."""
    async with server(url) as where:
        database = where.databases[0]
        await warm_up([database])
        started, busy = perf_counter(), process_time()
        await rate_together([database], seconds)
        share = (process_time() - busy) / (perf_counter() - started)
        with cProfile.Profile() as profiler:
            await rate_together([database], seconds)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(PROFILE_LINES)
    return Profile(batch=TYPICAL, python=share, busiest=text.getvalue().strip().splitlines())


# -- what the calls get and must give back --------------------------------------------------------------------------


def new_jobs(count: int) -> list[NewJob]:
    return [
        NewJob(
            id=job_id,
            task="bench",
            queue=QUEUE,
            payload=PAYLOAD,
            max_attempts=3,
            timeout_s=60.0,
            ttl_s=3600,
            spec_hash=sha256(job_id.bytes).digest(),
        )
        for job_id in new_ids(count)
    ]


def asks_for(jobs: Sequence[NewJob]) -> list[Ask]:
    return [
        Ask(job_id=job.id, enqueue_id=1, owner_id="bench", stream=QUEUE, message_id="1700000000000-0") for job in jobs
    ]


def completions_of(jobs: Sequence[ClaimedJob]) -> list[Completion]:
    return [
        Completion(
            job_id=job.job_id,
            attempt_id=job.attempt_id,
            lease_token=job.lease_token,
            result=RESULT,
            outcome_hash=HASH,
        )
        for job in jobs
    ]


def all_of(kind: type[T], answers: Sequence[object]) -> list[T]:
    """A refusal is fast and would flatter the figures."""
    expected = [answer for answer in answers if isinstance(answer, kind)]
    if len(expected) != len(answers):
        refusal = next(answer for answer in answers if not isinstance(answer, kind))
        raise RuntimeError(f"the benchmark's own jobs were disturbed: {refusal!r} instead of {kind.__name__}")
    return expected
