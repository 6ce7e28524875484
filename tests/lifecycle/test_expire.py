"""Expire: a job that has not started by its `expires_at` is canceled, and is never started afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.job.model import NotClaimable, NotClaimableReason
from jobd.lifecycle.claim import claim
from jobd.lifecycle.enqueue import enqueue_and_take
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from tests.lifecycle.direct import TAKERS, set_mode, want
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    ask,
    assert_counters_are_right,
    at,
    failure,
    make_many,
    make_queued,
    make_running,
    new_job,
    read,
    told_of,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database


async def test_a_job_that_has_not_started_in_time_is_canceled(db: Database) -> None:
    job_id = await make_queued(db, expires_at=at(10))

    assert await expire(db, now=at(9.9)) == []
    assert await expire(db, now=at(10)) == [job_id]

    job = await read(db, job_id)
    assert (job.status, job.finished_at, job.error is not None and "expired" in job.error) == ("canceled", at(10), True)
    assert await told_of(db, job_id) == [("queued", 1), ("canceled", 2)]
    assert await expire(db, now=at(10)) == []
    await assert_counters_are_right(db)


async def test_the_time_may_be_said_in_seconds_from_now(db: Database) -> None:
    job_id = await make_queued(db, expires_in_s=10.0)

    assert (await read(db, job_id)).expires_at == at(10)


async def test_a_delayed_job_expires_too(db: Database) -> None:
    job_id = await make_queued(db, delay_s=100.0, expires_in_s=200.0)

    assert await expire(db, now=at(200)) == [job_id]


async def test_a_job_that_was_started_in_time_does_not_expire(db: Database) -> None:
    claimed = await make_running(db, expires_at=at(10))

    assert await expire(db, now=at(20)) == []
    await fail(db, [failure(claimed)], policy=POLICY, jitter=0.0, now=at(30))

    assert await expire(db, now=at(40)) == []
    assert (await read(db, claimed.job_id)).status == "queued"


async def test_what_expired_first_goes_first_page_by_page(db: Database) -> None:
    late, early = await make_queued(db, expires_at=at(20)), await make_queued(db, expires_at=at(10))
    await make_many(db, 3)

    assert await expire(db, most=1, now=at(30)) == [early]
    assert await expire(db, most=1, now=at(30)) == [late]
    assert await expire(db, most=1, now=at(30)) == []


@pytest.mark.parametrize("taker", TAKERS)
async def test_an_expired_job_is_never_taken(db: Database, taker: str) -> None:
    await set_mode(db, "direct")
    await make_queued(db, expires_at=at(10))
    good = await make_queued(db, expires_at=at(30))

    taken = await TAKERS[taker](db, [want()], ttl_s=TTL_S, now=at(20))

    assert [job.job_id for job in taken] == [good]


async def test_an_expired_job_is_never_claimed_by_its_message(db: Database) -> None:
    job_id = await make_queued(db, expires_at=at(10))

    (answer,) = await claim(db, [ask(job_id)], ttl_s=TTL_S, now=at(10))

    assert answer == NotClaimable(NotClaimableReason.NOT_DUE)


async def test_a_new_job_that_has_expired_already_is_not_taken(db: Database) -> None:
    await set_mode(db, "direct")
    job = new_job(expires_at=at(-1))

    _, taken = await enqueue_and_take(db, [job], [want()], ttl_s=TTL_S, now=NOW)

    assert taken == []
    assert await expire(db, now=NOW) == [job.id]


async def test_the_last_event_says_why(db: Database) -> None:
    job_id = await make_queued(db, expires_at=at(10))
    await expire(db, now=at(10))

    row = await db.fetchrow(
        "SELECT error->>'code' AS code, error->>'retryable' AS retryable FROM jobs WHERE id = $1", job_id
    )

    assert row is not None
    assert tuple(row) == ("expired", "false")
