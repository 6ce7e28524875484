"""`jobd bench e2e`: jobs all the way (insert, relay, stream, claim, complete, event, ack), beside what the parts cost.

Rounds of floors and jobs take turns; the median counts. The floors are what no job system on these two servers can do
without: one INSERT and two UPDATEs of a narrow row in Postgres, and XADD, XREADGROUP, XACK and XDEL in Redis, all in
batches like ours and one after the other. The latency is that of single jobs on an otherwise idle node, from the call
that enqueues one to the moment a waiting consumer has it.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec.structs import asdict

from jobd.bench.engine import PAYLOAD, RESULT
from jobd.bench.node import throw_away_node
from jobd.bench.report import Machine, load_average, machine, medians, percentiles_ms
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.enqueue import NewJob
from jobd.store.ids import new_id, new_ids
from jobd.store.statements import statement
from jobd.wire.canonical import spec_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.serve.tree import Node

MAKE_FLOOR_TABLES = statement("make_floor_tables", "jobd.bench")
INSERT_FLOOR = statement("insert_floor", "jobd.bench")
UPDATE_FLOOR = statement("update_floor", "jobd.bench")

#: Jobs of one insert, rows and messages of one floor call: what the engine batches at most.
BATCH = 500
#: Coroutines that take and complete jobs.
CONSUMERS = 8
#: Jobs that each consumer takes at once.
TAKES = 125
QUEUES = ("default",)
#: Single jobs whose latency is measured, in each round.
SINGLES = 200
#: Seconds between two single jobs, so that the node is idle again, and between two checks of the outbox.
PAUSE_S = 0.005
#: Functions in the profile that is printed.
PROFILE_LINES = 25


class E2eRound(msgspec.Struct, frozen=True, kw_only=True):
    #: Jobs per second, until the last is finished and published.
    jobs: float
    #: Floors, rows and messages per second.
    postgres: float
    redis: float
    #: From enqueue to start, in ms.
    p50_ms: float
    p99_ms: float
    #: CPU of this process per job, in us; the servers have theirs.
    python_us: float


class E2eReport(Machine, frozen=True, kw_only=True):
    jobs: int
    median: E2eRound
    rounds: list[E2eRound]


async def measure(jobs: int, rounds: int, progress: Callable[[str], None]) -> E2eReport:
    load = load_average()
    progress("starting")
    async with throw_away_node() as node:
        await node.database.pool.execute(MAKE_FLOOR_TABLES)
        await drain(node, BATCH)  # warm up
        figures = []
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            figures.append(await one_round(node, jobs))
        progress("cleaning up")
    progress("")
    return E2eReport(**machine(load), jobs=jobs, median=medians(figures), rounds=figures)


async def one_round(node: Node, jobs: int) -> E2eRound:
    postgres, redis = await postgres_floor(node, jobs), await redis_floor(node, jobs)
    cpu_s = process_time()
    rate = await drain(node, jobs)
    cpu_s = process_time() - cpu_s
    p50_ms, p99_ms = percentiles_ms(await latencies(node))
    return E2eRound(
        jobs=rate,
        postgres=postgres,
        redis=redis,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        python_us=cpu_s / jobs * 1e6,
    )


async def profile(jobs: int) -> list[str]:
    """Where the time of this process goes while jobs pass through it."""
    async with throw_away_node() as node:
        await drain(node, BATCH)
        profiler = cProfile.Profile()
        started, cpu_s = perf_counter(), process_time()
        profiler.enable()
        rate = await drain(node, jobs)
        profiler.disable()
        busy = (process_time() - cpu_s) / (perf_counter() - started)
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(PROFILE_LINES)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    return [f"{rate:,.0f} jobs/s under the profiler; Python works {busy:.0%} of the time", "", *lines[3:]]


# Jobs


async def drain(node: Node, jobs: int) -> float:
    """Jobs per second from the first insert until the end of the last is published."""
    left = anyio.Event()
    finished = 0

    async def consume() -> None:
        nonlocal finished
        while True:
            taken = await node.dispatcher.take(QUEUES, "bench", TAKES)
            await node.engine.complete_many([_completion(job) for job in taken])
            finished += len(taken)
            if finished >= jobs:
                left.set()

    started = perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(CONSUMERS):
            tasks.start_soon(consume)
        for start in range(0, jobs, BATCH):
            await node.engine.enqueue_whole([_new_job(n) for n in range(start, min(start + BATCH, jobs))])
        await left.wait()
        tasks.cancel_scope.cancel()
    while await node.database.pool.fetchval("SELECT true FROM outbox LIMIT 1"):
        await anyio.sleep(PAUSE_S)
    return jobs / (perf_counter() - started)


async def latencies(node: Node) -> list[float]:
    """Seconds from enqueue to start of single jobs."""
    begun: dict[UUID, float] = {}
    arrived = anyio.Event()

    async def consume() -> None:
        while True:
            for job in await node.dispatcher.take(QUEUES, "bench"):
                begun[job.job_id] = perf_counter()
                arrived.set()
                await node.engine.complete_many([_completion(job)])

    times = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await anyio.sleep(PAUSE_S)
        for n in range(SINGLES):
            arrived = anyio.Event()
            job = _new_job(n)
            started = perf_counter()
            await node.engine.enqueue(job)
            await arrived.wait()
            times.append(begun[job.id] - started)
            await anyio.sleep(PAUSE_S)
        tasks.cancel_scope.cancel()
    return times


def _new_job(n: int) -> NewJob:
    payload = f'{{"n": {n}, {PAYLOAD[1:]}'
    return NewJob(
        id=new_id(),
        task="chat",
        queue=QUEUES[0],
        payload=payload,
        max_attempts=3,
        timeout_s=60.0,
        ttl_s=600,
        spec_hash=spec_hash("chat", QUEUES[0], msgspec.json.decode(payload)),
    )


def _completion(job: ClaimedJob) -> Completion:
    return Completion(**asdict(job.held), result=RESULT)


# Floors


async def postgres_floor(node: Node, rows: int) -> float:
    """Rows per second that are inserted and updated twice."""
    started = perf_counter()
    async with node.database.pool.acquire() as connection:
        for _ in range(0, rows, BATCH):
            ids = new_ids(BATCH)
            await connection.execute(INSERT_FLOOR, ids, [PAYLOAD] * BATCH)
            await connection.execute(UPDATE_FLOOR, ids, [RESULT] * BATCH)
            await connection.execute(UPDATE_FLOOR, ids, [RESULT] * BATCH)
    return rows / (perf_counter() - started)


async def redis_floor(node: Node, messages: int) -> float:
    """Messages per second that are added, read by a group, acknowledged and deleted."""
    client, stream, group = node.transport.client, "jobd:bench", "floor"
    await client.delete(stream)
    await client.xgroup_create(stream, group, id="0", mkstream=True)
    started = perf_counter()
    for _ in range(0, messages, BATCH):
        adding = client.pipeline(transaction=False)
        for _ in range(BATCH):
            adding.xadd(stream, {"job_id": "x" * 36, "payload": PAYLOAD})
        await adding.execute()
        read: Any = await client.xreadgroup(group, "c", {stream: ">"}, count=BATCH)
        ids = [message_id for message_id, _ in read[0][1]]
        await client.xack(stream, group, *ids)
        await client.xdel(stream, *ids)
    rate = messages / (perf_counter() - started)
    await client.delete(stream)
    return rate


# For people


def table(report: E2eReport) -> list[str]:
    figures, number = report.median, "{:,.0f}".format
    both = 1 / (1 / figures.postgres + 1 / figures.redis)

    def spread(name: str) -> str:
        values: Sequence[float] = sorted(getattr(figures, name) for figures in report.rounds)
        return f"{number(values[0])} to {number(values[-1])}"

    return [
        line.replace(",", " ")
        for line in (
            f"median of {len(report.rounds)} rounds of {number(report.jobs)} jobs in batches of {BATCH}",
            "",
            f"jobs, end to end        {number(figures.jobs):>8}/s   ({spread('jobs')})",
            f"floor: Postgres alone   {number(figures.postgres):>8}/s   one INSERT and two UPDATEs a job",
            f"floor: Redis alone      {number(figures.redis):>8}/s   XADD XREADGROUP XACK XDEL",
            f"both in turn            {number(both):>8}/s   of which jobd reaches {figures.jobs / both:.0%}",
            f"enqueue to start        p50 {figures.p50_ms:.2f} ms  p99 {figures.p99_ms:.2f} ms"
            "   single jobs on an idle node",
            f"CPU of jobd itself      {figures.python_us:.0f} us a job",
        )
    ] + [report.line()]
