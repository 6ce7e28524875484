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
#: Most jobs that one call of a bulk action changes: one commit must not hold up others for long.
MAX_BULK = 1_000
#: Longest delay of a job in seconds.
MAX_AHEAD_S = 366 * DAY_S
#: Longest wait for a job's end in seconds; proxies tend to cut idle requests after 60 s.
MAX_WAIT_S = 60

#: Most jobs and groups that a job waits for; for more, put them into a group.
MAX_DEPENDS = 1_000
#: Most dependencies of all jobs of a batch together.
MAX_BATCH_DEPENDS = 50_000
#: Most dependencies that a job object names.
MAX_SHOWN_DEPENDS = 100
#: Most labels of a job.
MAX_LABELS = 16
LABEL_NAME = r"[A-Za-z0-9_.-]{1,64}"

Name: TypeAlias = Annotated[str, Meta(pattern=f"^{NAME_PATTERN}$")]
Status: TypeAlias = Literal["queued", "running", "done", "error", "canceled"]
#: The `$` of Python would also let a line end pass.
LabelName: TypeAlias = Annotated[str, Meta(pattern=rf"^{LABEL_NAME}$(?!\n)")]
LabelValue: TypeAlias = Annotated[str, Meta(max_length=512, pattern=r"^[^\x00]*$")]
Labels: TypeAlias = Annotated[dict[LabelName, LabelValue], Meta(max_length=MAX_LABELS)]
#: Names that begin with `jobd.` are jobd's own.
SentLabelName: TypeAlias = Annotated[str, Meta(pattern=rf"^(?!jobd\.){LABEL_NAME}$(?!\n)")]
SentLabels: TypeAlias = Annotated[dict[SentLabelName, LabelValue], Meta(max_length=MAX_LABELS)]
#: A label to look for: name, colon, value.
LabelTerm: TypeAlias = Annotated[str, Meta(pattern=rf"^{LABEL_NAME}:[^\x00]{{0,512}}$(?!\n)")]
LabelTerms: TypeAlias = Annotated[list[LabelTerm], Meta(min_length=1, max_length=MAX_LABELS)]
#: Postgres keeps no text with the character 0; `*` stands for all keys.
LimitKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^(?!\*$)[^\x00]*$")]
RuleKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
#: Name of an item of a batch, or of an input.
Ref: TypeAlias = Annotated[str, Meta(pattern=rf"^{LABEL_NAME}$(?!\n)")]
Object: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Hex: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
#: Milliseconds since 1970, up to the year 9999.
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
#: Postgres keeps no text with the character 0.
ErrorCode: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00]+$")]
SearchText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body; a misspelt field is refused rather than ignored."""


class DependsOn(ClientRequest, frozen=True, kw_only=True):
    """What a job waits for: a job, an item of the same batch by its `ref`, or a group."""

    job: UUID | UnsetType = UNSET
    #: Name of the input; without it the id is its name. Without `job` and `group`: the item of the batch that it names.
    ref: Ref | UnsetType = UNSET
    group: UUID | UnsetType = UNSET
    #: `success`: if it fails or is canceled, the job is canceled; `any`: any end will do.
    on: Literal["success", "any"] = "success"


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
    #: Names and values by which jobs can be found again; names that begin with `jobd.` are jobd's own.
    labels: SentLabels = {}
    #: RFC 3339 with a zone: a job that has not started by then is canceled, with the error code `expired`.
    expires_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    #: The same in seconds from now; not together with `expires_at`.
    expires_in_s: Annotated[float, Meta(gt=0, le=MAX_AHEAD_S)] | UnsetType = UNSET
    #: Jobs of the queue with the same key share its limits, and its turns. Without it: what the task's setting
    #: `limit_key` finds in the payload, if it has one.
    limit_key: LimitKey | UnsetType = UNSET
    #: Jobs and groups that must end before the job may run: ids of jobs, or objects. Their results are its inputs.
    depends_on: Annotated[list[UUID | DependsOn], Meta(max_length=MAX_DEPENDS)] = []
    #: Name by which other items of the same batch depend on this one.
    ref: Ref | UnsetType = UNSET
    #: The group that the job enters.
    group: UUID | UnsetType = UNSET


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    #: `paused`: see `paused`; `delayed`: its time has not come; `retry_backoff`: the same, after a failure; `snoozed`:
    #: the same, put off by its handler; `limited`: its key has no room, or it is not its turn; `depends`: it waits for
    #: the end of other jobs; `memory`: slots of this node have too little of it free, see `needed_bytes`; `heat`: the
    #: board is hot, and slots of its queue start fewer jobs, or none; `model_swap`: another model of its swap group is
    #: loaded; `in_line`
    reason: Literal[
        "paused", "delayed", "retry_backoff", "snoozed", "limited", "depends", "memory", "heat", "model_swap", "in_line"
    ]
    #: How many jobs of its queue go before it. Null for one that is not in line yet, and when there are 10 000 or more.
    position: int | None
    #: About how many seconds until it starts, by how long jobs of its queue run; null: not known.
    eta_s: float | None = None
    #: What is paused: its `queue`, its `task`, or `all` jobs.
    paused: Literal["queue", "task", "all"] | UnsetType = UNSET
    #: The key whose limit it waits for.
    limit_key: str | UnsetType = UNSET
    #: When the rate of that key may have room again, if it waits for that.
    until_ts: int | UnsetType = UNSET
    #: The jobs and groups that have not ended yet; at most 100. Only of one job, with `depends`.
    depends_on: list[UUID] | UnsetType = UNSET
    #: Memory that it needs, and that is free for it; `free_bytes` is null if this node cannot measure its memory, and
    #: then no such job starts. With `memory`.
    needed_bytes: int | UnsetType = UNSET
    free_bytes: int | UnsetType | None = UNSET
    #: What was measured, or why that was not possible, in words. With `memory`, `heat` and `model_swap`.
    detail: str | UnsetType = UNSET


class DependencyObject(msgspec.Struct, frozen=True, kw_only=True):
    #: A job or a group.
    id: UUID
    kind: Literal["job", "group"]
    on: Literal["success", "any"]
    #: Name of the input; null: the id is.
    ref: str | None
    #: Of a group: `running` until it is finished, then `done`, or `error` if a member failed. Null: it was deleted.
    status: Status | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    attempt_id: UUID
    owner_id: str
    #: Null while the attempt runs.
    outcome: Literal["done", "failed", "expired", "interrupted", "canceled", "released"] | None
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
    labels: dict[str, str] = {}
    #: Name of the token that sent the job; null: it was sent without one, or jobd made it.
    owner: str | None = None
    #: The trace that the job belongs to, from the header of its submit (W3C Trace Context).
    traceparent: str | None = None
    #: When the job is canceled if it has not started by then; null: never.
    expires_ts: int | None = None
    #: How often its handler, or its worker, has put it off.
    snoozes: int = 0
    #: Times that the stop of its node (power, kill, memory) interrupted the job; costs no attempt, has its own bound.
    interruptions: int = 0
    #: The schedule that made the job, and the occurrence that it is for.
    schedule: str | None = None
    scheduled_for_ts: int | None = None
    limit_key: str | None = None
    group_id: UUID | None = None
    #: What the job depends on, at most 100; left out if it is nothing.
    depends_on: list[DependencyObject] | UnsetType = UNSET


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
    labels: dict[str, str] = {}
    #: Name of the token that sent the job.
    owner: str | None = None
    #: Why the job waits; only while it is queued.
    waiting: Waiting | UnsetType = UNSET
    #: The schedule that made the job, and the occurrence that it is for.
    schedule: str | None = None
    scheduled_for_ts: int | None = None


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


class LimitRequest(ClientRequest, frozen=True, kw_only=True):
    """The limits of a key, in place of those that were set before. What is left out is as for all keys."""

    #: `*`: all keys of the queue that have no limits of their own.
    key: RuleKey
    #: Most jobs that run at once; 0: any number.
    running: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET
    #: Most jobs that start within `rate_s` seconds; 0: any number.
    rate: Annotated[int, Meta(ge=0, le=10_000)] | UnsetType = UNSET
    #: Goes with `rate`.
    rate_s: Annotated[float, Meta(gt=0, le=DAY_S)] | UnsetType = UNSET
    #: Turns for each turn of a key with weight 1, in a queue whose keys take turns.
    weight: Annotated[float, Meta(ge=0.01, le=100)] | UnsetType = UNSET


class LimitDrop(ClientRequest, frozen=True, kw_only=True):
    key: RuleKey


class LimitObject(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    #: Null: as for all keys (`*`), or as configured.
    running: int | None
    rate: int | None
    rate_s: float | None
    weight: float | None


class ConfiguredLimits(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    rate: int
    rate_s: float
    fair: bool


class LimitPage(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    #: What the configuration of this node says about every key; 0: no limit.
    configured: ConfiguredLimits
    #: What was set over HTTP, by key.
    limits: list[LimitObject]
    #: Send it as `after` for the next page; null: this was the last.
    next: str | None


class LimitDropAnswer(msgspec.Struct, frozen=True):
    key: str
    #: False: the key had no limits of its own.
    dropped: bool


class PauseAllAnswer(msgspec.Struct, frozen=True):
    paused: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    queued: int
    running: int
    done: int
    error: int
    canceled: int


class DiskRoom(msgspec.Struct, frozen=True, kw_only=True):
    #: Of the disk that the data directory is on, as this node's account may use it.
    free_bytes: int
    total_bytes: int
    #: `limits.min_free_mb`: with less, no new jobs are taken.
    min_free_bytes: int


class MemoryRoom(msgspec.Struct, frozen=True, kw_only=True):
    #: What can be had without swapping.
    available_bytes: int
    total_bytes: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    #: Redis is away: jobs are accepted and run all the same, live events come late.
    degraded: bool
    totals: Totals
    queues: list[QueueObject]
    #: Outbox rows that are not published to Redis yet; counted up to 10 000.
    outbox_depth: int
    #: Age of the oldest of them: by so much Redis lags behind. `/readyz` says it as well, of the node that is asked.
    outbox_age_s: float | None
    #: Of the node that is asked, some seconds old at most; null: not known.
    disk: DiskRoom | None = None
    #: Likewise; null where the kernel does not say.
    memory: MemoryRoom | None = None
    #: Whether everything is paused (`/v1/pause`).
    paused: bool = False
    #: Tasks that are paused.
    paused_tasks: list[str] = []


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str
    reason: Literal["not_retryable", "attempts_exhausted", "interruptions_exhausted"]
    at_ts: int
    #: The newest job that runs it again.
    redriven_to: UUID | None


class DeadLetters(msgspec.Struct, frozen=True):
    #: Newest first.
    letters: list[DeadLetter]
    next: UUID | None


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    #: Code of the error; empty: the errors have none.
    error: str
    task: str
    count: int
    #: Those of them that do not run again yet.
    open: int
    #: When the first and the last of them ended.
    first_ts: int
    last_ts: int
    #: The newest of them, and what its error says, up to 500 characters.
    example_id: UUID
    message: str


class DeadLetterGroups(msgspec.Struct, frozen=True):
    #: The one with the newest dead letter first, 100 at most.
    groups: list[DeadLetterGroup]
    #: False: there are more than the newest 10 000 dead letters, which were looked at, or more groups.
    exact: bool


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


class Filter(ClientRequest, frozen=True, kw_only=True):
    """Which jobs are meant; all terms must fit, and an absent one fits any job."""

    status: Status | UnsetType = UNSET
    task: Name | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    #: Jobs that ended in an error with this code.
    error: ErrorCode | UnsetType = UNSET
    #: Jobs that ended in an error with this in its message, in any case of letters.
    text: SearchText | UnsetType = UNSET
    #: Made at this time or later, in milliseconds since 1970.
    since_ts: Moment | UnsetType = UNSET
    #: Made before this time, in milliseconds since 1970.
    until_ts: Moment | UnsetType = UNSET
    #: Jobs that have all of these labels.
    labels: Labels | UnsetType = UNSET
    #: Jobs that the token of this name has sent.
    owner: SearchText | UnsetType = UNSET
    #: Jobs that this schedule has made.
    schedule: Name | UnsetType = UNSET
    #: Members of this group.
    group: UUID | UnsetType = UNSET


class CountRequest(Filter, frozen=True, kw_only=True):
    #: Count only jobs with a status that this action can change.
    action: Literal["cancel", "retry", "delete"] | UnsetType = UNSET


class CountAnswer(msgspec.Struct, frozen=True):
    count: int
    #: False: only the newest jobs were looked at (100 000, or 20 000 with a label or in error), so there may be more.
    exact: bool


class BulkRequest(Filter, frozen=True, kw_only=True):
    #: Must be true if no term of the filter is set: every job is meant.
    all: bool = False
    #: Most jobs that this call changes.
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK)] = 500
    #: Only jobs older than this: `next` of the call before.
    before: UUID | UnsetType = UNSET


class BulkAnswer(msgspec.Struct, frozen=True):
    changed: int
    #: Jobs that fit and were not changed: that had been done, another caller was faster, or a ticket needs them.
    skipped: int
    #: Send it as `before` to go on, even if nothing was changed; null: no more jobs fit.
    next: UUID | None
