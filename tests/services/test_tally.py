"""The tally of a node: what its own commits did, whoever ran the job, and nothing that another node committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from jobd.config.model import Config, Leases, Queue
from jobd.engine import engine as engine_module
from jobd.lifecycle.enqueue import Created, QueueFull, enqueue
from jobd.lifecycle.take import Want
from jobd.store.faults import LineBroken
from tests.contract.test_raw_workers import raw_worker
from tests.lifecycle.test_tally import CHAT, Numbers, numbers
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: Leases are short, so that the reaper soon ends what is left alone.
CONFIG = Config(leases=Leases(ttl_s=1, heartbeat_s=0.2), queues={"default": Queue(slots=0)})
DONE: Numbers = {(*CHAT, "attempts", "done"): 1, (*CHAT, "finished", "done"): 1, (*CHAT, "ran"): 1}
SUBMITTED: Numbers = {(*CHAT, "submitted"): 1}
WAITED: Numbers = {("default", "waited"): 1}


@pytest.fixture
async def nodes(shared_postgres: str, folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as one, Node(url, redis_url, CONFIG).running() as other:
            yield one, other


async def test_each_node_counts_what_it_commits(nodes: tuple[Node, Node]) -> None:
    one, other = nodes

    job = await one.enqueue()
    claimed = await other.claim(job)
    await one.done(claimed)

    assert numbers(one.engine.tally) == {**SUBMITTED, **DONE}
    assert numbers(other.engine.tally) == WAITED


async def test_silent_worker_is_counted_by_the_one_node_that_reaps_it(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    await one.claim(await one.enqueue(max_attempts=1))
    before = {**SUBMITTED, **WAITED}
    assert numbers(one.engine.tally) == before

    async def reaped() -> bool:
        return one.engine.tally.leases_expired + other.engine.tally.leases_expired > 0

    await wait_until_async(reaped)

    expired: Numbers = {(*CHAT, "attempts", "expired"): 1, (*CHAT, "finished", "error"): 1, ("expired",): 1}
    found = [numbers(node.engine.tally) for node in nodes]
    assert found in ([{**before, **expired}, {}], [before, expired])


async def test_take_and_whole_batch_are_counted(node: Node) -> None:
    jobs = [new_job(queue="default"), new_job(queue="default")]
    await node.engine.enqueue_whole(jobs)
    taken = await node.engine.take([Want("default", ["one", "two"])], any_mode=True)
    assert len(taken) == 2

    assert numbers(node.engine.tally) == {(*CHAT, "submitted"): 2, ("default", "waited"): 2}


async def test_whole_batch_that_is_refused_counts_nothing(node: Node) -> None:
    node.config = replace(node.config, limits=replace(node.config.limits, max_queued=2))

    answers = await node.engine.enqueue_whole([new_job() for _ in range(3)])

    assert any(isinstance(answer, QueueFull) for answer in answers)
    assert numbers(node.engine.tally) == {}


async def test_job_whose_answer_was_lost_counts_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was made, and the connection broke before its answer came: the job is found by its id."""
    calls = 0

    async def enqueue_and_lose(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        answers = await enqueue(*arguments, **options)
        if calls == 1:
            raise LineBroken("cut by the test")
        return answers

    monkeypatch.setattr(engine_module, "enqueue", enqueue_and_lose)

    job = new_job()
    assert await node.engine.enqueue(job) == Created(job.id)

    assert (calls, numbers(node.engine.tally)) == (1, SUBMITTED)


async def test_job_of_a_raw_redis_worker_counts_on_the_node_that_looks_after_it(node: Node) -> None:
    with raw_worker(node, "raw-1"), anyio.fail_after(60):
        await node.enqueue()

        async def counted() -> bool:
            return bool(node.engine.tally.tasks[CHAT].finished)

        await wait_until_async(counted)

    assert numbers(node.engine.tally) == {**SUBMITTED, **WAITED, **DONE}
