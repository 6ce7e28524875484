"""Redrive: a dead letter runs again as a new job; the old one never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.publish import select_for_publish
from jobd.lifecycle.read import list_dead_letters
from jobd.lifecycle.redrive import redrive as redrive_if_room
from jobd.store.ids import new_id
from tests.support.factories import (
    assert_counters_are_right,
    at,
    claim_one,
    make_job,
    outcomes_of,
    read,
    told_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Session

ERROR = JobStatus.ERROR


async def redrive(connection: Session, job_ids: Sequence[UUID], *, now: datetime | None = None) -> dict[UUID, UUID]:
    redriven = await redrive_if_room(connection, job_ids, now=now)
    assert isinstance(redriven, dict)
    return redriven


async def test_a_dead_letter_runs_again_as_a_new_job_linked_to_the_old(db: Database) -> None:
    old_id = await make_job(
        db, ERROR, task="chat", queue="gpu", payload='{"a": 1}', priority=4, max_attempts=5, spec_hash=b"s" * 32
    )
    old = await read(db, old_id)

    new_ids = await redrive(db, [old_id], now=at(5))

    new = await read(db, new_ids[old_id])
    assert (new.redriven_from, new.status, new.enqueue_id, new.version) == (old_id, "queued", 1, 1)
    for field in ("task", "queue", "payload", "priority", "max_attempts", "timeout_s", "ttl_s", "spec_hash"):
        assert getattr(new, field) == getattr(old, field)
    assert (new.attempt_no, new.attempt_count, new.error, new.cancel_requested) == (0, 0, None, False)
    assert (new.created_at, new.run_after) == (at(5), at(5))
    assert await told_of(db, new.id) == [("queued", 1)]
    await assert_counters_are_right(db)


async def test_the_old_job_stays_as_it_is(db: Database) -> None:
    old_id = await make_job(db, ERROR)
    before = await read(db, old_id)

    new_ids = await redrive(db, [old_id], now=at(5))

    assert await read(db, old_id) == before
    assert await outcomes_of(db, old_id) == ["failed"]
    (letter,) = (await list_dead_letters(db)).letters
    assert (letter.job_id, letter.redriven_to) == (old_id, new_ids[old_id])


async def test_the_new_job_is_offered_and_claimed_like_any_other(db: Database) -> None:
    old_id = await make_job(db, ERROR)

    new_id = (await redrive(db, [old_id], now=at(5)))[old_id]

    assert [offer.job_id for offer in await select_for_publish(db, ["default"], most=5)] == [new_id]
    assert (await claim_one(db, new_id, now=at(5))).attempt_no == 1


async def test_a_dead_letter_may_be_redriven_again_and_remembers_the_newest(db: Database) -> None:
    old_id = await make_job(db, ERROR)

    first, second = await redrive(db, [old_id]), await redrive(db, [old_id])

    assert first[old_id] != second[old_id]
    (letter,) = (await list_dead_letters(db)).letters
    assert letter.redriven_to == second[old_id]


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not ERROR])
async def test_what_is_no_dead_letter_is_not_redriven(db: Database, status: JobStatus) -> None:
    job_id = await make_job(db, status)

    assert await redrive(db, [job_id], now=at(5)) == {}
    assert await db.pool.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_mixed_batch_redrives_each_dead_letter_once(db: Database) -> None:
    dead = [await make_job(db, ERROR) for _ in range(3)]
    done, nobody = await make_job(db, JobStatus.DONE), new_id()

    new_ids = await redrive(db, [dead[2], nobody, dead[0], done, dead[1], dead[0]], now=at(5))

    assert sorted(new_ids) == dead
    assert len(set(new_ids.values())) == 3
    for old_id, new in new_ids.items():
        assert (await read(db, new)).redriven_from == old_id
    assert await redrive(db, []) == {}
    await assert_counters_are_right(db)


async def test_dead_letters_run_all_or_not_at_all_when_their_queue_is_full(db: Database) -> None:
    dead = [await make_job(db, ERROR, queue="gpu") for _ in range(2)]
    other = await make_job(db, ERROR, queue="default")
    await make_job(db, JobStatus.QUEUED, queue="gpu")

    refused = await redrive_if_room(db, [*dead, other], max_queued=2, now=at(5))
    letters = (await list_dead_letters(db)).letters
    taken = await redrive_if_room(db, [dead[0], other], max_queued=2, now=at(5))

    assert refused == QueueFull("gpu")
    assert [letter.redriven_to for letter in letters] == [None] * 3
    assert isinstance(taken, dict)
    assert sorted(taken) == sorted([dead[0], other])
    await assert_counters_are_right(db)
