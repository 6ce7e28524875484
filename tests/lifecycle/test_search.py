"""Search: pages that reach everything once, and filters of every kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.search import JobFilter, Page, list_by_spec, search_jobs
from jobd.store.ids import first_id_at
from tests.support.factories import (
    NOW,
    POLICY,
    at,
    completion,
    failure,
    make_job,
    make_many,
    make_queued,
    make_running,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database

SPEC = b"s" * 32


PageReader = Callable[["Database", "UUID | None"], Awaitable[Page]]


async def collect(db: Database, most: int, stretch: int = 1000, **filters: Any) -> tuple[list[UUID], int]:
    wanted = JobFilter(**filters)
    return await collect_by(
        db, most, lambda db, before: search_jobs(db, wanted, most=most, before=before, stretch=stretch)
    )


async def collect_by(db: Database, most: int, read_page: PageReader) -> tuple[list[UUID], int]:
    """All ids that the pages show, and how many pages there were."""
    found: list[UUID] = []
    pages, before = 0, None
    while True:
        page = await read_page(db, before)
        pages += 1
        assert len(page.jobs) <= most
        found += [job.id for job in page.jobs]
        if page.next_before is None:
            return found, pages
        assert before is None or page.next_before < before, "the cursor does not move"
        before = page.next_before
        assert pages < 1000


@pytest.mark.parametrize("most", [1, 2, 3, 7, 20, 100])
async def test_pages_reach_every_job_once_newest_first(db: Database, most: int) -> None:
    ids = await make_many(db, 20)

    found, _ = await collect(db, most=most)

    assert found == ids[::-1]


@pytest.mark.parametrize("most", [1, 3, 10])
@pytest.mark.parametrize("stretch", [1, 4, 5, 1000])
async def test_filtered_pages_reach_every_fitting_job_once_however_short_the_stretch(
    db: Database, most: int, stretch: int
) -> None:
    ids = [await make_job(db, JobStatus.DONE if n % 5 == 0 else JobStatus.QUEUED) for n in range(17)]

    found, _ = await collect(db, most=most, stretch=stretch, status="done")

    assert found == ids[::5][::-1]


async def test_a_page_looks_at_a_bounded_stretch_and_may_be_empty_without_being_the_last(db: Database) -> None:
    rare = await make_job(db, JobStatus.DONE)
    await make_many(db, 10)

    page = await search_jobs(db, JobFilter(status="done"), most=5, stretch=4)

    assert page.jobs == []
    assert page.next_before is not None
    assert await collect(db, most=5, stretch=4, status="done") == ([rare], 4)


@pytest.mark.parametrize(
    ("filters", "fitting"),
    [
        ({"queue": "a"}, [0, 1]),
        ({"task": "x"}, [0, 2]),
        ({"queue": "a", "task": "x"}, [0]),
        ({"status": "canceled"}, [3]),
        ({"status": "queued", "queue": "b"}, [2]),
        ({"status": "running"}, []),
    ],
)
async def test_filters_may_be_combined(db: Database, filters: dict[str, Any], fitting: list[int]) -> None:
    ids = [await make_queued(db, queue=queue, task=task) for queue, task in ("ax", "ay", "bx", "by")]
    await cancel(db, [ids[3]], now=NOW)

    found, _ = await collect(db, most=10, **filters)

    assert found == [ids[n] for n in reversed(fitting)]


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_jobs_of_one_specification_are_listed(db: Database, most: int) -> None:
    same = []
    for n in range(4):
        same.append(await make_queued(db, spec_hash=SPEC))
        await make_queued(db, spec_hash=b"o" * 32 if n % 2 else None)

    found, _ = await collect_by(db, most, lambda db, before: list_by_spec(db, SPEC, most=most, before=before))

    assert found == same[::-1]


async def test_jobs_that_come_while_pages_are_turned_do_not_disturb(db: Database) -> None:
    ids = await make_many(db, 6)
    first = await search_jobs(db, most=3)
    await make_many(db, 5)

    second = await search_jobs(db, most=3, before=first.next_before)

    assert [job.id for job in [*first.jobs, *second.jobs]] == ids[::-1]


async def test_an_empty_list_is_one_last_page(db: Database) -> None:
    assert await collect(db, most=5) == ([], 1)
    assert await collect(db, most=5, status="done") == ([], 1)
    assert (await list_by_spec(db, SPEC)).next_before is None


async def test_a_summary_says_where_a_job_stands(db: Database) -> None:
    claimed = await make_running(db, priority=3)
    await complete(db, [completion(claimed)], now=at(5))

    (job,) = (await search_jobs(db)).jobs

    assert (job.id, job.status, job.priority, job.attempt_count) == (claimed.job_id, "done", 3, 1)
    assert (job.created_at, job.updated_at, job.finished_at, job.run_after) == (NOW, at(5), at(5), NOW)


@pytest.mark.parametrize("status", list(JobStatus))
@pytest.mark.parametrize("stretch", [1, 3, 1000])
async def test_every_status_is_found_wherever_its_jobs_stand(db: Database, status: JobStatus, stretch: int) -> None:
    expected = []
    for one in [*JobStatus] * 3:
        job_id = await make_job(db, one)
        expected += [job_id] if one is status else []
    delayed = await make_queued(db, delay_s=60.0)
    expected += [delayed] if status is JobStatus.QUEUED else []

    found, _ = await collect(db, 2, stretch, status=status.value)

    assert found == sorted(expected, reverse=True)


@pytest.mark.parametrize(
    ("filters", "fitting"),
    [
        ({"error": "timeout"}, [0, 1]),
        ({"text": "of MEMORY"}, [1, 2]),
        ({"text": "100%_"}, [0]),
        ({"error": "timeout", "text": "memory"}, [1]),
        ({"error": "timeout", "status": "error"}, [0, 1]),
        ({"error": "timeout", "status": "done"}, []),
        ({"error": "memory"}, []),
    ],
)
async def test_errors_are_found_by_code_and_by_message(
    db: Database, filters: dict[str, Any], fitting: list[int]
) -> None:
    errors = [("timeout", "100%_ used"), ("timeout", "out of memory"), ("oom", "Out of Memory"), ("x", "")]
    ids = []
    for code, message in errors:
        claimed = await make_running(db)
        error = f'{{"code": "{code}", "message": "{message}"}}'
        await fail(db.pool, [failure(claimed, error=error, retryable=False)], policy=POLICY, now=NOW)
        ids.append(claimed.job_id)
    await make_job(db, JobStatus.DONE)

    found, _ = await collect(db, 10, **filters)

    assert found == [ids[n] for n in reversed(fitting)]


async def test_times_bound_when_jobs_were_made(db: Database) -> None:
    ids = await make_many(db, 6)
    times = [datetime.fromtimestamp((one.int >> 80) / 1000, timezone.utc) for one in ids]

    assert (await collect(db, 10, since=times[-1] + timedelta(seconds=1)))[0] == []
    assert (await collect(db, 10, until=times[0]))[0] == []
    assert (await collect(db, 2, since=times[0], until=times[-1] + timedelta(seconds=1)))[0] == ids[::-1]
    assert (await collect(db, 2, since=times[0], status="queued"))[0] == ids[::-1]


def test_first_id_of_a_moment_lies_between_those_before_and_after() -> None:
    moment = datetime.now(timezone.utc)
    before, after = (first_id_at(moment + timedelta(milliseconds=n)) for n in (-1, 1))

    assert before < first_id_at(moment) < after
    assert first_id_at(datetime(1900, 1, 1, tzinfo=timezone.utc)).int >> 80 == 0
