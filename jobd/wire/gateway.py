"""The client contract: the fields of requests and answers.

A job object begins with the nine fields of the public contract, spelt and typed as there; what follows may grow. Times
end in `_ts` and are whole milliseconds since 1970. A field absent from a submit has its default; null is a mistake.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from jobd.config.model import DAY_S, NAME_PATTERN

#: Most jobs of one batch: one commit must not hold up others for long.
MAX_BATCH = 10_000
#: Most jobs of one page.
MAX_PAGE = 100
#: Most dead letters that one request runs again.
MAX_REDRIVE = 1_000
#: Longest delay of a job in seconds.
MAX_AHEAD_S = 366 * DAY_S
#: Longest wait for a job's end in seconds; proxies tend to cut idle requests after 60 s.
MAX_WAIT_S = 60

Name: TypeAlias = Annotated[str, Meta(pattern=f"^{NAME_PATTERN}$")]
Status: TypeAlias = Literal["queued", "running", "done", "error", "canceled"]
Object: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Hex: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body; a misspelt field is refused rather than ignored."""


class Submit(ClientRequest, frozen=True, kw_only=True):
    task: Name
    #: Handed to the task as it is.
    payload: Object
    #: Seconds that Redis keeps the hash and events of the job after its last change. Without it: `limits.job_ttl_s`.
    ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S)] | UnsetType = UNSET
    #: Queue of the job. Without it: the queue of the task.
    queue: Name | UnsetType = UNSET
    #: Higher goes first; a point is worth a minute of waiting.
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    #: RFC 3339 with a zone; the past counts as now.
    run_after: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    #: Seconds from now; not together with `run_after`.
    delay_s: Annotated[float, Meta(ge=0, le=MAX_AHEAD_S)] = 0.0
    #: Attempts, the first included. Without it: that of the task, or `retry.max_attempts`.
    max_attempts: Annotated[int, Meta(ge=1, le=100)] | UnsetType = UNSET
    #: Seconds that one attempt may take. Without it: that of the task.
    timeout_s: Annotated[float, Meta(gt=0, le=30 * DAY_S)] | UnsetType = UNSET
    #: `active`: a queued or running job that does the same answers instead; `result`: a finished one too.
    dedupe: Literal["none", "active", "result"] = "none"


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    #: `paused`: its queue is; `delayed`: its time has not come; `retry_backoff`: the same, after a failure; `in_line`
    reason: Literal["paused", "delayed", "retry_backoff", "in_line"]
    #: How many jobs of its queue go before it. Null for one that is not in line yet, and when there are 10 000 or more.
    position: int | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    attempt_id: UUID
    owner_id: str
    #: Null while the attempt runs.
    outcome: Literal["done", "failed", "expired", "canceled", "released"] | None
    error: Raw | None
    started_ts: int
    ended_ts: int | None


class JobObject(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    task: str
    payload: Object
    status: Status
    created_ts: int
    updated_ts: int
    ttl_s: int
    #: Null until the job is done, and when it is large: `result_ref` is set then, and `/result` of the job has it.
    result: Raw | None = None
    #: Error that the job ended with; errors of other attempts are in `attempts`.
    error: Raw | None = None
    queue: str
    priority: int
    run_after_ts: int
    attempt_count: int = 0
    max_attempts: int
    timeout_s: float
    cancel_requested: bool = False
    #: SHA-256 of what the job is to do; null for a payload without canonical form.
    spec_hash: str | None
    #: The dead letter that this job runs again.
    redriven_from: UUID | None = None
    result_ref: str | None = None
    started_ts: int | None = None
    finished_ts: int | None = None
    #: Why the job waits; only while it is queued.
    waiting: Waiting | UnsetType = UNSET
    #: Oldest first.
    attempts: list[Attempt] | UnsetType = UNSET
    #: True when no job was made, because the same key or `dedupe` led to this one.
    existing: bool | UnsetType = UNSET


class BatchEntry(msgspec.Struct, frozen=True):
    job_id: UUID
    status: Status
    #: No job was made: the same key or `dedupe` led to this one.
    existing: bool


class BatchAnswer(msgspec.Struct, frozen=True):
    #: In the order in which they were sent.
    jobs: list[BatchEntry]


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    task: str
    status: Status
    created_ts: int
    updated_ts: int
    queue: str
    priority: int
    run_after_ts: int
    attempt_count: int
    max_attempts: int
    finished_ts: int | None


class JobPage(msgspec.Struct, frozen=True):
    #: Newest first. A page may be short, even empty, and still not be the last.
    jobs: list[JobSummary]
    #: Send it as `before` for the next page; null: this was the last.
    next: UUID | None


class CancelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    #: `canceled`, or `running` until its worker has stopped it.
    status: Status
    cancel_requested: bool


class QueueObject(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    paused: bool
    #: Jobs that this node runs at once; null for a queue that is no longer configured.
    slots: int | None
    queued: int
    running: int
    done: int
    error: int
    canceled: int
    #: How long the first job of the queue has been due; null: no job is due.
    head_waits_s: float | None
    #: Drain rate: jobs that left the queue per second in the last minute; null: not known yet.
    drain_per_s: float | None


class Queues(msgspec.Struct, frozen=True):
    queues: list[QueueObject]


class PauseAnswer(msgspec.Struct, frozen=True):
    name: str
    paused: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    queued: int
    running: int
    done: int
    error: int
    canceled: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    #: Redis is away: jobs are accepted and run all the same, live events come late.
    degraded: bool
    totals: Totals
    queues: list[QueueObject]
    #: Outbox rows that are not published to Redis yet; counted up to 10 000.
    outbox_depth: int
    #: Age of the oldest of them.
    outbox_age_s: float | None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str
    reason: Literal["not_retryable", "attempts_exhausted"]
    at_ts: int
    #: The newest job that runs it again.
    redriven_to: UUID | None


class DeadLetters(msgspec.Struct, frozen=True):
    #: Newest first.
    letters: list[DeadLetter]
    next: UUID | None


class Redrive(ClientRequest, frozen=True, kw_only=True):
    queue: Name | UnsetType = UNSET
    task: Name | UnsetType = UNSET
    #: Ids of dead letters; without it, the newest.
    ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_REDRIVE)] | UnsetType = UNSET
    #: Number of dead letters to check.
    limit: Annotated[int, Meta(ge=1, le=MAX_REDRIVE)] = 100
    #: Only dead letters older than this: `next` of the call before.
    before: UUID | UnsetType = UNSET


class Redriven(msgspec.Struct, frozen=True, rename={"old": "from", "new": "to"}):
    old: UUID
    new: UUID


class RedriveAnswer(msgspec.Struct, frozen=True):
    #: Dead letters that already run again are left out.
    retried: list[Redriven]
    #: Send it as `before` to go on; null: there are no more.
    next: UUID | None
