"""Pauses of a task and of everything: nothing of it is started, whoever takes, until it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.lifecycle import pause as pause_verb
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.enqueue import enqueue_and_take
from jobd.lifecycle.expire import expire
from jobd.lifecycle.pause import PauseEntry, pause_all, pause_task, pauses, tend_pauses
from jobd.lifecycle.publish import look_ahead, next_due_s, promote_due, select_for_publish
from jobd.lifecycle.waiting import explain_waiting
from tests.lifecycle.direct import TAKERS, set_mode, until_waiting, want
from tests.support.factories import NOW, TTL_S, assert_counters_are_right, at, make_many, make_queued, new_job

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct")


async def taken(db: Database, taker: str = "take") -> list[UUID]:
    return [job.job_id for job in await TAKERS[taker](db, [want()], ttl_s=TTL_S, now=NOW)]


async def reason(db: Database, job_id: UUID) -> str | None:
    return (await explain_waiting(db, [job_id]))[job_id].paused


@pytest.mark.parametrize("taker", TAKERS)
async def test_nothing_of_a_paused_task_is_taken_until_it_is_resumed(db: Database, taker: str) -> None:
    (chat, embed) = await make_queued(db, task="chat"), await make_queued(db, task="embed")

    await pause_task(db, "chat", paused=True)
    late = await make_queued(db, task="chat")

    assert await taken(db, taker) == [embed]
    assert (await reason(db, chat), await reason(db, late)) == ("task", "task")
    assert await pause_task(db, "chat", paused=False) == {"default"}
    assert await taken(db, taker) == [chat, late]
    assert await pauses(db) == []
    await assert_counters_are_right(db)


@pytest.mark.parametrize("taker", TAKERS)
async def test_nothing_at_all_is_taken_while_everything_is_paused(db: Database, taker: str) -> None:
    job_id = await make_queued(db)

    await pause_all(db, paused=True)

    assert await taken(db, taker) == []
    assert await reason(db, job_id) == "all"
    await pause_all(db, paused=False)
    assert await taken(db, taker) == [job_id]


async def test_a_new_job_of_a_paused_task_is_not_taken_by_its_own_commit(db: Database) -> None:
    await pause_task(db, "chat", paused=True)

    _, jobs = await enqueue_and_take(db, [new_job(task="chat")], [want()], ttl_s=TTL_S, now=NOW)

    assert jobs == []


async def test_jobs_of_a_paused_task_are_put_out_of_the_line(db: Database) -> None:
    await make_many(db, 3, task="chat")
    await make_many(db, 2, task="embed")

    await pause_task(db, "chat", paused=True)

    assert await db.fetchval("SELECT count(*) FROM jobs WHERE order_at IS NOT NULL") == 2
    assert await db.fetchval("SELECT count(*) FROM jobs WHERE held = 'paused'") == 3
    assert await promote_due(db, now=at(1e9)) == []
    assert await next_due_s(db, now=NOW) is None


async def test_jobs_that_come_later_are_put_out_of_the_line_by_those_who_tend(db: Database) -> None:
    await pause_task(db, "chat", paused=True)
    await make_many(db, 3, task="chat")

    await tend_pauses(db)

    assert await db.fetchval("SELECT count(*) FROM jobs WHERE held = 'paused'") == 3


async def test_many_jobs_go_out_and_back_in_batches(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_verb, "BATCH", 2)
    ids = await make_many(db, 7, task="chat")

    await pause_task(db, "chat", paused=True)
    out = await taken(db)
    await pause_task(db, "chat", paused=False)

    assert (out, await taken(db)) == ([], ids)


async def test_a_resume_that_was_cut_off_is_finished_by_those_who_tend(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await make_many(db, 3, task="chat")
    await pause_task(db, "chat", paused=True)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(pause_verb, "BATCHES", 0)
        await pause_task(db, "chat", paused=False)
    assert (await pauses(db), await taken(db)) == ([PauseEntry("task", "chat", paused=False)], [])

    assert await tend_pauses(db) == {"default"}

    assert (await pauses(db), await taken(db)) == ([], ids)


async def test_a_resume_waits_for_those_who_put_jobs_out_of_the_line(db: Database) -> None:
    """Else it would not find what they put out, and nobody else would look for it."""
    await pause_task(db, "chat", paused=True)
    ids = await make_many(db, 2, task="chat")

    async with db.connection() as other, anyio.create_task_group() as tasks:
        transaction = other.transaction()
        await transaction.__aenter__()
        assert await other.fetchval(pause_verb.SET_ASIDE, 100) == 2
        tasks.start_soon(lambda: pause_task(db, "chat", paused=False))
        await until_waiting(db)
        await transaction.__aexit__(None, None, None)

    assert await taken(db) == ids


async def test_a_job_that_was_put_aside_can_be_canceled_and_can_expire(db: Database) -> None:
    (one, other) = await make_queued(db, expires_at=at(5)), await make_queued(db)
    await pause_task(db, "chat", paused=True)

    await cancel(db, [other], now=NOW)

    assert await expire(db, now=at(5)) == [one]
    await pause_task(db, "chat", paused=False)
    assert await taken(db) == []


async def test_jobs_of_a_stream_queue_stay_in_line_and_are_not_offered(db: Database) -> None:
    await set_mode(db, "stream")
    chat, embed = await make_queued(db, task="chat"), await make_queued(db, task="embed")

    await pause_task(db, "chat", paused=True)

    assert [offer.job_id for offer in await select_for_publish(db, ["default"], most=9)] == [embed]
    ahead = await look_ahead(db, ["default"], known=[embed], now=NOW)
    assert (ahead.paused_tasks, ahead.has_unoffered) == (["chat"], False)
    assert await db.fetchval("SELECT held FROM jobs WHERE id = $1", chat) is None


async def test_nothing_is_offered_while_everything_is_paused(db: Database) -> None:
    await set_mode(db, "stream")
    await make_queued(db)

    await pause_all(db, paused=True)

    assert await select_for_publish(db, ["default"], most=9) == []
    assert (await look_ahead(db, ["default"], now=NOW)).paused == ["default"]
