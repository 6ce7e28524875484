"""Take what fits: which jobs a take starts while memory is short, and that looking for them costs the same always."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio
import pytest

from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.pause import pause_task
from jobd.lifecycle.take import TakeTerms
from jobd.lifecycle.take_fitting import Fitting, FittingJobs, take_fitting
from tests.lifecycle.direct import set_mode, want
from tests.lifecycle.test_cost import pages
from tests.support.factories import NOW, TTL_S, assert_counters_are_right, at, make_queued, new_job

if TYPE_CHECKING:
    from jobd.lifecycle.take import Want
    from jobd.store.postgres import Database
    from jobd.store.session import Session


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct", "default", "other")


async def line_up(db: Database, letters: str, queue: str = "default") -> dict[object, str]:
    """Jobs in this order: s small, without a need; l and m large, of two tasks."""
    return {
        await make_queued(db, at(-len(letters) + place), task=letter, queue=queue): f"{letter}{place}"
        for place, letter in enumerate(letters)
    }


async def take(
    session: Session, *wants: Want, startable: str = "", impossible: str = "", looked_at: int = 1000
) -> FittingJobs:
    fitting = Fitting(["l", "m"], list(startable), list(impossible))
    terms = TakeTerms(wants or [want()], TTL_S)
    return await take_fitting(session, terms, fitting, looked_at=looked_at, now=NOW)


class Case(NamedTuple):
    line: str
    most: int
    #: Tasks of which a job may start, and those that never can.
    startable: str
    impossible: str
    taken: str
    short: str | None


CASES = [
    Case("sss", 2, "", "", "s0 s1", None),
    Case("lss", 9, "", "", "s1 s2", "l"),
    Case("lss", 9, "l", "", "l0 s1 s2", None),
    Case("lls", 9, "l", "", "l0 s2", None),  # one at a time
    Case("lms", 9, "m", "", "s2", "l"),  # no overtaking among those with a need
    Case("lms", 9, "lm", "", "l0 s2", None),
    Case("lms", 9, "m", "l", "m1 s2", None),  # but what never fits here keeps nobody up
    Case("lms", 9, "", "lm", "s2", None),
    Case("slsl", 2, "l", "", "s0 l1", None),
    Case("ssl", 2, "l", "", "s0 s1", None),  # its turn has not come
    Case("ssl", 2, "", "", "s0 s1", "l"),
    Case("", 9, "l", "", "", None),
]


@pytest.mark.parametrize("case", CASES)
async def test_jobs_are_taken_in_their_order_as_far_as_they_fit(db: Database, case: Case) -> None:
    names = await line_up(db, case.line)

    taken = await take(db, want(case.most), startable=case.startable, impossible=case.impossible)

    assert " ".join(names[job.job_id] for job in taken.jobs) == case.taken
    assert taken.short_task == case.short
    assert [job.owner_id for job in taken.jobs] == [f"default-{n + 1}" for n in range(len(taken.jobs))]
    await assert_counters_are_right(db)


async def test_the_first_need_of_all_queues_is_the_one_that_starts(db: Database) -> None:
    late = await line_up(db, "l", "default")
    early = await line_up(db, "slsss", "other")

    taken = await take(db, want(9, "default"), want(9, "other"), startable="l")

    assert sorted((early | late)[job.job_id] for job in taken.jobs) == ["l1", "s0", "s2", "s3", "s4"]


async def test_only_the_beginning_of_a_line_is_looked_at(db: Database) -> None:
    names = await line_up(db, "lllss")

    near, far = await take(db, looked_at=2), await take(db, looked_at=3)

    assert [names[job.job_id] for job in near.jobs] == []
    assert [names[job.job_id] for job in far.jobs] == ["s3"]


async def test_paused_task_is_not_what_the_memory_is_short_for(db: Database) -> None:
    names = await line_up(db, "lms")
    await db.execute("INSERT INTO pauses (kind, name, paused, updated_at) VALUES ('task', 'l', true, now())")

    taken = await take(db, startable="m")

    assert [names[job.job_id] for job in taken.jobs] == ["m1", "s2"]
    assert await pause_task(db, "l", paused=False) == set()


async def test_two_takes_at_once_never_start_the_same_job(db: Database) -> None:
    names = await line_up(db, "lsssl")
    async with db.pool.acquire() as one, db.pool.acquire() as other, one.transaction(), other.transaction():
        with anyio.fail_after(20):
            mine = await take(one, want(2), startable="l")
            theirs = await take(other, want(2), startable="l")

    assert [names[job.job_id] for job in mine.jobs] == ["l0", "s1"]
    # The second large one, and what the first take has locked beside its own, come with the next take.
    assert [names[job.job_id] for job in theirs.jobs] == ["s3"]


async def test_take_touches_no_more_pages_however_many_jobs_wait_for_memory(db: Database) -> None:
    touched = []
    async with db.pool.acquire() as connection:
        for _ in range(2):
            await enqueue(db, [new_job(task="l") for _ in range(3000)])
            await take(connection, want(9))  # so that what is written once is written
            before = await pages(connection)
            assert (await take(connection, want(9))).short_task == "l"
            touched.append(await pages(connection) - before)

    assert touched[1] <= touched[0] * 1.2
