"""Admit: jobs with a limit key stand in line only while their key has room; in some queues the keys take turns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from jobd.lifecycle.admit import (
    ADMIT_JOBS,
    NOTE_STARTS,
    LimitRule,
    QueueLimits,
    _arguments,
    admit,
    drop_limit,
    read_limits,
    set_limit,
)
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from jobd.lifecycle.pause import pause_task
from jobd.lifecycle.publish import next_due_s, promote_due
from jobd.lifecycle.reap import reap
from jobd.lifecycle.redrive import redrive
from jobd.lifecycle.release import Release, release
from jobd.lifecycle.take import take
from jobd.lifecycle.waiting import explain_waiting
from tests.lifecycle.direct import set_mode, want
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    ask,
    assert_counters_are_right,
    at,
    completion,
    failure,
    held,
    make_many,
    make_queued,
    read,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database

TWO = {"default": QueueLimits(running=2)}
RATE = {"default": QueueLimits(rate=2, rate_s=60.0)}
FAIR = {"default": QueueLimits(fair=True)}


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct")


async def run_next(db: Database, most: int = 100, seconds: float = 0) -> list[ClaimedJob]:
    return await take(db, [want(most)], ttl_s=TTL_S, now=at(seconds))


async def admitted(db: Database, limits: Any, seconds: float = 0) -> list[UUID]:
    """What stands in line after an admission, the first first."""
    await admit(db, limits, now=at(seconds))
    return [row["id"] for row in await db.fetch("SELECT id FROM jobs WHERE order_at IS NOT NULL ORDER BY order_at, id")]


async def places(db: Database) -> dict[str, int]:
    return {row[0]: row[1] for row in await db.fetch("SELECT key, count(*) FROM limit_places GROUP BY key")}


async def finish(db: Database, *claims: ClaimedJob, seconds: float = 0) -> None:
    await complete(db, [completion(claimed) for claimed in claims], now=at(seconds))


# Jobs at once


async def test_no_more_jobs_of_a_key_are_admitted_than_may_run(db: Database) -> None:
    of_a = await make_many(db, 5, limit_key="a")
    of_b = await make_many(db, 1, limit_key="b")

    assert set(await admitted(db, TWO)) == {*of_a[:2], *of_b}

    assert await places(db) == {"a": 2, "b": 1}
    assert len(await run_next(db)) == 3
    assert await admitted(db, TWO) == []
    await assert_counters_are_right(db)


async def test_a_key_without_limits_holds_nothing_back(db: Database) -> None:
    ids = await make_many(db, 5, limit_key="a")

    assert await admitted(db, {}) == ids


async def test_a_new_job_with_a_key_waits_for_its_admission(db: Database) -> None:
    job_id = await make_queued(db, limit_key="a")

    assert await run_next(db) == []
    assert await next_due_s(db, now=NOW) == 0
    assert await admitted(db, TWO) == [job_id]
    assert await next_due_s(db, now=NOW) is None


async def test_the_same_key_in_another_queue_is_another_key(db: Database) -> None:
    limits = {"default": QueueLimits(running=1), "other": QueueLimits(running=1)}
    await make_many(db, 2, limit_key="a")
    await make_many(db, 2, limit_key="a", queue="other")

    assert len(await admitted(db, limits)) == 2


async def _complete(db: Database, claimed: ClaimedJob) -> None:
    await complete(db, [completion(claimed)], now=NOW)


async def _fail(db: Database, claimed: ClaimedJob) -> None:
    await fail(db, [failure(claimed)], policy=POLICY, jitter=0.5, now=NOW)


async def _end_in_error(db: Database, claimed: ClaimedJob) -> None:
    await fail(db, [failure(claimed, retryable=False)], policy=POLICY, now=NOW)


async def _snooze(db: Database, claimed: ClaimedJob) -> None:
    proof: dict[str, Any] = {
        "job_id": claimed.job_id,
        "attempt_id": claimed.attempt_id,
        "lease_token": claimed.lease_token,
    }
    await release(db, [Release(**proof, delay_s=30.0)], now=NOW)


async def _reap(db: Database, claimed: ClaimedJob) -> None:
    await reap(db, policy=POLICY, jitter=0.5, now=at(TTL_S + 1))


@pytest.mark.parametrize("end", [_complete, _fail, _end_in_error, _snooze, _reap])
async def test_the_end_of_an_attempt_gives_its_place_to_the_next(db: Database, end: Any) -> None:
    ids = await make_many(db, 2, limit_key="a")
    await admitted(db, {"default": QueueLimits(running=1)})
    (claimed,) = await run_next(db)

    await end(db, claimed)

    assert await next_due_s(db, now=NOW) == 0
    assert await admitted(db, {"default": QueueLimits(running=1)}) == [ids[1]]
    assert await places(db) == {"a": 1}


async def test_a_release_keeps_its_place(db: Database) -> None:
    ids = await make_many(db, 2, limit_key="a")
    await admitted(db, {"default": QueueLimits(running=1)})
    (claimed,) = await run_next(db)

    await release(db, [held(claimed)], now=NOW)

    assert await admitted(db, {"default": QueueLimits(running=1)}) == [ids[0]]
    assert await places(db) == {"a": 1}


async def test_a_takeover_keeps_its_place(db: Database) -> None:
    await make_many(db, 2, limit_key="a")
    await admitted(db, {"default": QueueLimits(running=1)})
    (claimed,) = await run_next(db)

    await claim(db, [ask(claimed.job_id)], ttl_s=TTL_S, now=at(TTL_S + 1))

    assert await admitted(db, {"default": QueueLimits(running=1)}, TTL_S + 1) == []
    assert await places(db) == {"a": 1}


@pytest.mark.parametrize("way", ["cancel", "expire", "pause"])
async def test_an_admitted_job_that_leaves_the_line_gives_its_place_to_the_next(db: Database, way: str) -> None:
    first = await make_queued(db, limit_key="a", task="chat", expires_at=at(5))
    second = await make_queued(db, limit_key="a", task="embed", now=at(1))
    assert await admitted(db, {"default": QueueLimits(running=1)}) == [first]

    if way == "cancel":
        await cancel(db, [first], now=NOW)
    elif way == "expire":
        await expire(db, now=at(5))
    else:
        await pause_task(db, "chat", paused=True)

    assert await admitted(db, {"default": QueueLimits(running=1)}) == [second]
    assert await places(db) == {"a": 1}


async def test_a_held_job_that_is_canceled_is_never_admitted(db: Database) -> None:
    ids = await make_many(db, 3, limit_key="a")
    await admitted(db, TWO)

    await cancel(db, [ids[2]], now=NOW)
    await finish(db, *await run_next(db))

    assert await admitted(db, TWO) == []
    assert await places(db) == {}


async def test_a_delayed_job_is_admitted_when_its_time_has_come(db: Database) -> None:
    job_id = await make_queued(db, limit_key="a", delay_s=10.0)

    assert await admitted(db, TWO) == []
    assert await promote_due(db, now=at(10)) == [job_id]
    assert await run_next(db, seconds=10) == []
    assert await admitted(db, TWO, 10) == [job_id]


async def test_a_job_that_is_not_admitted_cannot_be_claimed_by_a_message(db: Database) -> None:
    job_id = await make_queued(db, limit_key="a", delay_s=10.0)

    (answer,) = await claim(db, [ask(job_id)], ttl_s=TTL_S, now=at(20))

    assert not hasattr(answer, "lease_token")


async def test_what_is_urgent_is_admitted_first(db: Database) -> None:
    early = await make_queued(db, limit_key="a")
    late = await make_queued(db, limit_key="a", now=at(30))
    urgent = await make_queued(db, limit_key="a", now=at(30), priority=1)

    assert await admitted(db, {"default": QueueLimits(running=1)}, 60) == [urgent]
    await finish(db, *await run_next(db, seconds=60), seconds=60)
    assert await admitted(db, {"default": QueueLimits(running=1)}, 60) == [early]
    await finish(db, *await run_next(db, seconds=60), seconds=60)
    assert await admitted(db, {"default": QueueLimits(running=1)}, 60) == [late]


async def test_a_more_urgent_job_takes_the_place_of_one_that_waits_in_line_and_not_of_one_that_runs(
    db: Database,
) -> None:
    await make_many(db, 2, limit_key="a")
    await admitted(db, TWO)
    (running,) = await run_next(db, 1)
    urgent = await make_queued(db, limit_key="a", priority=5)

    assert await admitted(db, TWO) == [urgent]

    assert await places(db) == {"a": 2}
    assert [claimed.job_id for claimed in await run_next(db)] == [urgent]
    await finish(db, running)
    assert len(await admitted(db, TWO)) == 1


async def test_in_a_stream_nobody_is_overtaken(db: Database) -> None:
    """A raw worker may have been offered the job that waits."""
    waiting = await make_queued(db, limit_key="a")
    await set_mode(db, "stream")
    await admitted(db, {"default": QueueLimits(running=1)})
    await make_queued(db, limit_key="a", priority=5)

    assert await admitted(db, {"default": QueueLimits(running=1)}) == [waiting]


async def test_a_job_that_is_being_taken_is_not_overtaken(db: Database) -> None:
    await make_queued(db, limit_key="a")
    await admitted(db, {"default": QueueLimits(running=1)})
    await make_queued(db, limit_key="a", priority=5)

    async with db.pool.acquire() as other, other.transaction():
        (taken,) = await take(other, [want(1)], ttl_s=TTL_S, now=NOW)
        await admit(db, {"default": QueueLimits(running=1)}, now=NOW)

    assert await admitted(db, {"default": QueueLimits(running=1)}) == []
    assert (await read(db, taken.job_id)).status == "running"


async def test_an_urgent_job_comes_before_those_of_its_key_that_have_their_turns_and_gets_no_more_turns(
    db: Database,
) -> None:
    for key in "ab":
        await make_many(db, 20, limit_key=key)
    await admit(db, FAIR, now=NOW)
    urgent = await make_queued(db, limit_key="a", priority=5)
    await admit(db, FAIR, now=NOW)

    assert urgent in {claimed.job_id for claimed in await run_next(db, 2)}
    assert Counter(await order(db, FAIR, 18)) == {"a": 9, "b": 9}


async def test_a_redriven_job_keeps_its_key_and_has_to_be_admitted(db: Database) -> None:
    job_id = await make_queued(db, limit_key="a")
    await admitted(db, TWO)
    await _end_in_error(db, (await run_next(db))[0])

    made = await redrive(db, [job_id], now=NOW)

    assert isinstance(made, dict)
    assert (await read(db, made[job_id])).limit_key == "a"
    assert await run_next(db) == []
    assert await admitted(db, TWO) == [made[job_id]]


# Limits that change


async def test_a_limit_that_is_raised_admits_at_once_and_one_that_is_lowered_ends_nothing(db: Database) -> None:
    await make_many(db, 6, limit_key="a")
    assert len(await admitted(db, TWO)) == 2

    await set_limit(db, LimitRule(queue="default", key="a", running=4))
    assert len(await admitted(db, TWO)) == 4

    await set_limit(db, LimitRule(queue="default", key="a", running=1))
    assert len(await admitted(db, TWO)) == 4
    running = await run_next(db)
    await finish(db, *running[:3])
    assert await admitted(db, TWO) == []
    await finish(db, running[3])
    assert len(await admitted(db, TWO)) == 1


async def test_the_rule_of_a_key_goes_before_that_of_all_keys_and_that_before_the_configuration(db: Database) -> None:
    for key in "abc":
        await make_many(db, 9, limit_key=key)

    await set_limit(db, LimitRule(queue="default", key="*", running=3))
    await set_limit(db, LimitRule(queue="default", key="b", running=0))
    await admitted(db, TWO)
    assert await places(db) == {"a": 3, "b": 9, "c": 3}

    assert [rule.key for rule in await read_limits(db)] == ["*", "b"]
    assert await drop_limit(db, "default", "*")
    assert not await drop_limit(db, "default", "*")


# Starts within a period


async def test_no_more_jobs_of_a_key_start_within_a_period_than_may(db: Database) -> None:
    ids = await make_many(db, 5, limit_key="a")

    assert await admitted(db, RATE) == ids[:2]
    await finish(db, *await run_next(db, 1, seconds=10), seconds=10)
    await finish(db, *await run_next(db, 1, seconds=20), seconds=20)

    assert await admitted(db, RATE, 20) == []
    assert await next_due_s(db, now=at(20)) == 50
    assert (await explain_waiting(db, [ids[2]]))[ids[2]].until_at == at(70)
    assert await admitted(db, RATE, 69.9) == []
    assert await admitted(db, RATE, 70) == [ids[2]]
    await finish(db, *await run_next(db, 1, seconds=71), seconds=71)
    assert await admitted(db, RATE, 79.9) == []
    assert await admitted(db, RATE, 80) == [ids[3]]


async def test_a_job_that_was_admitted_and_has_not_started_counts(db: Database) -> None:
    """Else twice as many could start at once, when slots become free."""
    await make_many(db, 4, limit_key="a")
    assert len(await admitted(db, RATE)) == 2

    assert len(await admitted(db, RATE, 600)) == 2
    assert len(await run_next(db, seconds=600)) == 2
    assert await admitted(db, RATE, 659) == []
    assert len(await admitted(db, RATE, 660)) == 2


async def test_jobs_that_run_for_longer_than_the_period_do_not_hold_up_the_next(db: Database) -> None:
    await make_many(db, 4, limit_key="a")
    await admitted(db, RATE)
    assert len(await run_next(db)) == 2

    assert len(await admitted(db, RATE, 60)) == 2


async def test_a_job_that_is_handed_back_counts_again_when_it_starts(db: Database) -> None:
    ids = await make_many(db, 3, limit_key="a")
    await admitted(db, RATE)
    claims = await run_next(db)

    await release(db, [held(claimed) for claimed in claims], now=at(10))

    assert await admitted(db, RATE, 10) == []
    assert await admitted(db, RATE, 60) == ids[:2]


async def starts(db: Database) -> int:
    return int(str(await db.fetchval("SELECT count(*) FROM limit_starts")))


@pytest.mark.parametrize("is_admitted_between", [False, True])
async def test_every_start_is_counted_once_though_another_holder_takes_over_and_the_job_ends(
    db: Database, is_admitted_between: bool
) -> None:
    """Whether the starts are noted by an admission or only when the job has ended."""
    hourly = {"default": QueueLimits(rate=5, rate_s=3600.0)}
    job_id = await make_queued(db, limit_key="a")
    await admitted(db, hourly)
    await run_next(db)
    if is_admitted_between:
        await admit(db, hourly, now=NOW)
    (claimed,) = await claim(db, [ask(job_id)], ttl_s=TTL_S, now=at(TTL_S + 1))
    assert hasattr(claimed, "lease_token")
    if is_admitted_between:
        await admit(db, hourly, now=at(TTL_S + 1))
        assert await db.fetchval("SELECT max(started_at) FROM limit_starts") == at(TTL_S + 1)

    await finish(db, claimed, seconds=TTL_S + 2)  # type: ignore[arg-type]

    assert await starts(db) == 2
    await db.execute(NOTE_STARTS, 100, None)
    assert await starts(db) == 2


async def test_a_start_that_is_noted_late_does_not_count_for_a_later_stay_in_line(db: Database) -> None:
    """The job has been handed back and admitted again meanwhile, by one who did not see the take yet."""
    job_id = await make_queued(db, limit_key="a")
    await admitted(db, RATE)
    (claimed,) = await run_next(db)
    await release(db, [held(claimed)], now=NOW)
    await db.fetch(ADMIT_JOBS, *_arguments(RATE, NOW))

    await db.execute(NOTE_STARTS, 100, None)

    assert await db.fetchval("SELECT in_line FROM limit_places WHERE job_id = $1", job_id)
    assert await starts(db) == 1


async def test_a_claim_by_message_counts_as_a_start(db: Database) -> None:
    ids = await make_many(db, 3, limit_key="a")
    await admitted(db, RATE)

    await claim(db, [ask(ids[0])], ttl_s=TTL_S, now=NOW)
    await admit(db, RATE, now=NOW)

    assert await starts(db) == 1
    assert await db.fetchval("SELECT in_line FROM limit_places WHERE job_id = $1", ids[0]) is False


# Turns


async def order(db: Database, limits: Any, most: int, round_size: int = 1) -> list[str]:
    """The keys in the order in which jobs start, this number of them at a time."""
    keys: list[str] = []
    while len(keys) < most:
        await admit(db, limits, now=NOW)
        claims = await run_next(db, round_size)
        if not claims:
            break
        rows = await db.fetch("SELECT id, limit_key FROM jobs WHERE id = ANY ($1)", [one.job_id for one in claims])
        key_of = {row["id"]: row["limit_key"] for row in rows}
        keys += [key_of[claimed.job_id] for claimed in claims]
        await finish(db, *claims)
    return keys


async def test_keys_take_turns(db: Database) -> None:
    for key in "abc":
        await make_many(db, 20, limit_key=key)

    assert Counter(await order(db, FAIR, 30)) == {"a": 10, "b": 10, "c": 10}


async def test_one_who_comes_late_does_not_wait_for_the_backlog_of_another(db: Database) -> None:
    await make_many(db, 500, limit_key="busy")
    await order(db, FAIR, 100)
    await make_many(db, 10, limit_key="late")

    started = await order(db, FAIR, 30)

    assert started[:21].count("late") == 10


@pytest.mark.parametrize("round_size", [1, 4, 40])
async def test_a_key_that_is_alone_gets_everything(db: Database, round_size: int) -> None:
    await make_many(db, 80, limit_key="a")

    assert await order(db, FAIR, 80, round_size) == ["a"] * 80


async def test_one_batch_fills_all_free_slots_from_one_key(db: Database) -> None:
    await make_many(db, 60, limit_key="a")
    await admit(db, FAIR, now=NOW)

    assert len(await run_next(db, 50)) == 50


async def test_a_key_that_was_idle_has_saved_nothing(db: Database) -> None:
    await make_many(db, 10, limit_key="idle")
    await order(db, FAIR, 10)
    await make_many(db, 300, limit_key="busy")
    await order(db, FAIR, 200)
    await make_many(db, 40, limit_key="idle")

    assert abs(Counter(await order(db, FAIR, 40))["idle"] - 20) <= 1


async def test_a_key_that_was_busy_alone_is_not_punished_for_it(db: Database) -> None:
    await make_many(db, 300, limit_key="busy")
    await order(db, FAIR, 200)
    await make_many(db, 40, limit_key="new")

    assert abs(Counter(await order(db, FAIR, 40))["busy"] - 20) <= 1


async def test_turns_go_by_weight(db: Database) -> None:
    await set_limit(db, LimitRule(queue="default", key="a", weight=3.0))
    for key in "ab":
        await make_many(db, 100, limit_key=key)

    assert abs(Counter(await order(db, FAIR, 80))["a"] - 60) <= 2


async def test_priority_counts_within_a_key(db: Database) -> None:
    await make_many(db, 3, limit_key="a")
    urgent = await make_queued(db, limit_key="a", priority=5)
    other = await make_queued(db, limit_key="b")

    await admit(db, FAIR, now=NOW)
    first = [claimed.job_id for claimed in await run_next(db, 2)]

    assert set(first) == {urgent, other}


async def test_turns_and_limits_go_together(db: Database) -> None:
    limits = {"default": QueueLimits(fair=True, running=1)}
    for key in "abc":
        await make_many(db, 3, limit_key=key)
    await admit(db, limits, now=NOW)

    assert Counter(await places(db)) == {"a": 1, "b": 1, "c": 1}
    assert Counter(await order(db, limits, 9, 3)) == {"a": 3, "b": 3, "c": 3}
