"""Workers: the leases tell who works, on what, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobd.job.history import HandlerEvent
from jobd.lifecycle.complete import complete
from jobd.lifecycle.events import EventBatch, append_events
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.lease import acquire
from jobd.lifecycle.workers import list_held_jobs, list_workers
from jobd.store.ids import new_id
from tests.support.factories import NOW, TTL_S, at, beat, claim_one, completion, make_queued, make_running

if TYPE_CHECKING:
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database


async def hold(db: Database, owner_id: str, second: float) -> ClaimedJob:
    return await claim_one(db, await make_queued(db, at(second)), now=at(second), owner_id=owner_id)


async def emit(db: Database, job: ClaimedJob, kind: str, step: str = "", **data: Any) -> None:
    event = HandlerEvent(kind, 0, step, msgspec.Raw(msgspec.json.encode(data)))
    await append_events(db, [EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=[event])], now=NOW)


async def test_nobody_works_where_nothing_is_held(db: Database) -> None:
    done = await make_running(db)
    await complete(db, [completion(done)], now=NOW)
    await make_queued(db)

    assert await list_workers(db, most=10) == ([], 0)
    assert await list_held_jobs(db, most=10) == []


async def test_a_worker_is_told_by_what_it_holds(db: Database) -> None:
    first, second = await hold(db, "a", 0), await hold(db, "a", 5)
    await heartbeat(db, [beat(second)], ttl_s=TTL_S, now=at(20))

    (holder,), total = await list_workers(db, most=10)

    assert (holder.owner_id, holder.jobs, total) == ("a", 2, 1)
    assert (holder.oldest_lease_at, holder.heartbeat_at) == (at(0), at(20))
    assert holder.lease_expires_at == at(TTL_S)
    assert [job.job_id for job in await list_held_jobs(db, most=10)] == [first.job_id, second.job_id]


async def test_the_longest_silent_comes_first_and_no_more_than_asked_for(db: Database) -> None:
    for second, name in enumerate(("a", "b", "c")):
        await hold(db, name, second)
    first = await hold(db, "a", 10)

    holders, total = await list_workers(db, most=2)

    assert ([one.owner_id for one in holders], total) == (["b", "c"], 3)
    held = await list_held_jobs(db, most=3)
    assert ([one.owner_id for one in held], first.job_id in {one.job_id for one in held}) == (["a", "b", "c"], False)


async def test_leases_of_other_things_are_nobodys_work(db: Database) -> None:
    await acquire(db, "EVENT", [new_id()], owner_id="poller", ttl_s=TTL_S, now=NOW)

    assert await list_workers(db, most=10) == ([], 0)
    assert await list_held_jobs(db, most=10) == []


async def test_a_held_job_shows_its_newest_progress(db: Database) -> None:
    job = await make_running(db)
    for share in (0.2, 0.4):
        await emit(db, job, "progress", f"at {share}", progress=share)
    await emit(db, job, "token", text="hello")

    (held,) = await list_held_jobs(db, most=10)

    assert (held.step, held.data, held.attempt_no) == ("at 0.4", '{"progress": 0.4}', 1)


async def test_progress_that_lies_far_back_is_not_looked_for(db: Database) -> None:
    job = await make_running(db)
    await emit(db, job, "progress", progress=0.2)
    for _ in range(2):
        await emit(db, job, "token", text="hello")

    far, near = [await list_held_jobs(db, most=10, chunks=chunks) for chunks in (2, 3)]

    assert (far[0].data, near[0].data) == (None, '{"progress": 0.2}')
