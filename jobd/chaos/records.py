"""A history: what clients were answered, what handlers ran and what the tables say after the faults.

Instants are seconds since 1970 by the clock of this machine, which is also that of its Postgres.
"""

from __future__ import annotations

import msgspec


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A job that jobd has acknowledged."""

    job_id: str
    kind: str
    #: Number in the payload, by which the result is known; one for each submit, however often that was sent.
    number: int
    sent_at: float
    delay_s: float = 0.0


class CanceledAt(msgspec.Struct, frozen=True, kw_only=True):
    """A cancel that was answered with `canceled`: the job had not been running."""

    job_id: str
    answered_at: float


class BatchOfJobs(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was sent once; it may have been accepted without an answer."""

    name: str
    jobs: int


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    queue: str
    status: str
    kind: str
    number: int
    batch: str | None
    group_id: str | None
    #: `n` of the result.
    result: int | None
    attempt_no: int
    attempt_count: int
    max_attempts: int
    interruptions: int
    #: Why it is a dead letter; None: it is none.
    reason: str | None


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that has ended."""

    job_id: str
    number: int
    lease_token: str
    outcome: str
    started_at: float
    ended_at: float


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    members: int
    done: int
    error: int
    canceled: int


class CountRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the counters of a queue say."""

    queue: str
    status: str
    number: int


class NotedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler wrote down itself: it began, or has come to its end."""

    job_id: str
    attempt: int
    at: float
    is_end: bool


class History(msgspec.Struct, frozen=True, kw_only=True):
    accepted: tuple[Accepted, ...] = ()
    canceled: tuple[CanceledAt, ...] = ()
    batches: tuple[BatchOfJobs, ...] = ()
    runs: tuple[NotedRun, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    counts: tuple[CountRow, ...] = ()
    #: Leases of jobs that are left when all jobs have ended.
    leases: int = 0
    #: Requests that were refused, by status.
    refusals: dict[int, int] = {}
    #: Exit code of the stop at the end, and processes that are left after it.
    exit_code: int = 0
    left: tuple[int, ...] = ()
