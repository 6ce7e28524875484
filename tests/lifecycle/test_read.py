"""Read: jobs by id, dead letters, and counters that equal counts."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import (
    QueueStats,
    gone_among,
    list_dead_letters,
    pause_queue,
    queue_stats,
    read_jobs,
    read_whole_job,
)
from jobd.lifecycle.reap import reap
from jobd.lifecycle.redrive import redrive
from jobd.lifecycle.release import release
from jobd.lifecycle.search import JobFilter, search_jobs
from jobd.store.ids import new_id
from tests.support.claims import take_first
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    ask,
    assert_counters_are_right,
    at,
    beat,
    claim_one,
    completion,
    failure,
    held,
    make_job,
    make_many,
    make_queued,
    make_running,
    read,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

SPEC = b"s" * 32


# By id


async def test_jobs_are_read_by_id_and_unknown_ones_are_missing(db: Database) -> None:
    ids, unknown = await make_many(db, 3), new_id()

    found = await read_jobs(db, [ids[2], unknown, ids[0]])

    assert set(found) == {ids[0], ids[2]}
    assert all(found[job_id].id == job_id for job_id in found)
    assert await read_jobs(db, []) == {}
    assert await gone_among(db, [*ids, unknown]) == set()


async def test_a_running_job_is_read_with_its_holder(db: Database) -> None:
    claimed = await make_running(db)

    job = await read(db, claimed.job_id)

    assert (job.lease_owner, job.lease_expires_at) == ("worker-1", at(TTL_S))


async def test_attempts_are_read_oldest_first_and_the_open_one_last(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, jitter=0.0, now=at(1))
    await release(db, [held(await claim_one(db, claimed.job_id, 2, now=at(2)))], now=at(3))
    await claim_one(db, claimed.job_id, 3, now=at(4), owner_id="w3")

    whole = await read_whole_job(db, claimed.job_id)
    assert whole is not None
    attempts = whole.attempts

    assert whole.job == await read(db, claimed.job_id)
    assert [(one.number, one.outcome, one.started_at, one.ended_at) for one in attempts] == [
        (1, "failed", NOW, at(1)),
        (2, "released", at(2), at(3)),
        (3, None, at(4), None),
    ]
    assert [one.owner_id for one in attempts] == ["worker-1", "worker-1", "w3"]
    assert [one.error is None for one in attempts] == [False, True, True]
    assert await read_whole_job(db, new_id()) is None


# Dead letters


async def test_dead_letters_are_listed_newest_first_by_pages_and_filters(db: Database) -> None:
    ids = [await make_job(db, JobStatus.ERROR, queue="ab"[n % 2], task="xy"[n // 2]) for n in range(4)]
    await make_job(db, JobStatus.DONE)

    first = (await list_dead_letters(db, most=3)).letters
    rest = (await list_dead_letters(db, most=3, before=first[-1].job_id)).letters

    assert [letter.job_id for letter in first + rest] == ids[::-1]
    assert [letter.job_id for letter in (await list_dead_letters(db, queue="a")).letters] == [ids[2], ids[0]]
    assert [letter.job_id for letter in (await list_dead_letters(db, queue="a", task="y")).letters] == [ids[2]]


# Counters


async def test_stats_say_how_many_jobs_stand_where(db: Database) -> None:
    for n, status in enumerate(JobStatus):
        for _ in range(n + 1):
            await make_job(db, status, queue="a")
    await make_queued(db, queue="b", delay_s=60)

    stats = await queue_stats(db)

    assert stats == [
        QueueStats(queue="a", paused=False, queued=1, running=2, done=3, error=4, canceled=5),
        QueueStats(queue="b", paused=False, queued=1, running=0, done=0, error=0, canceled=0),
    ]


async def test_stats_say_which_queues_are_paused_even_without_jobs(db: Database) -> None:
    await make_queued(db, queue="b")
    await pause_queue(db, "b", paused=True)
    await pause_queue(db, "a", paused=True)
    await pause_queue(db, "c", paused=True)
    await pause_queue(db, "c", paused=False)

    stats = await queue_stats(db)

    assert [(one.queue, one.paused, one.queued) for one in stats] == [("a", True, 0), ("b", True, 1), ("c", False, 0)]


async def test_without_jobs_there_are_no_stats(db: Database) -> None:
    assert await queue_stats(db) == []


@pytest.mark.parametrize("seed", range(6))
async def test_counters_equal_counts_after_any_history(db: Database, seed: int) -> None:
    random = Random(seed)
    seconds, claims = 0.0, list[ClaimedJob]()

    for _ in range(40):
        seconds += random.choice([0, 1, 30, 70])
        now, verb = at(seconds), random.choice(["enqueue", "claim", "take", "end", "end", "reap", "cancel", "redrive"])
        some = random.sample(claims, min(len(claims), random.randint(1, 4)))
        if verb == "enqueue":
            for queue in random.sample("abc", 2):
                await make_many(db, random.randint(1, 4), now, queue=queue, max_attempts=random.randint(1, 2))
        elif verb == "claim":
            jobs = (await search_jobs(db, JobFilter(status="queued"))).jobs
            asks = [ask(job.id, (await read(db, job.id)).enqueue_id) for job in jobs[:3]]
            answers = await claim(db, asks, ttl_s=TTL_S, now=now)
            claims += [answer for answer in answers if isinstance(answer, ClaimedJob)]
        elif verb == "take":
            await promote_due(db, now=now)
            claims += await take_first(db, ["a", "b", "c"], owner_id="w", most=2, ttl_s=TTL_S, now=now)
        elif verb == "end":
            await heartbeat(db, [beat(one) for one in some[3:]], ttl_s=TTL_S, now=now)
            await complete(db, [completion(one) for one in some[:1]], now=now)
            await fail(
                db.pool, [failure(one, retryable=random.random() < 0.7) for one in some[1:2]], policy=POLICY, now=now
            )
            await release(db, [held(one) for one in some[2:3]], now=now)
        elif verb == "reap":
            await reap(db, policy=POLICY, most=random.randint(1, 5), now=now)
        else:
            ids = [job.id for job in (await search_jobs(db)).jobs]
            chosen = random.sample(ids, min(len(ids), 3))
            await (cancel(db, chosen[:1], now=now) if verb == "cancel" else redrive(db, chosen, now=now))

        await assert_counters_are_right(db)
