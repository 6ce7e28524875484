"""Postgres cuts lines, is a standby for a while, is full, or hangs: jobd waits and goes on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import asyncpg
import pytest

from jobd.config.model import Config
from jobd.engine import engine
from jobd.engine.batch import OutcomeUnknown
from jobd.errors import ServerDown
from jobd.servers import connections as links
from jobd.store import postgres
from jobd.store.faults import translated
from jobd.store.postgres import Database
from jobd.supervise.restart import RestartPolicy
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from jobd.lifecycle.enqueue import NewJob

LONG_S = links.ANSWER_S
_I = TypeVar("_I")
_T = TypeVar("_T")

#: Starts again at once, but gives up as early as ever.
QUICK = RestartPolicy(base_s=0.01, cap_s=0.05)
CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()"


@pytest.fixture
async def admin(shared_postgres: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A superuser's session on another database of the server."""
    session = await asyncpg.connect(shared_postgres.replace("jobd@/jobd", "postgres@/postgres"))
    yield session
    await session.close()


@pytest.fixture(scope="module")
def outside() -> Iterator[servers.Outside]:
    """A Postgres that only the tests of this file use; each leaves it as a primary that lets everyone in."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    with servers.outside_postgres(folder) as server:
        yield server
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def owner_of(server: servers.Outside) -> AsyncIterator[asyncpg.Connection[Any]]:
    session = await asyncpg.connect(server.owner_url)
    try:
        yield session
    finally:
        await session.close()


@pytest.fixture
async def far(outside: servers.Outside, folder: Path) -> AsyncIterator[Node]:
    """A node on that Postgres, in a new database; it starts failed services again at once."""
    url = await new_database(outside.url)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config()).running(QUICK) as node:
            yield node


async def until_all_up(node: Node) -> None:
    await wait_until_async(lambda: node.supervisor.is_ready() and not node.supervisor.is_degraded())


async def until_down(node: Node) -> None:
    await wait_until_async(lambda: not node.supervisor.is_ready())


async def cut_until_down(owner: asyncpg.Connection[Any], node: Node) -> None:
    """Cut its connections again and again: one that is just being made is not listed, and may live on alone."""
    name = database_of(node.database.url)

    async def is_down() -> bool:
        await owner.fetchval(CUT, name)
        return not node.supervisor.is_ready()

    await wait_until_async(is_down)


async def do_one(node: Node) -> NewJob:
    job = await node.enqueue()
    await node.done(await node.claim(job))
    return job


async def done_of(node: Node) -> int:
    return int(await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'"))


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.parametrize("call", ["execute", "fetch", "fetchval", "prepare", "transaction", "cursor"])
async def test_every_call_on_a_session_that_was_cut_says_that_the_server_is_away(
    shared_postgres: str, admin: asyncpg.Connection[Any], call: str
) -> None:
    url = await new_database(shared_postgres)
    database = Database(url, 2)

    async with database.opened(), database.pool.acquire() as session:
        prepared = await session.prepare("SELECT 1")
        transaction = session.transaction()
        await transaction.start()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "execute": lambda: session.execute("SELECT 1"),
            "fetch": lambda: session.fetch("SELECT 1"),
            "fetchval": lambda: session.fetchval("SELECT 1"),
            "prepare": prepared.fetch,
            "transaction": transaction.commit,
            "cursor": lambda: session.cursor("SELECT 1"),
        }
        await admin.fetchval(CUT, database_of(url))

        for _ in range(3):  # the first call may find the line open, the next one closed, a later one released
            with pytest.raises(ServerDown), translated(url):
                await calls[call]()
            await anyio.sleep(0.02)


async def test_what_postgres_says_is_told_in_one_line_without_details(admin: asyncpg.Connection[Any]) -> None:
    with pytest.raises(ServerDown, match="no room") as caught, translated("postgresql://h/db"):
        await admin.execute(
            "DO $$ BEGIN RAISE 'no room' USING ERRCODE = '53100', DETAIL = 'row (canary)', HINT = 'free some'; END $$"
        )

    assert "\n" not in str(caught.value)
    assert "canary" not in str(caught.value)


async def test_lines_that_are_cut_again_and_again_end_nothing(
    shared_postgres: str, folder: Path, admin: asyncpg.Connection[Any]
) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config()).running(QUICK) as node:
            for _ in range(12):
                await until_all_up(node)
                await admin.fetchval(CUT, database_of(url))
                await do_one(node)

            await until_all_up(node)
            assert await done_of(node) == 12


async def test_failover_to_a_standby_and_back_is_waited_for(
    outside: servers.Outside, far: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "RETURN_S", 0.5)
    for _ in range(2):
        await do_one(far)
        outside.stop()
        outside.start(standby=True)  # the same name, and for a while nobody there who writes
        await until_down(far)
        await anyio.sleep(1.5)
        with pytest.raises((ServerDown, OutcomeUnknown)), anyio.fail_after(30):
            await far.enqueue()

        async with owner_of(outside) as owner:
            await owner.fetchval("SELECT pg_promote()")

        await until_all_up(far)

    await do_one(far)
    assert await done_of(far) == 3


async def test_server_that_turns_read_only_is_left_and_looked_for_again(
    outside: servers.Outside, far: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "WATCH_S", 0.2)
    name = database_of(far.database.url)
    async with owner_of(outside) as owner:
        await owner.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await cut_until_down(owner, far)
        await anyio.sleep(1)

        await owner.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    await until_all_up(far)
    await do_one(far)


@pytest.mark.parametrize(("shut", "open_again"), [("NOLOGIN", "LOGIN"), ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1")])
async def test_server_that_lets_nobody_in_any_more_is_waited_for(
    outside: servers.Outside, far: Node, shut: str, open_again: str
) -> None:
    async with owner_of(outside) as owner:
        await owner.execute(f"ALTER ROLE jobd {shut}")
        try:
            await cut_until_down(owner, far)
            await anyio.sleep(1)
        finally:
            await owner.execute(f"ALTER ROLE jobd {open_again}")

    await until_all_up(far)
    await do_one(far)


async def test_start_on_a_standby_waits_until_it_is_promoted(outside: servers.Outside, folder: Path) -> None:
    url = await new_database(outside.url)
    outside.stop()
    outside.start(standby=True)

    async def promote_later() -> None:
        await anyio.sleep(1)
        async with owner_of(outside) as owner:
            await owner.fetchval("SELECT pg_promote()")

    with servers.valkey(folder) as redis_url:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(promote_later)
            async with Node(url, redis_url, Config()).running(QUICK) as node:
                await do_one(node)


@pytest.fixture(params=[1.0, pytest.param(links.ANSWER_S, marks=pytest.mark.slow)])
def answer_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the store waits for an answer: shortened, or as it is."""
    for name in ("ANSWER_S", "WATCH_S"):
        monkeypatch.setattr(links, name, getattr(links, name) * request.param / LONG_S)
    monkeypatch.setattr(postgres, "CONNECT_S", request.param)
    return float(request.param)


@pytest.mark.timeout(180)
async def test_server_that_hangs_is_left_and_nothing_is_lost_or_done_twice(
    answer_s: float, outside: servers.Outside, far: Node
) -> None:
    acknowledged: list[NewJob] = []
    finished: list[object] = []
    is_over = anyio.Event()

    async def submit_and_work() -> None:
        while not is_over.is_set():
            job = new_job()
            await until_answered(far.engine.enqueue, job)
            acknowledged.append(job)
            held = await until_answered(far.claim, job)
            finished.append(await until_answered(far.done, held))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(submit_and_work)
        await anyio.sleep(0.2)
        with outside.frozen():
            await until_down(far)
            await anyio.sleep(answer_s)
        await until_all_up(far)
        is_over.set()

    assert far.supervisor.is_ready()
    assert len(acknowledged) == len(finished)
    there = await far.database.pool.fetch("SELECT id, status, attempt_no FROM jobs")
    assert {row["id"] for row in there} == {job.id for job in acknowledged}
    assert {(row["status"], row["attempt_no"]) for row in there} == {("done", 1)}


async def until_answered(call: Callable[[_I], Awaitable[_T]], item: _I) -> _T:
    """What a client does: the same again until somebody answers."""
    while True:
        try:
            return await call(item)
        except (ServerDown, OutcomeUnknown):
            await anyio.sleep(0.1)
