"""`jobd bench tasks`: jobs that do nothing, by every way of running them, beside what that way costs without jobd.

For each way a queue of its own with 8 slots in a `jobd serve` like any other; for `worker` in a `jobd worker` that
speaks HTTP to it. The rate is that of a queue full of jobs, from the first start to the last end by Postgres' clock.
The latency is a client's, from the submit of a single job to the answer of its wait, on an otherwise idle jobd. Rounds
of floors and jobs take turns; the median counts.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from time import perf_counter
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.bench.http import READY_S, floor_server, jobd_server
from jobd.bench.report import Machine, load_average, machine, medians, percentiles_ms
from jobd.bench.task_floors import AT_ONCE, PAYLOAD, floor
from jobd.client import AsyncClient
from jobd.errors import ServerFailed
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.servers import postgres as embedded_postgres
from jobd.store.postgres import connect
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    import asyncpg

    from jobd.bench.http import Served

BENCH_PROGRESS = statement("bench_progress", "jobd.bench")

#: Ways of running, each with the share of a round's jobs that it gets: starting a program is slow.
WAYS = {"async": 1.0, "thread": 1.0, "isolated": 1.0, "command": 0.1, "worker": 1.0}
#: Single jobs whose latency is measured, for each way in each round.
SINGLES = 30
#: Seconds between two checks whether a queue is empty.
POLL_S = 0.05
#: Seconds after which a queue that is not empty counts as hung.
PATIENCE_S = 300.0

CONFIG = """
[limits]
max_queued = 1000000
[queues.async]
slots = {slots}
[queues.thread]
slots = {slots}
[queues.isolated]
slots = {slots}
[queues.command]
slots = {slots}
[queues.worker]
slots = 0
[tasks.async]
run = "python"
handler = "jobd.bench.handlers:at_once"
queue = "async"
[tasks.thread]
run = "python"
handler = "jobd.bench.handlers:in_thread"
queue = "thread"
[tasks.isolated]
run = "python"
handler = "jobd.bench.handlers:in_thread"
isolate = true
queue = "isolated"
[tasks.command]
run = "command"
argv = {argv}
queue = "command"
[tasks.worker]
run = "external"
queue = "worker"
"""
WORKER_CONFIG = """
[queues.worker]
slots = {slots}
[tasks.worker]
run = "python"
handler = "jobd.bench.handlers:at_once"
queue = "worker"
"""


class WayRound(msgspec.Struct, frozen=True, kw_only=True):
    #: Jobs per second, and runs per second without jobd.
    jobs: float
    floor: float
    #: From submit to the answer of the wait, in ms.
    p50_ms: float
    p99_ms: float


class Way(msgspec.Struct, frozen=True, kw_only=True):
    way: str
    median: WayRound
    rounds: list[WayRound]


class TasksReport(Machine, frozen=True, kw_only=True):
    jobs: int
    slots: int
    ways: list[Way]


async def measure(jobs: int, rounds: int, progress: Callable[[str], None]) -> TasksReport:
    load = load_average()
    argv = (shutil.which("cat") or "/bin/cat",)
    rounds_of: dict[str, list[WayRound]] = {way: [] for way in WAYS}
    progress("starting")
    settings = CONFIG.format(slots=AT_ONCE, argv=msgspec.json.encode(argv).decode())
    with floor_server() as constant, jobd_server(settings) as served, _remote_worker(served):
        async with AsyncClient(_url(served)) as client, _database(served.data_dir) as database:
            for way in WAYS:
                await _drain(client, database, way, AT_ONCE)  # warm up
            for number in range(1, rounds + 1):
                for way, part in WAYS.items():
                    progress(f"round {number} of {rounds}: {way}")
                    at_floor = await floor(way, 0.5, argv, constant)
                    rate = await _drain(client, database, way, max(AT_ONCE, round(jobs * part)))
                    p50_ms, p99_ms = percentiles_ms(await _latencies(client, way))
                    rounds_of[way].append(WayRound(jobs=rate, floor=at_floor, p50_ms=p50_ms, p99_ms=p99_ms))
        progress("cleaning up")
    progress("")
    return TasksReport(
        **machine(load),
        jobs=jobs,
        slots=AT_ONCE,
        ways=[Way(way=way, median=medians(figures), rounds=figures) for way, figures in rounds_of.items()],
    )


async def _drain(client: AsyncClient, database: asyncpg.Connection[asyncpg.Record], way: str, jobs: int) -> float:
    """Jobs per second of a queue that was filled before."""
    await client.pause(way)
    accepted = await client.submit_batch([{"task": way, "payload": PAYLOAD}] * jobs)
    job_ids = [entry.job_id for entry in accepted]
    await client.resume(way)
    with anyio.fail_after(PATIENCE_S):
        while True:
            row = await database.fetchrow(BENCH_PROGRESS, job_ids)
            assert row is not None
            if row["ended_badly"]:
                raise ServerFailed(f"{row['ended_badly']} jobs of task {way} failed; jobd doctor may know why")
            if row["done"] == jobs:
                return jobs / max(float(row["seconds"]), 1e-6)
            await anyio.sleep(POLL_S)


async def _latencies(client: AsyncClient, way: str) -> list[float]:
    times = []
    for _ in range(SINGLES):
        started = perf_counter()
        job = await client.submit(way, PAYLOAD)
        await client.wait(job.job_id)
        times.append(perf_counter() - started)
    return times


# What it speaks to


def _url(served: Served) -> str:
    host, port = served.address
    return f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def _database(data_dir: Path) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    url = embedded_postgres.url(DataDir(data_dir, server_account()))
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.contextmanager
def _remote_worker(served: Served) -> Iterator[None]:
    config = served.config.with_name("worker.toml")
    config.write_text(WORKER_CONFIG.format(slots=AT_ONCE))
    command = [sys.executable, "-m", "jobd", "worker", "--url", _url(served), "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_S)


def table(report: TasksReport) -> list[str]:
    lines = [
        f"median of {len(report.ways[0].rounds)} rounds of {report.jobs} jobs"
        f" ({WAYS['command']:.0%} of them for command), {report.slots} slots",
        "",
        f"{'run':<10}{'jobs/s':>10}{'floor/s':>12}{'of floor':>10}{'p50 ms':>9}{'p99 ms':>9}",
    ]
    for way in report.ways:
        figures = way.median
        lines.append(
            f"{way.way:<10}{figures.jobs:>10,.0f}{figures.floor:>12,.0f}{figures.jobs / figures.floor:>10.1%}"
            f"{figures.p50_ms:>9.1f}{figures.p99_ms:>9.1f}".replace(",", " ")
        )
    return [*lines, "", report.line()]
