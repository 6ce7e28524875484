"""Lease time and retry backoff of each task: its own settings, or those of [leases] and [retry].

Statements work on jobs of many tasks at once: they get the common values and, as small arrays, the tasks' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.retry import RetryPolicy

if TYPE_CHECKING:
    from jobd.config.model import Config, Leases, Task

#: Fewest heartbeats within the time of a lease: two of them may be lost, and the third still renews it.
RENEWALS = 3


def retry_policy(config: Config) -> RetryPolicy:
    retry = config.retry
    return RetryPolicy(base_s=retry.base_s, cap_s=retry.cap_s, max_interruptions=retry.max_interruptions)


def retry_policies(config: Config) -> dict[str, RetryPolicy]:
    """The retry policies of tasks that have their own."""
    return {name: _policy(task, config) for name, task in config.tasks.items() if _has_policy(task)}


def lease_ttls(config: Config) -> dict[str, float]:
    """The lease times of tasks that have their own."""
    return {name: float(task.lease_ttl_s) for name, task in config.tasks.items() if task.lease_ttl_s is not None}


def lease_ttl_s(leases: Leases, own_s: float | None) -> float:
    """Seconds that a lease lasts; `own_s` is the time of its task, None if that has none."""
    return leases.ttl_s if own_s is None else own_s


def heartbeat_s(leases: Leases, own_s: float | None) -> float:
    """Seconds between two renewals of a lease."""
    return leases.heartbeat_s if own_s is None else min(leases.heartbeat_s, own_s / RENEWALS)


def shortest_lease_s(config: Config) -> float:
    return min((config.leases.ttl_s, *lease_ttls(config).values()))


def shortest_heartbeat_s(config: Config) -> float:
    return heartbeat_s(config.leases, shortest_lease_s(config))


def _has_policy(task: Task) -> bool:
    return (task.retry_base_s, task.retry_cap_s, task.max_interruptions) != (None, None, None)


def _policy(task: Task, config: Config) -> RetryPolicy:
    return RetryPolicy(
        base_s=config.retry.base_s if task.retry_base_s is None else task.retry_base_s,
        cap_s=config.retry.cap_s if task.retry_cap_s is None else task.retry_cap_s,
        max_interruptions=config.retry.max_interruptions if task.max_interruptions is None else task.max_interruptions,
    )
