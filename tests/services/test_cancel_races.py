"""A cancel that has to wait for a requeue, a claim or another cancel of its job: Redis hears of it all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import asyncpg
import pytest

from jobd.job.model import Canceled, CancelRequested
from jobd.lifecycle.cancel import CANCEL_JOBS
from jobd.lifecycle.claim import Ask, claim
from jobd.lifecycle.release import release
from jobd.lifecycle.report import Held
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from jobd.lifecycle.enqueue import NewJob
    from tests.support.node import Node

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def cancel_meets(node: Node, job: NewJob, rival: str) -> object:
    """The answer of a cancel that waits for a rival's transaction, which is committed meanwhile."""
    held = None if rival == "claim" else await node.claim(job)
    answers: list[object] = []

    async def ask_to_cancel() -> None:
        answers.extend(await node.engine.cancel([job.id]))

    async def is_waiting() -> bool:
        return bool(await node.database.pool.fetchval(WAITS))

    other = await asyncpg.connect(node.database.url, server_settings={"search_path": "jobd"})
    async with anyio.create_task_group() as tasks:
        async with other.transaction():
            if rival == "claim":
                await claim(other, [Ask(job_id=job.id, enqueue_id=1, owner_id="w-1")], ttl_s=60)
            elif held is not None and rival == "release":
                proof = Held(job_id=job.id, attempt_id=held.attempt_id, lease_token=held.lease_token)
                await release(other, [proof])
            else:
                await other.fetch(CANCEL_JOBS, [job.id], None)
            tasks.start_soon(ask_to_cancel)
            await wait_until_async(is_waiting)
    await other.close()
    return answers[0]


@pytest.mark.parametrize(
    ("rival", "answer", "event"),
    [
        ("release", Canceled(None), "canceled"),
        ("claim", CancelRequested(), "cancel_requested"),
        ("cancel", CancelRequested(), "cancel_requested"),
    ],
)
async def test_redis_hears_of_a_cancel_that_had_to_wait(node: Node, rival: str, answer: object, event: str) -> None:
    job = await node.enqueue()

    said = await cancel_meets(node, job, rival)
    node.wakeup.set()

    async def is_told() -> bool:
        return any(fields["type"] == event for _, fields in await node.events_of(job.id))

    await wait_until_async(is_told)
    await wait_until_async(node.outbox_is_empty)
    kinds = [fields["type"] for _, fields in await node.events_of(job.id)]
    assert said == answer
    assert kinds.count(event) == 1
    kept = await node.database.pool.fetchval(
        "SELECT count(*) FROM event_log WHERE job_id = $1 AND events::text LIKE '%cancel_requested%'", job.id
    )
    assert kept == (event == "cancel_requested")
