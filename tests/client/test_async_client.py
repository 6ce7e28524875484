"""What only the asynchronous client can get wrong: many at once, being cancelled, another event loop; and imports."""

from __future__ import annotations

import subprocess
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd import AsyncClient
from tests.support.daemon import TOP
from tests.support.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

MANY = 120


@pytest.fixture
async def client(daemon: Jobd) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.addresses["JOBD_URL"]) as client:
        yield client


async def test_many_tasks_share_one_client(client: AsyncClient, workers: DatabaseWorkers) -> None:
    jobs = [entry.job_id for entry in await client.submit_batch([{"task": "chat", "payload": {}}] * MANY)]
    waited: list[str] = []
    followed: list[str] = []

    async def wait_for(job_id: UUID) -> None:
        waited.append((await client.wait(job_id, 15)).status)

    async def follow(job_id: UUID) -> None:
        followed.append([event.type async for event in client.events(job_id)][-1])

    async with anyio.create_task_group() as tasks:
        for n, job_id in enumerate(jobs):
            tasks.start_soon(wait_for if n % 2 else follow, job_id)
        for job_id in jobs:
            await anyio.to_thread.run_sync(workers.finish, str(job_id))

    assert (waited, followed) == (["done"] * (MANY // 2), ["done"] * (MANY // 2))


async def test_a_cancelled_wait_and_a_left_stream_close_their_lines(client: AsyncClient, daemon: Jobd) -> None:
    job_id = (await client.submit("chat", {})).job_id

    with proxy(lambda: daemon.address) as line:
        async with AsyncClient(line.url) as cut:
            with anyio.move_on_after(0.2) as scope:
                await cut.wait(job_id)
            async with aclosing(cut.events(job_id)) as events:
                assert (await anext(events)).type == "queued"

            with anyio.fail_after(20):
                while line.open:
                    await anyio.sleep(0.01)

    assert scope.cancelled_caught


async def test_a_cancelled_wait_leaves_the_client_usable(client: AsyncClient) -> None:
    job_id = (await client.submit("chat", {})).job_id
    for _ in range(20):
        with anyio.move_on_after(0.01):
            await client.wait(job_id)

    assert (await client.get(job_id)).status == "queued"


# -- imports ------------------------------------------------------------------------------------------------------

UNUSED = {
    "import jobd.cli.main": ("httpx", "httpcore", "starlette", "hypercorn", "asyncpg", "redis"),
    "import jobd.serve.daemon": ("httpx", "httpcore"),
    "from jobd import Client, AsyncClient": (
        "httpx",
        "httpcore",
        "h11",
        "starlette",
        "hypercorn",
        "asyncpg",
        "redis",
        "uvloop",
    ),
}


@pytest.mark.parametrize("statement", UNUSED)
def test_nothing_is_imported_that_is_not_used(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    )

    assert not set(UNUSED[statement]) & set(done.stdout.split())


def test_there_is_nothing_else_in_the_package() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Cliend'"):
        from jobd import Cliend  # type: ignore[attr-defined]  # noqa: F401
