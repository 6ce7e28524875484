"""Occurrences become jobs: one each, whoever fires, and what is not started is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import msgspec
import pytest

from jobd.config.model import Config, Limits
from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import Created
from jobd.lifecycle.fail import fail
from jobd.schedules.change import delete, edit, pause, resume
from jobd.schedules.fire import PAGE, SANE, look, plan_again_after_step_back, settle_open, start_buffered
from jobd.schedules.table import append_events
from tests.schedules.factories import CONFIG, NOW, at, definition, events_of, fire, make, row, seconds_of
from tests.support.factories import POLICY, claim_one, completion, failure, make_queued, read

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Database


async def end(db: Database, job_id: UUID, status: JobStatus, now: datetime) -> None:
    if status is JobStatus.CANCELED:
        await cancel(db, [job_id], now=now)
        return
    claimed = await claim_one(db, job_id, now=now)
    if status is JobStatus.DONE:
        await complete(db.pool, [completion(claimed)], now=now)
    else:
        await fail(db.pool, [failure(claimed, retryable=False)], policy=POLICY, now=now)


async def test_occurrence_becomes_a_job_with_all_that_the_schedule_says(db: Database) -> None:
    await make(
        db,
        "night",
        cron="1 14 * * *",
        timezone="Europe/Berlin",
        payload={"day": "at {{scheduled_at}}", "n": [1, {"x": "{{scheduled_at}}"}], "other": "{{title}}"},
        priority=7,
        labels={"team": "a"},
        timeout_s=9,
        max_attempts=2,
    )

    fired = await fire(db, at(60.5))

    (job,) = [await read(db, job.id) for job in fired.jobs]
    assert msgspec.json.decode(job.payload) == {
        "day": "at 2026-05-01T14:01:00+02:00",
        "n": [1, {"x": "2026-05-01T14:01:00+02:00"}],
        "other": "{{title}}",
    }
    assert (job.task, job.queue, job.priority, job.timeout_s, job.max_attempts) == ("chat", "default", 7, 9, 2)
    assert msgspec.json.decode(job.labels or "") == {
        "team": "a",
        "jobd.schedule": "night",
        "jobd.scheduled_for": str(int(at(60).timestamp() * 1000)),
    }
    (key,) = await db.fetch("SELECT key, job_id FROM idempotency_keys")
    assert (key["key"], key["job_id"]) == (f"schedule:night:{int(at(60).timestamp() * 1000)}", job.id)
    after = await row(db, "night")
    assert (after.occurrence, after.started, after.open_jobs) == (at(86_460), 1, (job.id,))


async def test_of_many_who_fire_at_once_one_makes_the_job(db: Database) -> None:
    for n in range(20):
        await make(db, f"s{n}")

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(fire, db, at(60))

    assert [await seconds_of(db, f"s{n}") for n in range(20)] == [[60]] * 20


async def test_more_than_a_page_is_fired_page_by_page(db: Database) -> None:
    for n in range(PAGE + 1):
        await make(db, f"s{n}")

    assert [(await fire(db, at(60))).number for _ in range(3)] == [PAGE, 1, 0]


async def test_transaction_that_is_undone_leaves_the_occurrence_due(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(db)
    before = await row(db)

    async def fails(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr("jobd.schedules.fire.append_events", fails)
        with pytest.raises(RuntimeError):
            await fire(db, at(60))

    assert (await row(db), await seconds_of(db)) == (before, [])
    await fire(db, at(60))
    assert await seconds_of(db) == [60]


async def test_transaction_that_meets_a_deadlock_is_tried_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(db)
    tries = 0

    async def fails_once(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        await append_events(*arguments)

    monkeypatch.setattr("jobd.schedules.fire.append_events", fails_once)
    await fire(db, at(60))

    assert (tries, await seconds_of(db)) == (2, [60])


async def test_occurrence_whose_row_was_lost_by_a_restore_finds_its_job_by_the_key(db: Database) -> None:
    """As after a restore of the table alone: the row says that the occurrence is due, and its job is there."""
    await make(db, overlap="allow_all")
    await fire(db, at(60))
    await db.execute("UPDATE schedules SET occurrence = $1, next_at = $1, handled = '{}'", at(60))

    fired = await fire(db, at(61))

    assert not isinstance(fired.answers[0], Created)
    assert await seconds_of(db) == [60]


async def test_late_ones_are_caught_up_and_the_rest_recorded_as_missed(db: Database) -> None:
    await make(db)

    await fire(db, at(630))

    assert (await seconds_of(db), await events_of(db)) == ([600], [("missed", 9)])
    assert (await row(db)).missed == 9


async def test_skip_leaves_out_what_meets_a_job_that_has_not_ended(db: Database) -> None:
    await make(db)
    (job,) = (await fire(db, at(60))).jobs

    await fire(db, at(120))
    await end(db, job.id, JobStatus.DONE, at(130))
    await fire(db, at(180))

    assert (await seconds_of(db), await events_of(db)) == ([60, 180], [("skipped", 1)])
    assert (await row(db)).skipped == 1


async def test_buffer_one_starts_when_the_other_has_ended(db: Database) -> None:
    await make(db, overlap="buffer_one")
    (job,) = (await fire(db, at(60))).jobs
    await fire(db, at(120))
    waiting = await fire(db, at(180))
    assert (await seconds_of(db), await events_of(db), waiting.awaited) == ([60], [("skipped", 1)], [job.id])
    await start_buffered(db, CONFIG, now=at(185))
    assert await seconds_of(db) == [60]

    await end(db, job.id, JobStatus.ERROR, at(190))
    await start_buffered(db, CONFIG, now=at(191))

    assert await seconds_of(db) == [60, 120]
    assert not (await look(db, now=at(191))).has_buffered


async def test_buffer_all_starts_them_one_by_one_in_their_order(db: Database) -> None:
    await make(db, overlap="buffer_all")
    (job,) = (await fire(db, at(60))).jobs
    for n in range(2, 5):
        await fire(db, at(60 * n))

    for expected in (60, 120, 180, 240):
        assert (await seconds_of(db))[-1] == expected
        await end(db, job.id, JobStatus.DONE, at(250))
        (job,) = (await start_buffered(db, CONFIG, now=at(250))).jobs or (job,)

    assert await seconds_of(db) == [60, 120, 180, 240]


async def test_cancel_other_waits_for_the_end_of_what_it_cancels(db: Database) -> None:
    await make(db, overlap="cancel_other")
    (job,) = (await fire(db, at(60))).jobs
    await claim_one(db, job.id, now=at(61))

    fired = await fire(db, at(120))

    assert (fired.cancels, fired.jobs) == ([job.id], [])
    again = await start_buffered(db, CONFIG, now=at(121))
    assert again.cancels == [job.id]
    await db.execute("UPDATE jobs SET status = 'canceled', finished_at = $1, order_at = NULL", at(122))
    await start_buffered(db, CONFIG, now=at(123))
    assert await seconds_of(db) == [60, 120]


async def test_allow_all_starts_beside_others(db: Database) -> None:
    await make(db, overlap="allow_all")
    for n in range(1, 4):
        await fire(db, at(60 * n))

    assert await seconds_of(db) == [60, 120, 180]


async def test_full_queue_delays_an_occurrence_and_loses_none(db: Database) -> None:
    full = Config(limits=Limits(max_queued=1))
    other = await make_queued(db, at(0))
    await make(db, overlap="buffer_all")

    await fire(db, at(60), full)
    await fire(db, at(120), full)
    await start_buffered(db, full, now=at(121))
    assert (await seconds_of(db), await events_of(db)) == ([], [("delayed", 1)])
    await end(db, other, JobStatus.DONE, at(130))
    fired = await start_buffered(db, full, now=at(131))

    assert await seconds_of(db) == [60]
    await end(db, fired.jobs[0].id, JobStatus.DONE, at(132))
    await start_buffered(db, full, now=at(133))
    assert await seconds_of(db) == [60, 120]


async def test_task_that_is_not_configured_delays_an_occurrence_and_loses_none(db: Database) -> None:
    await make(db, task="gone")

    await fire(db, at(60))
    assert (await seconds_of(db), await events_of(db)) == ([], [("delayed", 1)])
    with_task = msgspec.structs.replace(CONFIG, tasks={**CONFIG.tasks, "gone": CONFIG.tasks["chat"]})
    await start_buffered(db, with_task, now=at(61))

    assert await seconds_of(db) == [60]


async def test_schedule_is_paused_after_failures_in_a_row(db: Database) -> None:
    await make(db, pause_after_failures=2)
    for n, status in enumerate((JobStatus.ERROR, JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELED, JobStatus.ERROR)):
        (job,) = (await fire(db, at(60 + 60 * n))).jobs
        await end(db, job.id, status, at(61 + 60 * n))

    assert (await fire(db, at(360))).jobs == []

    paused = await row(db)
    assert (paused.is_paused, paused.failures) == (True, 2)
    assert paused.paused_why == "2 jobs in a row ended in error (pause_after_failures = 2)"
    assert await events_of(db) == [("paused", 1)]
    assert await fire(db, at(420)) == await fire(db, at(430))
    resumed = await resume(db, "tick", actor="test", now=at(3000))
    assert (resumed.failures, resumed.occurrence, resumed.paused_why) == (0, at(3060), None)


async def test_failures_are_seen_before_retention_deletes_the_job(db: Database) -> None:
    await make(db, every="30d", pause_after_failures=1)
    first = (await row(db)).occurrence
    assert first is not None
    (job,) = (await fire(db, first)).jobs
    await end(db, job.id, JobStatus.ERROR, first)

    await settle_open(db, CONFIG, now=first)

    assert ((await row(db)).is_paused, (await row(db)).open_jobs) == (True, ())


async def test_paused_schedule_makes_nothing_and_begins_with_the_present_when_it_is_resumed(db: Database) -> None:
    await make(db)
    await pause(db, "tick", actor="test", now=at(10))
    assert (await fire(db, at(600))).number == 0

    resumed = await resume(db, "tick", actor="test", now=at(650))

    assert (resumed.occurrence, await events_of(db)) == (at(660), [])


async def test_change_of_the_expression_plans_again_and_fires_nothing(db: Database) -> None:
    await make(db, every="1h")

    edited = await edit(db, "tick", lambda old: definition(cron="30 * * * *"), actor="test", now=at(3650))

    assert (edited.occurrence, edited.missed) == (at(1800 + 3600), 0)
    assert (await fire(db, at(3660))).number == 0


async def test_change_of_the_payload_keeps_what_is_due(db: Database) -> None:
    await make(db)

    edited = await edit(db, "tick", lambda old: msgspec.structs.replace(old, priority=5), actor="test", now=at(65))

    assert edited.occurrence == at(60)
    await fire(db, at(66))
    assert await seconds_of(db) == [60]


async def test_deleted_schedule_leaves_its_jobs(db: Database) -> None:
    await make(db)
    await fire(db, at(60))

    await delete(db, "tick", actor="test")

    assert (await fire(db, at(120))).number == 0
    assert await seconds_of(db) == [60]


# -- the clock --


async def test_nothing_fires_while_the_clock_cannot_be_right(db: Database) -> None:
    await make(db, now=SANE)
    await db.execute("UPDATE schedules SET occurrence = $1, next_at = $1", SANE.replace(year=1970))

    assert (await fire(db, SANE.replace(year=1970, month=6))).number == 0
    assert (await fire(db, SANE.replace(year=2025))).number == 0


async def test_schedule_made_with_a_clock_in_1970_is_planned_when_the_clock_is_right(db: Database) -> None:
    made = await make(db, now=NOW.replace(year=1970))
    assert made.occurrence is None

    await fire(db, at(30))

    assert ((await row(db)).occurrence, await seconds_of(db), await events_of(db)) == (at(60), [], [])


async def test_start_in_1970_loses_nothing_of_what_is_to_be_caught_up(db: Database) -> None:
    await make(db)
    assert await plan_again_after_step_back(db, now=NOW.replace(year=1970)) == 0

    await fire(db, at(630))

    assert (await seconds_of(db), await events_of(db)) == ([600], [("missed", 9)])


async def test_after_a_step_back_nothing_fires_twice_and_after_it_all_goes_on(db: Database) -> None:
    await make(db, overlap="allow_all")
    for n in range(1, 6):
        await fire(db, at(60 * n))

    assert await plan_again_after_step_back(db, now=at(-3300)) == 1
    for seconds in range(-3300, 480, 30):
        await fire(db, at(seconds))

    assert await seconds_of(db) == [60.0 * n for n in range(-54, 8)]


async def test_step_forward_by_a_day_and_back_ends_in_the_present(db: Database) -> None:
    await make(db, overlap="allow_all")
    await fire(db, at(60))

    await fire(db, at(86_400 + 30))
    assert await plan_again_after_step_back(db, now=at(90)) == 1
    await fire(db, at(90))
    await fire(db, at(120))

    assert await seconds_of(db) == [60, 120, 86_400]
