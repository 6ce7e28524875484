"""What a task has of its own and what it has from all: how long its leases last, and how long its retries wait.

Statements work on jobs of many tasks at once. They are handed what holds for all and, as small arrays, the exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.retry import RetryPolicy

if TYPE_CHECKING:
    from jobd.config.model import Config, Leases, Task

#: Fewest heartbeats within the time of a lease: two of them may be lost, and the third still renews it.
RENEWALS = 3


def retry_policy(config: Config) -> RetryPolicy:
    return RetryPolicy(base_s=config.retry.base_s, cap_s=config.retry.cap_s)


def retry_policies(config: Config) -> dict[str, RetryPolicy]:
    """Of tasks that have their own."""
    return {name: _policy(task, config) for name, task in config.tasks.items() if _has_policy(task)}


def lease_ttls(config: Config) -> dict[str, float]:
    """Of tasks whose leases last otherwise."""
    return {name: float(task.lease_ttl_s) for name, task in config.tasks.items() if task.lease_ttl_s is not None}


def lease_ttl_s(leases: Leases, own_s: float | None) -> float:
    """How long a lease lasts, given what it has of its own."""
    return leases.ttl_s if own_s is None else own_s


def heartbeat_s(leases: Leases, own_s: float | None) -> float:
    """How often it is renewed."""
    return leases.heartbeat_s if own_s is None else min(leases.heartbeat_s, own_s / RENEWALS)


def shortest_lease_s(config: Config) -> float:
    return min((config.leases.ttl_s, *lease_ttls(config).values()))


def shortest_heartbeat_s(config: Config) -> float:
    return heartbeat_s(config.leases, shortest_lease_s(config))


def _has_policy(task: Task) -> bool:
    return task.retry_base_s is not None or task.retry_cap_s is not None


def _policy(task: Task, config: Config) -> RetryPolicy:
    return RetryPolicy(
        base_s=config.retry.base_s if task.retry_base_s is None else task.retry_base_s,
        cap_s=config.retry.cap_s if task.retry_cap_s is None else task.retry_cap_s,
    )
