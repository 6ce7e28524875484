"""Tasks with settings of their own: their leases last as long as they say, and their retries wait as long."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jobd.job.model import Requeued
from jobd.job.retry import RetryPolicy
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.fail import fail
from jobd.lifecycle.heartbeat import Renewal, heartbeat
from jobd.lifecycle.reap import reap
from tests.support.claims import take_first
from tests.support.factories import NOW, POLICY, TTL_S, ask, at, beat, failure, make_queued, make_running, one_row

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database

LONG_S = 500.0
TTLS = {"other": 7.0, "patient": LONG_S}
POLICIES = {"other": RetryPolicy(base_s=7, cap_s=7), "patient": RetryPolicy(base_s=64, cap_s=1000)}


async def claim_at(db: Database, job_id: UUID, seconds: float = 0) -> ClaimedJob:
    (claimed,) = await claim(db, [ask(job_id)], ttl_s=TTL_S, task_ttls=TTLS, now=at(seconds))
    assert isinstance(claimed, ClaimedJob), claimed
    return claimed


def lease_s(claimed: ClaimedJob, since: float = 0) -> float:
    return (claimed.lease_expires_at - at(since)).total_seconds()


@pytest.mark.parametrize(("task", "own_s"), [("patient", LONG_S), ("chat", None)])
async def test_lease_of_a_task_lasts_as_long_as_the_task_says(db: Database, task: str, own_s: float | None) -> None:
    claimed = await claim_at(db, await make_queued(db, task=task))

    assert (lease_s(claimed), claimed.lease_ttl_s) == (TTL_S if own_s is None else own_s, own_s)
    assert await one_row(db, "SELECT ttl_s FROM leases") == (own_s,)


async def test_one_batch_gives_each_task_its_own_lease(db: Database) -> None:
    tasks = ("patient", "chat", "other", "chat")
    asks = [ask(await make_queued(db, task=task)) for task in tasks]

    answers = await claim(db, asks, ttl_s=TTL_S, task_ttls=TTLS, now=NOW)

    assert [lease_s(a) for a in answers if isinstance(a, ClaimedJob)] == [LONG_S, TTL_S, 7.0, TTL_S]


async def test_claim_without_a_message_gives_it_too(db: Database) -> None:
    await make_queued(db, task="patient")

    (claimed,) = await take_first(db, ["default"], owner_id="me", most=1, ttl_s=TTL_S, task_ttls=TTLS, now=at(1))

    assert (lease_s(claimed, since=1), claimed.lease_ttl_s) == (LONG_S, LONG_S)


async def test_takeover_gives_it_too(db: Database) -> None:
    job_id = (await make_running(db, task="patient")).job_id

    claimed = await claim_at(db, job_id, TTL_S + 1)

    assert (lease_s(claimed, since=TTL_S + 1), claimed.attempt_no) == (LONG_S, 2)


@pytest.mark.parametrize(("task", "own_s"), [("patient", LONG_S), ("chat", None)])
async def test_renewal_extends_a_lease_by_what_it_was_given(db: Database, task: str, own_s: float | None) -> None:
    claimed = await claim_at(db, await make_queued(db, task=task))

    (renewal,) = await heartbeat(db, [beat(claimed)], ttl_s=TTL_S, now=at(5))

    assert isinstance(renewal, Renewal)
    assert renewal.lease_expires_at == at(5) + timedelta(seconds=TTL_S if own_s is None else own_s)
    assert renewal.lease_ttl_s == own_s


async def test_reaper_leaves_a_longer_lease_alone_until_it_ends(db: Database) -> None:
    await claim_at(db, await make_queued(db, task="patient"))

    early = await reap(db, policy=POLICY, now=at(LONG_S - 1))
    late = await reap(db, policy=POLICY, now=at(LONG_S + 1))

    assert (early, [job.status for job in late]) == ([], ["queued"])


@pytest.mark.parametrize(("task", "delay_s"), [("patient", 64.0), ("other", 7.0), ("chat", POLICY.base_s)])
async def test_failed_job_waits_as_long_as_its_task_says(db: Database, task: str, delay_s: float) -> None:
    claimed = await make_running(db, task=task)

    answers: list[Any] = list(
        await fail(db, [failure(claimed)], policy=POLICY, task_policies=POLICIES, jitter=1.0, now=NOW)
    )

    assert isinstance(answers[0], Requeued)
    assert answers[0].run_after == pytest.approx(at(delay_s).timestamp())
    assert await one_row(db, "SELECT due_at = run_after FROM jobs") == (True,)


@pytest.mark.parametrize(("task", "delay_s"), [("patient", 64.0), ("chat", POLICY.base_s)])
async def test_job_of_a_silent_worker_waits_as_long_as_its_task_says(db: Database, task: str, delay_s: float) -> None:
    await make_running(db, task=task)

    await reap(db, policy=POLICY, task_policies=POLICIES, jitter=1.0, now=at(TTL_S + 1))

    assert await one_row(db, "SELECT run_after, due_at FROM jobs") == (at(TTL_S + 1 + delay_s),) * 2
