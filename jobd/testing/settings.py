"""The configuration of a project, made fit for tests: its tasks, queues and limits on servers that nobody else has.

A test must not reach what the project uses in earnest, so addresses, tokens, certificates and schedules of the file do
not count. Attempts follow each other at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jobd.config.model import Auth, Config, Postgres, Redis, Retry, Server

if TYPE_CHECKING:
    from jobd.config.model import Task

#: Seconds that running jobs have at the end of a test.
DRAIN_S = 0.2
#: Bounds of the delay between two attempts in seconds.
RETRY_BASE_S, RETRY_CAP_S = 0.01, 0.05
#: Added to the settings of Postgres: nothing lives long enough in a test to be vacuumed, or to have statistics.
POSTGRES = "autovacuum = off\ntrack_activities = off\n"


def for_tests(config: Config) -> Config:
    return replace(
        config,
        drain_s=DRAIN_S,
        server=Server(port=0),
        postgres=Postgres(shared_buffers_mb=16),
        redis=Redis(),
        auth=Auth(),
        retry=Retry(max_attempts=config.retry.max_attempts, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S),
        tasks={name: _without_delay(task) for name, task in config.tasks.items()},
        schedules={},
    )


def _without_delay(task: Task) -> Task:
    return replace(task, retry_base_s=None, retry_cap_s=None)
