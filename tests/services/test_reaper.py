"""The reaper service on a real Postgres."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from jobd.config.model import Config, Leases
from jobd.job.retry import RetryPolicy
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.reap import reap
from jobd.maintenance.reaper import Reaper
from jobd.store.ids import new_id
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.support.claims import take_first
from tests.support.factories import new_job

if TYPE_CHECKING:
    from uuid import UUID

    import pytest

CONFIG = Config(leases=Leases(ttl_s=1, heartbeat_s=0.2))


async def running_job(database: Database, *, ttl_s: float, max_attempts: int = 3) -> UUID:
    queue = f"q{new_id().hex}"
    await enqueue(database, [new_job(queue=queue, max_attempts=max_attempts)])
    (claimed,) = await take_first(database.pool, [queue], owner_id="silent", most=1, ttl_s=ttl_s)
    return claimed.job_id


async def status_of(database: Database, job_id: UUID) -> str:
    status: str = await database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", job_id)
    return status


async def test_silent_holder_is_reaped_and_a_living_one_is_not(
    shared_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobd.maintenance.reaper")
    database = Database(shared_postgres, 4)
    async with database.opened():
        silent, living = await running_job(database, ttl_s=0.1), await running_job(database, ttl_s=600)
        last = await running_job(database, ttl_s=0.1, max_attempts=1)
        handle = Handle(lambda: None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Reaper(database, lambda: CONFIG).run, handle)
            with anyio.fail_after(30):
                while await status_of(database, silent) == "running":
                    await anyio.sleep(0.05)
            handle.stop.set()

        assert await status_of(database, silent) == "queued"
        assert await status_of(database, last) == "error"
        assert await status_of(database, living) == "running"
        records = [vars(record) for record in caplog.records]
        reaped = {record["job_id"]: record["attempt"] for record in records if "job_id" in record}
        assert reaped == {str(silent): "1", str(last): "1"}


async def test_reaper_that_has_just_started_holds_back(shared_postgres: str) -> None:
    database = Database(shared_postgres, 4)
    async with database.opened():
        silent = await running_job(database, ttl_s=0.001)
        await anyio.sleep(0.01)

        counts = await Reaper(database, lambda: CONFIG).run_once()

        assert counts.total == 0
        assert await status_of(database, silent) == "running"
        await reap(database.pool, policy=RetryPolicy())


async def test_many_reapers_end_each_attempt_once(shared_postgres: str) -> None:
    database = Database(shared_postgres, 8)
    async with database.opened():
        jobs = [await running_job(database, ttl_s=0.001) for _ in range(40)]
        await anyio.sleep(0.01)
        totals: list[int] = []

        async def reap_all() -> None:
            while counts := len(await reap(database.pool, policy=RetryPolicy(), most=7)):
                totals.append(counts)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(reap_all)

        expired = await database.pool.fetchval(
            "SELECT count(*) FROM attempts WHERE job_id = ANY($1) AND outcome = 'expired'", jobs
        )
        assert expired == 40
        assert sum(totals) >= 40
