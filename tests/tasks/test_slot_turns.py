"""When a slot takes its next job: while the last result is being written, but where a queue has one slot, after it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from jobd.config.model import Queue
from jobd.tasks.runner import Runner
from tests.support.running_slots import CONFIG, RunningSlots, running_slots
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from jobd.tasks.runner import Context


class Noting(Runner):
    """Runs any job at once and notes that it has."""

    def __init__(self) -> None:
        self.begun = 0

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        self.begun += 1
        return {}


class SlotsWithHeldResults(msgspec.Struct):
    slots: RunningSlots
    runner: Noting
    #: Until it is set, no result is written.
    may_write: anyio.Event

    async def until_begun(self, number: int) -> None:
        await wait_until_async(lambda: self.runner.begun >= number)

    async def until_all_are(self, status: str) -> None:
        async def is_so() -> bool:
            pool = self.slots.node.database.pool
            return not await pool.fetchval("SELECT count(*) FROM jobs WHERE status <> $1", status)

        await wait_until_async(is_so)


@contextlib.asynccontextmanager
async def slots_with_held_results(
    shared_postgres: str, folder: Path, number: int
) -> AsyncIterator[SlotsWithHeldResults]:
    runner, may_write = Noting(), anyio.Event()
    config = msgspec.structs.replace(CONFIG, queues={"default": Queue(slots=number)}, drain_s=30)
    async with running_slots(shared_postgres, folder, {"chat": runner}, config) as slots:
        complete_many = slots.node.engine.complete_many

        async def complete_later(reports: Any) -> Any:
            await may_write.wait()
            return await complete_many(reports)

        slots.node.engine.complete_many = complete_later  # type: ignore[method-assign]  # only later, then as it is
        for _ in range(6):
            await slots.submit({})
        yield SlotsWithHeldResults(slots, runner, may_write)


async def test_next_job_begins_while_the_result_of_the_last_is_written_but_not_one_more(
    shared_postgres: str, folder: Path
) -> None:
    async with slots_with_held_results(shared_postgres, folder, number=2) as held:
        await held.until_begun(4)
        await anyio.sleep(0.3)

        assert held.runner.begun == 4
        assert await held.slots.node.database.pool.fetchval("SELECT count(*) FROM leases") == 4

        held.may_write.set()
        await held.until_all_are("done")
        assert held.runner.begun == 6


async def test_queue_with_one_slot_does_its_jobs_strictly_in_turn(shared_postgres: str, folder: Path) -> None:
    async with slots_with_held_results(shared_postgres, folder, number=1) as held:
        await held.until_begun(1)
        await anyio.sleep(0.3)

        assert held.runner.begun == 1

        held.may_write.set()
        await held.until_all_are("done")


@pytest.mark.parametrize("end", ["drained", "cut off"])
async def test_results_that_wait_to_be_written_are_written_at_the_end(
    shared_postgres: str, folder: Path, end: str
) -> None:
    async with slots_with_held_results(shared_postgres, folder, number=2) as held:
        await held.until_begun(4)

        if end == "drained":
            held.slots.handle.stop.set()
        else:
            held.slots.scope.cancel()
        held.may_write.set()
        with anyio.fail_after(30):
            await held.slots.has_ended.wait()

        rows = await held.slots.node.database.pool.fetch("SELECT status, count(*) AS n FROM jobs GROUP BY status")
        assert {row["status"]: row["n"] for row in rows} == {"done": 4, "queued": 2}
        assert held.runner.begun == 4
