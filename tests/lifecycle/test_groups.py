"""Groups: counters that follow their members, one callback when all are final, and rings through them refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.depend import Dependency, LinkRefused
from jobd.lifecycle.enqueue import Created, enqueue
from jobd.lifecycle.groups import Group, NewGroup, create_group, list_groups, prune_groups, read_group, seal_group
from jobd.lifecycle.prune import prune
from jobd.lifecycle.redrive import redrive_once
from jobd.lifecycle.search import JobFilter, search_jobs
from jobd.lifecycle.settle import settle
from jobd.store.ids import new_id
from tests.lifecycle.direct import until_waiting
from tests.lifecycle.test_depend import after, end, settle_all, taken
from tests.support.factories import (
    NOW,
    assert_counters_are_right,
    at,
    claim_one,
    completion,
    make_running,
    new_job,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.lifecycle.enqueue import NewJob
    from jobd.store.postgres import Database


def waits_for_group(on_id: UUID, /, *, on_any: bool = False, **changes: Any) -> NewJob:
    return new_job(depends_on=(Dependency(on_id=on_id, is_group=True, on_any=on_any, ref="group"),), **changes)


async def make_group(db: Database, *, on_any: bool = True, with_callback: bool = True) -> tuple[UUID, UUID]:
    """A group and its callback."""
    group_id = new_id()
    callback = waits_for_group(group_id, on_any=on_any) if with_callback else None
    async with db.connection() as connection:
        assert await create_group(connection, NewGroup(id=group_id, callback=callback), now=NOW)
    return group_id, callback.id if callback else group_id


async def make_members(db: Database, group_id: UUID, number: int) -> list[UUID]:
    jobs = [new_job(group_id=group_id) for _ in range(number)]
    assert await enqueue(db, jobs, now=NOW) == [Created(job.id) for job in jobs]
    return [job.id for job in jobs]


async def group_of(db: Database, group_id: UUID) -> Group:
    group = await read_group(db, group_id)
    assert group is not None
    return group


def counters(group: Group) -> tuple[int, int, int, int, int]:
    return group.members, group.done, group.error, group.canceled, group.retried


async def test_a_group_counts_its_members_and_runs_its_callback_once(db: Database) -> None:
    group_id, callback = await make_group(db)
    members = await make_members(db, group_id, 3)
    for job_id, status in zip(members, (JobStatus.DONE, JobStatus.ERROR), strict=False):
        await end(db, await claim_one(db, job_id), status)
    await cancel(db, members[2:], now=NOW)

    await settle_all(db)
    open_group = await group_of(db, group_id)
    early = await taken(db)
    await seal_group(db, group_id, now=NOW)
    await settle_all(db)

    assert (counters(open_group), open_group.status, early) == ((3, 1, 1, 1, 0), "running", [])
    assert (await group_of(db, group_id)).status == "error"
    assert await taken(db) == [callback]
    assert not await seal_group(db, group_id, now=NOW)
    assert await settle_all(db) == []
    await assert_counters_are_right(db)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("on_any", [False, True])
async def test_the_last_member_of_a_sealed_group_lets_its_callback_go(db: Database, fails: bool, on_any: bool) -> None:
    group_id, callback = await make_group(db, on_any=on_any)
    (member,) = await make_members(db, group_id, 1)
    await seal_group(db, group_id, now=NOW)
    await settle_all(db)
    assert await taken(db) == [member]

    claimed = await db.fetchrow("SELECT resource_id AS job_id, attempt_id, lease_token FROM leases")
    assert claimed is not None
    if fails:
        await cancel(db, [member], now=NOW)
        await db.execute("DELETE FROM leases")
        await db.execute("UPDATE jobs SET status = 'canceled', finished_at = $2 WHERE id = $1", member, NOW)
    else:
        await complete(db, [Completion(**dict(claimed))], now=NOW)
    await settle_all(db)

    runs = on_any or not fails
    assert await taken(db) == ([callback] if runs else [])
    assert await status_of(db, callback) is (JobStatus.RUNNING if runs else JobStatus.CANCELED)


async def test_a_group_without_members_is_finished_when_it_is_sealed(db: Database) -> None:
    group_id, callback = await make_group(db)

    await seal_group(db, group_id, now=NOW)
    await settle_all(db)

    assert (await group_of(db, group_id)).status == "done"
    assert await taken(db) == [callback]


async def test_a_group_of_the_same_id_is_made_once(db: Database) -> None:
    group_id, callback = await make_group(db)

    async with db.connection() as connection:
        again = await create_group(connection, NewGroup(id=group_id, callback=waits_for_group(group_id)), now=NOW)

    assert not again
    assert (await group_of(db, group_id)).callback_id == callback
    assert await db.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_sealed_and_an_unknown_group_take_no_members(db: Database) -> None:
    sealed, _ = await make_group(db)
    await seal_group(db, sealed, now=NOW)
    unknown = new_id()

    answers = await enqueue(db, [new_job(group_id=sealed), new_job(group_id=unknown)], now=NOW)

    assert answers == [LinkRefused("group_sealed", sealed), LinkRefused("unknown_group", unknown)]
    assert counters(await group_of(db, sealed)) == (0, 0, 0, 0, 0)


async def test_a_job_may_wait_for_a_group_that_is_finished(db: Database) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    await seal_group(db, group_id, now=NOW)
    await settle_all(db)
    job = waits_for_group(group_id)

    await enqueue(db, [job], now=NOW)
    await settle_all(db)

    assert await taken(db) == [job.id]


async def test_a_dead_member_that_runs_again_is_a_member(db: Database) -> None:
    group_id, callback = await make_group(db)
    (member,) = await make_members(db, group_id, 1)
    await end(db, await claim_one(db, member), JobStatus.ERROR)
    await seal_group(db, group_id, now=NOW)
    await settle_all(db)
    assert await taken(db) == [callback]

    redriven = await redrive_once(db, [member], now=NOW)
    assert isinstance(redriven, dict)
    again = await group_of(db, group_id)
    await complete(db, [completion(await claim_one(db, redriven[member]))], now=NOW)
    await settle_all(db)

    assert (counters(again), again.status) == ((2, 0, 1, 0, 1), "running")
    finished = await group_of(db, group_id)
    assert (counters(finished), finished.status) == ((2, 1, 1, 0, 1), "done")
    assert await taken(db) == []  # the callback came once
    found = await search_jobs(db, JobFilter(group=group_id))
    assert {job.id for job in found.jobs} == {member, redriven[member]}


async def test_a_job_that_runs_again_has_the_inputs_of_the_old_one(db: Database) -> None:
    first = await make_running(db)
    job = after(first.job_id)
    await enqueue(db, [job], now=NOW)
    await end(db, first, JobStatus.DONE)
    await settle_all(db)
    await end(db, await claim_one(db, job.id), JobStatus.ERROR)

    redriven = await redrive_once(db, [job.id], now=NOW)

    assert isinstance(redriven, dict)
    claimed = await claim_one(db, redriven[job.id])
    assert claimed.has_inputs
    rows = await db.fetch("SELECT on_id, open FROM dependencies WHERE job_id = $1", redriven[job.id])
    assert [tuple(row) for row in rows] == [(first.job_id, False)]


@pytest.mark.parametrize("whole", [False, True])
async def test_a_ring_through_groups_is_refused(db: Database, whole: bool) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    waiting = waits_for_group(group_id)
    await enqueue(db, [waiting], now=NOW)
    good = new_job()

    answers = await enqueue(db, [after(waiting.id, group_id=group_id), good], whole=whole, now=NOW)

    assert answers == [LinkRefused("dependency_cycle", group_id), Created(good.id)]
    assert await db.fetchval("SELECT count(*) FROM jobs") == (1 if whole else 2)


async def test_a_job_that_waited_for_the_group_and_was_canceled_makes_no_ring(db: Database) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    waiting = waits_for_group(group_id)
    await enqueue(db, [waiting], now=NOW)
    await cancel(db, [waiting.id], now=NOW)
    member = after(waiting.id, on_any=True, group_id=group_id)

    assert await enqueue(db, [member], now=NOW) == [Created(member.id)]

    await settle_all(db)
    assert await taken(db) == [member.id]


async def test_a_ring_through_two_groups_in_one_batch_is_refused(db: Database) -> None:
    (one, _), (other, _) = await make_group(db, with_callback=False), await make_group(db, with_callback=False)
    jobs = [waits_for_group(other, group_id=one), waits_for_group(one, group_id=other)]

    answers = await enqueue(db, jobs, now=NOW)

    assert answers == [LinkRefused("dependency_cycle", one), LinkRefused("dependency_cycle", other)]
    assert await db.fetchval("SELECT count(*) FROM jobs") == 0


async def test_two_who_would_close_a_ring_at_once_do_not_both(db: Database) -> None:
    (one, _), (other, _) = await make_group(db, with_callback=False), await make_group(db, with_callback=False)
    answers: list[object] = []

    async def enter(group_id: UUID, waits_for: UUID) -> None:
        answers.extend(await enqueue(db, [waits_for_group(waits_for, group_id=group_id)], now=NOW))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter, one, other)
        tasks.start_soon(enter, other, one)

    assert sorted(type(answer).__name__ for answer in answers) == ["Created", "LinkRefused"]


async def test_groups_are_listed_newest_first_in_pages(db: Database) -> None:
    ids = []
    for n in range(5):
        async with db.connection() as connection:
            group = NewGroup(id=new_id(), name=str(n))
            await create_group(connection, group, now=at(n))
            ids.append(group.id)

    first = await list_groups(db, most=3)
    rest = await list_groups(db, most=3, before=first[-1].id)

    assert [group.name for group in (*first, *rest)] == ["4", "3", "2", "1", "0"]


async def test_a_finished_group_goes_when_its_members_and_its_callback_have_gone(db: Database) -> None:
    group_id, callback = await make_group(db)
    (member,) = await make_members(db, group_id, 1)
    await end(db, await claim_one(db, member), JobStatus.DONE)
    await seal_group(db, group_id, now=NOW)
    await settle_all(db)

    early = await prune_groups(db, now=at(10))
    await complete(db, [completion(await claim_one(db, callback))], now=NOW)
    await prune(db, now=at(10))
    late = await prune_groups(db, now=at(10))

    assert (early, late, await read_group(db, group_id)) == (0, 1, None)


# What was given up because a member failed


async def make_graph(
    db: Database, group_id: UUID, fails: Sequence[str] = ("a",), is_settled: bool = True, **edges: Sequence[str]
) -> dict[str, UUID]:
    """Members by name, each after others; those that have nobody before them end, some in error."""
    jobs: dict[str, NewJob] = {}
    for name, before in edges.items():
        depends_on = tuple(Dependency(on_id=jobs[other].id, ref=other) for other in before)
        jobs[name] = new_job(group_id=group_id, depends_on=depends_on)
    assert await enqueue(db, list(jobs.values()), now=NOW) == [Created(job.id) for job in jobs.values()]
    await seal_group(db, group_id, now=NOW)
    for name, before in edges.items():
        if not before:
            status = JobStatus.ERROR if name in fails else JobStatus.DONE
            await end(db, await claim_one(db, jobs[name].id), status)
    if is_settled:
        await settle_all(db)
    return {name: job.id for name, job in jobs.items()}


async def retry(db: Database, group_id: UUID, *job_ids: UUID) -> dict[UUID, UUID]:
    """Run failed members again; the new job of each member, also of those that were revived."""
    redriven = await redrive_once(db, job_ids, group_id=group_id, now=NOW)
    assert isinstance(redriven, dict)
    rows = await db.fetch("SELECT redriven_from, id FROM jobs WHERE redriven_from IS NOT NULL")
    return {row["redriven_from"]: row["id"] for row in rows}


async def run_ready(db: Database, status: JobStatus = JobStatus.DONE) -> list[UUID]:
    """Run what may run now, to this end."""
    rows = await db.fetch("SELECT id FROM jobs WHERE order_at IS NOT NULL ORDER BY order_at, id")
    for row in rows:
        await end(db, await claim_one(db, row["id"]), status)
    await settle_all(db)
    return [row["id"] for row in rows]


async def test_members_that_were_given_up_run_again_after_the_one_that_failed_in_their_order(db: Database) -> None:
    group_id, callback = await make_group(db)
    jobs = await make_graph(db, group_id, a=(), ok=(), b=("a", "ok"), c=("b",), d=("a", "c"))
    assert await run_ready(db) == [callback]
    assert (await group_of(db, group_id)).status == "error"

    new = await retry(db, group_id, jobs["a"])

    assert new.keys() == {jobs[name] for name in "abcd"}
    assert [await run_ready(db) for _ in range(4)] == [[new[jobs[name]]] for name in "abcd"]
    finished = await group_of(db, group_id)
    assert (counters(finished), finished.status) == ((9, 5, 1, 3, 4), "done")
    assert await run_ready(db) == []  # the callback came once
    rows = await db.fetch("SELECT ref, on_id FROM dependencies WHERE job_id = $1 ORDER BY place", new[jobs["b"]])
    assert [tuple(row) for row in rows] == [("a", new[jobs["a"]]), ("ok", jobs["ok"])]
    await assert_counters_are_right(db)


async def test_a_callback_that_waited_for_success_in_vain_runs_once_after_a_retry(db: Database) -> None:
    group_id, callback = await make_group(db, on_any=False)
    jobs = await make_graph(db, group_id, a=(), b=("a",))
    assert await status_of(db, callback) is JobStatus.CANCELED

    new = await retry(db, group_id, jobs["a"])
    await run_ready(db, JobStatus.ERROR)
    assert await status_of(db, new[callback]) is JobStatus.CANCELED
    again = await retry(db, group_id, new[jobs["a"]])

    ran = [await run_ready(db) for _ in range(4)]
    last = (await group_of(db, group_id)).callback_id
    assert ran == [[again[new[jobs["a"]]]], [again[new[jobs["b"]]]], [last], []]
    assert last == again[new[callback]]


async def test_a_member_that_waits_for_two_that_failed_is_revived_with_the_last_of_them(db: Database) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    jobs = await make_graph(db, group_id, ("a", "b"), a=(), b=(), c=("a", "b"))

    assert jobs["c"] not in await retry(db, group_id, jobs["a"])
    await run_ready(db)
    new = await retry(db, group_id, jobs["b"])

    assert jobs["c"] in new
    assert [await run_ready(db) for _ in range(2)] == [[new[jobs["b"]]], [new[jobs["c"]]]]
    assert (await group_of(db, group_id)).status == "done"


async def test_who_was_canceled_by_a_caller_is_not_revived(db: Database) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    first = await make_running(db, group_id=group_id)
    job = new_job(group_id=group_id, depends_on=(Dependency(on_id=first.job_id),))
    await enqueue(db, [job], now=NOW)
    await cancel(db, [job.id], now=NOW)
    await end(db, first, JobStatus.ERROR)
    await settle_all(db)

    assert (await retry(db, group_id, first.job_id)).keys() == {first.job_id}


async def test_two_who_retry_at_once_revive_each_member_once(db: Database) -> None:
    group_id, _ = await make_group(db, with_callback=False)
    jobs = await make_graph(db, group_id, ("a", "b"), a=(), b=(), c=("a", "b"), d=("c",))

    async with anyio.create_task_group() as tasks:
        for name in "aabb":
            tasks.start_soon(retry, db, group_id, jobs[name])

    rows = await db.fetch("SELECT redriven_from FROM jobs WHERE redriven_from IS NOT NULL")
    assert sorted(row["redriven_from"] for row in rows) == sorted(jobs.values())


async def test_a_retry_before_anybody_heard_of_the_failure_leaves_those_that_wait_in_peace(db: Database) -> None:
    group_id, callback = await make_group(db, on_any=False)
    jobs = await make_graph(db, group_id, is_settled=False, a=(), b=("a",))

    new = await retry(db, group_id, jobs["a"])
    await settle_all(db)

    assert new.keys() == {jobs["a"]}
    assert [await run_ready(db) for _ in range(3)] == [[new[jobs["a"]]], [jobs["b"]], [callback]]
    assert (await group_of(db, group_id)).status == "done"


async def test_a_callback_is_not_told_of_a_finish_that_a_retry_has_undone(db: Database) -> None:
    group_id, callback = await make_group(db, on_any=False)
    jobs = await make_graph(db, group_id, is_settled=False, a=())
    async with db.connection() as connection:
        await settle(connection, now=NOW)  # counts the member, and leaves the finish of the group
    assert (await group_of(db, group_id)).is_finished
    assert await status_of(db, callback) is JobStatus.QUEUED

    await retry(db, group_id, jobs["a"])
    await settle_all(db)
    await run_ready(db)

    assert await run_ready(db) == [callback]


async def test_a_retry_waits_for_one_who_is_telling_of_the_failure(db: Database) -> None:
    """Else a member that is being given up would be neither seen as such nor kept."""
    group_id, _ = await make_group(db, with_callback=False)
    jobs = await make_graph(db, group_id, is_settled=False, a=(), b=("a",))
    new: dict[UUID, UUID] = {}

    async def retry_later() -> None:
        new.update(await retry(db, group_id, jobs["a"]))

    async with anyio.create_task_group() as tasks:
        async with db.connection() as connection, connection.transaction():
            await settle(connection, now=NOW)
            tasks.start_soon(retry_later)
            await until_waiting(db)

    assert new.keys() == {jobs["a"], jobs["b"]}
