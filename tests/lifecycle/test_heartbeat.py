"""Heartbeat: the token renews, whatever the clock says, and each holder hears whether to go on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from jobd.job.model import LeaseLost
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.heartbeat import Renewal, heartbeat
from jobd.lifecycle.lease import LeaseProof
from jobd.store.ids import new_id
from tests.support.factories import (
    NOW,
    TTL_S,
    all_rows,
    at,
    beat,
    claim_one,
    completion,
    make_queued,
    make_running,
    one_row,
    read,
    told_of,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

LOST = LeaseLost()


async def renew(db: Database, *beats: LeaseProof, now: datetime = NOW) -> list[Renewal | LeaseLost]:
    return await heartbeat(db, beats, ttl_s=TTL_S, now=now)


def renewal(seconds: float, version: int = 2, *, cancel: bool = False) -> Renewal:
    return Renewal(lease_expires_at=at(seconds), claim_version=version, cancel_requested=cancel)


async def test_a_beat_extends_the_lease_and_counts_up_its_version(db: Database) -> None:
    claimed = await make_running(db)

    assert await renew(db, beat(claimed), now=at(20)) == [renewal(20 + TTL_S)]
    assert await renew(db, beat(claimed), now=at(40)) == [renewal(40 + TTL_S, 3)]
    lease = await one_row(db, "SELECT lease_expires_at, heartbeat_at, acquired_at, claim_version FROM leases")
    assert lease == (at(40 + TTL_S), at(40), NOW, 3)


async def test_a_beat_leaves_the_job_alone_and_is_told_to_nobody(db: Database) -> None:
    claimed = await make_running(db)
    before = await read(db, claimed.job_id)

    await renew(db, beat(claimed), now=at(20))

    after = await read(db, claimed.job_id)
    assert (after.version, after.updated_at, after.attempt_count) == (before.version, before.updated_at, 1)
    assert await told_of(db, claimed.job_id) == [("queued", 1), ("running", 2)]


async def test_an_expired_lease_that_nobody_took_is_renewed(db: Database) -> None:
    claimed = await make_running(db)

    assert await renew(db, beat(claimed), now=at(500)) == [renewal(500 + TTL_S)]


async def test_the_expiry_never_goes_back_though_the_clock_does(db: Database) -> None:
    claimed = await make_running(db)

    assert await renew(db, beat(claimed), now=at(-30)) == [renewal(TTL_S)]


async def test_the_holder_of_a_job_that_is_to_be_canceled_is_told(db: Database) -> None:
    canceled, other = await make_running(db), await make_running(db)
    await cancel(db, [canceled.job_id], now=NOW)

    assert await renew(db, beat(canceled), beat(other)) == [renewal(TTL_S, cancel=True), renewal(TTL_S)]


async def test_the_clock_of_the_database_counts_when_no_now_is_given(db: Database) -> None:
    claimed = await make_running(db)

    (answer,) = await heartbeat(db, [beat(claimed)], ttl_s=TTL_S)

    assert isinstance(answer, Renewal)
    now = await db.pool.fetchval("SELECT clock_timestamp()")
    assert abs(answer.lease_expires_at - now - timedelta(seconds=TTL_S)) < timedelta(seconds=10)


# Lost


async def test_a_token_that_was_never_given_out_is_lost(db: Database) -> None:
    claimed = await make_running(db)
    before = await all_rows(db)

    assert await renew(db, beat(claimed, lease_token=uuid4())) == [LOST]
    assert await all_rows(db) == before


async def test_the_token_of_another_job_is_lost(db: Database) -> None:
    first, other = await make_running(db), await make_running(db)

    answers = await renew(db, beat(first, lease_token=other.lease_token), beat(other, lease_token=first.lease_token))

    assert answers == [LOST, LOST]


async def test_a_lease_that_was_taken_over_is_lost_to_its_old_holder(db: Database) -> None:
    old = await make_running(db)
    new = await claim_one(db, old.job_id, now=at(100))

    assert await renew(db, beat(old), now=at(100)) == [LOST]
    assert await renew(db, beat(new), now=at(100)) == [renewal(100 + TTL_S)]


async def test_a_lease_that_ended_is_lost(db: Database) -> None:
    claimed = await make_running(db)
    await complete(db, [completion(claimed)], now=NOW)

    assert await renew(db, beat(claimed)) == [LOST]


@pytest.mark.parametrize("job_id", ["queued", "unknown"])
async def test_a_job_without_a_lease_has_none_to_renew(db: Database, job_id: str) -> None:
    which = await make_queued(db) if job_id == "queued" else new_id()

    assert await renew(db, LeaseProof(resource_id=which, lease_token=uuid4())) == [LOST]


@pytest.mark.parametrize(("shown", "renewed"), [(None, True), (1, True), (0, False), (2, False)])
async def test_a_holder_that_shows_a_version_loses_if_it_has_moved(
    db: Database, shown: int | None, renewed: bool
) -> None:
    claimed = await make_running(db)

    (answer,) = await renew(db, beat(claimed, claim_version=shown))

    assert isinstance(answer, Renewal) == renewed


# Batches


async def test_answers_are_in_the_order_of_the_beats(db: Database) -> None:
    claims = [await make_running(db) for _ in range(4)]
    claims.reverse()
    await cancel(db, [claims[2].job_id], now=NOW)
    beats = [beat(claims[0]), beat(claims[1], lease_token=uuid4()), beat(claims[2]), beat(claims[3], claim_version=7)]

    assert await renew(db, *beats) == [renewal(TTL_S), LOST, renewal(TTL_S, cancel=True), LOST]


async def test_no_beats_are_no_work(db: Database) -> None:
    assert await renew(db) == []


async def test_a_doubled_beat_renews_once_and_answers_both(db: Database) -> None:
    claimed = await make_running(db)

    assert await renew(db, beat(claimed), beat(claimed)) == [renewal(TTL_S), renewal(TTL_S)]


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_the_beat_of_a_zombie_does_not_cost_the_holder_its_lease(db: Database, zombie_first: bool) -> None:
    zombie = await make_running(db)
    holder = await claim_one(db, zombie.job_id, now=at(100))
    beats = [beat(zombie), beat(holder)] if zombie_first else [beat(holder), beat(zombie)]

    answers = await renew(db, *beats, now=at(110))

    expected = [LOST, renewal(110 + TTL_S)]
    assert answers == (expected if zombie_first else expected[::-1])
