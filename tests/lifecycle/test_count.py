"""Count: exact by the counters or by looking, and never more than a bounded number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.search import JobCount, JobFilter, count_jobs
from tests.support.factories import at, make_job, make_many, make_queued

if TYPE_CHECKING:
    from jobd.store.postgres import Database

LIVE, FINAL = ("queued", "running"), ("done", "error", "canceled")


@pytest.mark.parametrize("stretch", [1, 3, 1000])
@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 11),
        ({"status": "queued"}, 3),
        ({"status": "running"}, 2),
        ({"queue": "a"}, 5),
        ({"queue": "nowhere"}, 0),
        ({"status": "error", "queue": "a"}, 1),
        ({"among": LIVE}, 5),
        ({"among": FINAL, "queue": "a"}, 3),
        ({"task": "x"}, 5),
        ({"task": "x", "status": "queued"}, 1),
        ({"task": "x", "status": "running"}, 1),
        ({"task": "x", "among": LIVE}, 2),
        ({"task": "y", "among": LIVE}, 3),
        ({"task": "y", "among": FINAL}, 3),
        ({"error": "boom"}, 2),
        ({"error": "boom", "task": "y"}, 1),
        ({"error": "bang"}, 0),
        ({"text": "no message"}, 0),
        ({"until": at(-86_400 * 365)}, 0),
    ],
)
async def test_every_filter_is_counted_exactly(db: Database, filters: dict[str, Any], count: int, stretch: int) -> None:
    for queue, task in ("ax", "by"):
        for status in JobStatus:
            await make_job(db, status, queue=queue, task=task)
    await make_queued(db, queue="b", task="y", delay_s=3600.0)

    found = await count_jobs(db, JobFilter(**filters), stretch=stretch)

    assert found == JobCount(count=count, is_exact=True)


async def test_a_count_by_looking_ends_after_its_bound_and_says_so(db: Database) -> None:
    await make_many(db, 20, task="x")

    found = await count_jobs(db, JobFilter(task="x"), most=12, stretch=4)

    assert found == JobCount(count=12, is_exact=False)


async def test_counters_tell_of_more_jobs_than_may_be_looked_at(db: Database) -> None:
    await make_many(db, 20, queue="a")

    found = await count_jobs(db, JobFilter(queue="a", status="queued"), most=4, stretch=4)

    assert found == JobCount(count=20, is_exact=True)
