"""What a task has of its own: read from the configuration or from `@task`, and kept by those who renew leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from jobd.config.model import Config, Leases, Retry, Task
from jobd.config.task_settings import heartbeat_s, lease_ttls, retry_policies, shortest_heartbeat_s, shortest_lease_s
from jobd.job.retry import RetryPolicy
from jobd.tasks.declared import DECLARED, task
from jobd.tasks.mock import MockRunner
from tests.support.running_slots import CONFIG, running_slots
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

LEASES = Leases(ttl_s=60, heartbeat_s=20)


def with_tasks(**tasks: Task) -> Config:
    return Config(leases=LEASES, retry=Retry(base_s=2, cap_s=50), tasks=tasks)


def test_only_tasks_that_differ_are_exceptions() -> None:
    config = with_tasks(a=Task(run="mock"), b=Task(run="mock", lease_ttl_s=9), c=Task(run="mock", retry_cap_s=90))

    assert lease_ttls(config) == {"b": 9.0}
    assert retry_policies(config) == {"c": RetryPolicy(base_s=2, cap_s=90)}


def test_half_of_a_retry_policy_may_be_everybodys() -> None:
    config = with_tasks(a=Task(run="mock", retry_base_s=5), b=Task(run="mock", retry_base_s=0, retry_cap_s=0))

    assert retry_policies(config) == {"a": RetryPolicy(base_s=5, cap_s=50), "b": RetryPolicy(base_s=0, cap_s=0)}


@pytest.mark.parametrize(("own_s", "expected"), [(None, 20), (600, 20), (60, 20), (30, 10), (1, 1 / 3)])
def test_lease_is_renewed_three_times_in_its_time_or_as_often_as_all(own_s: float | None, expected: float) -> None:
    assert heartbeat_s(LEASES, own_s) == pytest.approx(expected)


def test_keeper_looks_as_often_as_the_shortest_lease_needs() -> None:
    config = with_tasks(a=Task(run="mock", lease_ttl_s=600), b=Task(run="mock", lease_ttl_s=6))

    assert (shortest_lease_s(config), shortest_heartbeat_s(config)) == (6, 2)
    assert shortest_heartbeat_s(with_tasks(a=Task(run="mock", lease_ttl_s=600))) == 20


def test_function_may_declare_every_setting() -> None:
    declare = task(
        name="declared", retry_base_s=3, retry_cap_s=4, lease_ttl_s=5, isolate=True, recycle_jobs=6, needs_memory_mb=7
    )

    declare(heartbeat_s)
    made = DECLARED.pop().task

    assert (made.retry_base_s, made.retry_cap_s, made.lease_ttl_s) == (3, 4, 5)
    assert (made.isolate, made.recycle_jobs, made.needs_memory_mb) == (True, 6, 7)


async def test_slot_renews_a_shorter_lease_in_time(shared_postgres: str, folder: Path) -> None:
    tasks = {"chat": Task(run="mock", lease_ttl_s=9)}
    config = msgspec.structs.replace(CONFIG, leases=LEASES, tasks=tasks)
    async with running_slots(shared_postgres, folder, {"chat": MockRunner()}, config) as slots:
        job_id = await slots.submit({"seconds": 60, "tokens": 0})
        await slots.wait_for_status(job_id, "running")

        async def is_renewed() -> bool:
            query = "SELECT claim_version > 1 FROM leases WHERE resource_id = $1"
            return bool(await slots.node.database.pool.fetchval(query, job_id))

        await wait_until_async(is_renewed, timeout_s=14)  # the leases of all are renewed after 15 s at the earliest

        assert await slots.outcomes(job_id) == [None]
