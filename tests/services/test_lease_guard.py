"""A handler that blocks the event loop costs nobody a lease, unless it blocks for good."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import anyio
import asyncpg
import msgspec
import pytest

from jobd.config.model import Leases, Task
from jobd.job.retry import RetryPolicy
from jobd.leases import watchdog as lease_guard
from jobd.leases.watchdog import LeaseWatchdog, PostgresLine
from jobd.lifecycle.reap import reap
from jobd.supervise.service import Handle
from jobd.tasks.isolated.runner import IsolatedRunner
from jobd.tasks.mock import MockRunner
from jobd.tasks.python import python_runner
from tests.support.running_slots import CONFIG, RunningSlots, running_slots
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from uuid import UUID

    from jobd.tasks.runner import Runner


LEASES = Leases(ttl_s=3, heartbeat_s=0.5)
#: Two leases long.
BLOCK_S = 6.0


@contextlib.asynccontextmanager
async def guarded(
    shared_postgres: str, folder: Path, tool: Runner | None = None
) -> AsyncIterator[tuple[RunningSlots, LeaseWatchdog]]:
    blocking = python_runner("tool", "tests.tasks.handlers:block")
    runners: dict[str, Runner] = {"chat": MockRunner(), "tool": blocking if tool is None else tool}
    configured = {"chat": Task(run="mock"), "tool": Task(run="python", handler="pkg.mod:func")}
    config = msgspec.structs.replace(CONFIG, leases=LEASES, tasks=configured)
    async with running_slots(shared_postgres, folder, runners, config) as slots:
        guard = LeaseWatchdog(PostgresLine(slots.node.database.url), slots.node.leases, lambda: slots.node.config)
        handle = Handle(lambda: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.run, handle)
            yield slots, guard
            handle.stop.set()


async def beside_a_block(slots: RunningSlots) -> UUID:
    """A job that ran while another blocked the loop for several leases."""
    bystander = await slots.submit({"seconds": 60, "tokens": 0})
    await slots.wait_for_status(bystander, "running")
    blocker = await slots.submit({"seconds": BLOCK_S}, task="tool", max_attempts=1)
    await slots.wait_for_status(blocker, "done", "error")
    return bystander


async def test_job_beside_a_blocking_one_keeps_its_lease(shared_postgres: str, folder: Path) -> None:
    async with guarded(shared_postgres, folder) as (slots, guard):
        bystander = await beside_a_block(slots)
        await anyio.sleep(LEASES.ttl_s)  # a lease that was lost would have been noticed by now

        assert guard.renewed
        assert await slots.outcomes(bystander) == [None]
        assert [run.job.job_id for run in slots.service._running] == [bystander]


async def test_job_that_blocks_is_done_by_its_own_first_attempt(shared_postgres: str, folder: Path) -> None:
    async with guarded(shared_postgres, folder) as (slots, _):
        blocker = await slots.submit({"seconds": BLOCK_S}, task="tool")

        await slots.wait_for_status(blocker, "done")

        assert await slots.outcomes(blocker) == ["done"]


@contextlib.contextmanager
def another_node(url: str) -> Iterator[None]:
    """A reaper with a thread and a loop of its own, which a block of this one does not stop."""
    stopped = threading.Event()

    async def reap_all() -> None:
        connection = await asyncpg.connect(url)
        while not stopped.wait(0.05):
            await reap(connection, policy=RetryPolicy(base_s=0.0, cap_s=0.0))
        await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(reap_all()))
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


async def test_loop_that_hangs_for_too_long_loses_its_leases(
    shared_postgres: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_guard, "BLOCK_S", 1.0)
    async with guarded(shared_postgres, folder) as (slots, _):
        with another_node(slots.node.database.url):
            bystander = await beside_a_block(slots)

            assert (await slots.outcomes(bystander))[0] == "expired"


async def test_guard_does_nothing_while_the_loop_turns(shared_postgres: str, folder: Path) -> None:
    async with guarded(shared_postgres, folder) as (slots, guard):
        job_id = await slots.submit({"seconds": 60, "tokens": 0})
        await slots.wait_for_status(job_id, "running")

        await anyio.sleep(1.5 * LEASES.ttl_s)

        assert guard.renewed == 0
        assert await slots.outcomes(job_id) == [None]


# -- code that keeps the interpreter's lock ----------------------------------------------------------------------------


@pytest.mark.every_python
async def test_isolated_handler_that_keeps_the_interpreters_lock_costs_nobody_a_lease(
    shared_postgres: str, folder: Path
) -> None:
    isolated = Task(run="python", handler="tests.tasks.isolated_handlers:act", isolate=True)
    runner = IsolatedRunner("tool", isolated, folder)
    async with guarded(shared_postgres, folder, runner) as (slots, _):
        bystander = await slots.submit({"seconds": 60, "tokens": 0})
        await slots.wait_for_status(bystander, "running")
        blocker = await slots.submit({"do": "hold gil", "seconds": 10}, task="tool")

        await wait_until_async(lambda: is_over(slots, blocker), timeout_s=60)

        assert await slots.outcomes(blocker) == ["done"]
        assert await slots.outcomes(bystander) == [None]
        assert [run.job.job_id for run in slots.service._running] == [bystander]
    await runner.close()


async def is_over(slots: RunningSlots, job_id: UUID) -> bool:
    return (await slots.job(job_id)).status in ("done", "error")


async def test_handler_that_keeps_the_interpreters_lock_in_jobd_is_named_with_the_remedy(
    shared_postgres: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = python_runner("tool", "tests.tasks.isolated_handlers:act")
    async with guarded(shared_postgres, folder, runner) as (slots, _):
        await slots.submit({"do": "hold gil", "seconds": 2}, task="tool", max_attempts=1)

        await wait_until_async(lambda: "a handler of tool keeps the interpreter's lock" in caplog.text, timeout_s=30)

        assert "isolate = true in [tasks.tool] gives it a process of its own" in caplog.text
