"""The worker contract: claim, heartbeat, complete, fail and release, with every field as the contract spells it.

Beyond the contract are the batches: `complete/batch`, `fail/batch` and `release/batch` take the reports on many jobs
and answer each as the call for one job would.

What a worker may leave out has a default or is absent; a field that nobody knows is refused. Fields beyond the contract
may be ignored by any worker. A `reason` is for programs:

    lease_lost           heartbeat: the job is no longer, or never was, this worker's; stop and report nothing
    superseded           the attempt was ended by others, or the proof is wrong
    canceled             the job is canceled
    unknown_job          there is no such job, or no longer
    conflicting_outcome  this attempt has already reported something else
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from jobd.config.model import DAY_S

#: Most queues that one claim names.
MAX_STREAMS = 64
#: Most jobs of one heartbeat, and of one batch of reports.
MAX_JOBS = 1_000
#: Most jobs of one claim: as many as jobd claims in one commit. All their payloads are in one answer.
MAX_CLAIMED = 500
#: Longest wait of a claim in milliseconds; a larger `max_wait_ms` counts as this.
MAX_WAIT_MS = 60_000

WorkerId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
StreamName: TypeAlias = Annotated[str, Meta(max_length=128)]
#: Opaque to workers: a text that is no token of jobd is refused like the token of another worker.
LeaseToken: TypeAlias = Annotated[str, Meta(max_length=128)]
ReportReason: TypeAlias = Literal["superseded", "canceled", "unknown_job", "conflicting_outcome"]
#: Seconds for which a job is put off, up to 366 days, as for the delay of a new one.
SnoozeS: TypeAlias = Annotated[float, Meta(ge=0, le=366 * DAY_S)]


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body; a misspelt field is refused rather than ignored."""


# Claim


class ClaimRequest(WorkerRequest, frozen=True, kw_only=True):
    #: Visible characters; shown as the owner of the job. It proves nothing, and two may share one.
    worker_id: WorkerId
    #: `jobs:stream`, `jobs:stream:gpu`: what the worker serves, the one it likes best first.
    streams: Annotated[list[StreamName], Meta(min_length=1, max_length=MAX_STREAMS)]
    #: Longest wait for a job; 0: do not wait. More than a minute counts as a minute.
    max_wait_ms: Annotated[int, Meta(ge=0)] = 0
    #: Most jobs to claim, for workers that run several at once; answered in `jobs`. Left out: one job.
    max_jobs: Annotated[int, Meta(ge=1, le=MAX_CLAIMED)] | UnsetType = UNSET


class JobInput(msgspec.Struct, frozen=True, kw_only=True):
    """What one job or group that the claimed job waited for has ended with."""

    #: Of a job or a group.
    id: str
    #: `done`, `error` or `canceled`.
    status: str
    #: Null unless it is done, and when it is large. Of a group: its counters.
    result: Any = None
    #: The error of a job that is not done.
    error: Any = None
    #: The result is not here, since it is large: `/v1/jobs/{id}/result` has it.
    is_large: bool = False


class ClaimedJob(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    attempt_id: UUID
    lease_token: UUID
    stream: str
    message_id: str
    payload: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    lease_ttl_seconds: int
    heartbeat_interval_seconds: float
    task: str
    attempt: int
    max_attempts: int
    timeout_s: float
    enqueue_id: int
    #: The trace that the job belongs to (W3C Trace Context); left out if it has none.
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET
    #: By `ref` or id; left out if the job waited for no others.
    inputs: dict[str, JobInput] | UnsetType = UNSET


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one job, or `jobs` when `max_jobs` was asked for."""

    claimed: bool
    #: The longest wait that was in force.
    max_wait_ms: int
    #: How long after this call had arrived its jobs were claimed. Their leases count from then: by a worker's own clock
    #: from when it sent the call plus this, however late the answer arrives.
    claimed_after_ms: int | UnsetType = UNSET
    job_id: UUID | UnsetType = UNSET
    attempt_id: UUID | UnsetType = UNSET
    #: Proves that a heartbeat or report comes from the holder. Keep it out of logs.
    lease_token: UUID | UnsetType = UNSET
    stream: str | UnsetType = UNSET
    #: Empty when the job came without a message, as it does while Redis is away.
    message_id: str | UnsetType = UNSET
    payload: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] | UnsetType = UNSET
    lease_ttl_seconds: int | UnsetType = UNSET
    heartbeat_interval_seconds: float | UnsetType = UNSET
    task: str | UnsetType = UNSET
    #: The number of this attempt; one that was handed back has a number too, but is not charged.
    attempt: int | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    #: An attempt that takes longer should be given up and reported as failed.
    timeout_s: float | UnsetType = UNSET
    enqueue_id: int | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET
    inputs: dict[str, JobInput] | UnsetType = UNSET
    jobs: list[ClaimedJob] | UnsetType = UNSET


# Heartbeat


class HeartbeatJob(WorkerRequest, frozen=True, kw_only=True):
    job_id: UUID
    lease_token: LeaseToken


class HeartbeatRequest(WorkerRequest, frozen=True, kw_only=True):
    """One job, or a list of them in `jobs` instead."""

    worker_id: WorkerId
    job_id: UUID | UnsetType = UNSET
    lease_token: LeaseToken | UnsetType = UNSET
    jobs: Annotated[list[HeartbeatJob], Meta(min_length=1, max_length=MAX_JOBS)] | UnsetType = UNSET


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one lease."""

    job_id: UUID
    ok: bool
    #: Null when it was not renewed.
    lease_expires_at: datetime | None
    #: Stop the job and report it as failed: it ends canceled.
    cancel: bool
    #: jobd is stopping: finish what you have and claim nothing new.
    quiet: bool
    lease_ttl_seconds: int
    reason: Literal["lease_lost"] | UnsetType = UNSET


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one heartbeat, or `jobs` when there was a list, in its order."""

    job_id: UUID | UnsetType = UNSET
    ok: bool | UnsetType = UNSET
    lease_expires_at: datetime | UnsetType | None = UNSET
    cancel: bool | UnsetType = UNSET
    quiet: bool | UnsetType = UNSET
    lease_ttl_seconds: int | UnsetType = UNSET
    reason: Literal["lease_lost"] | UnsetType = UNSET
    jobs: list[Heartbeat] | UnsetType = UNSET


# Complete, fail and release


class AttemptReport(WorkerRequest, frozen=True, kw_only=True):
    worker_id: WorkerId
    job_id: UUID
    attempt_id: UUID
    lease_token: LeaseToken
    #: What the claim answered. jobd knows it, so it may be left out.
    stream: StreamName = ""
    message_id: Annotated[str, Meta(max_length=128)] = ""


class CompleteRequest(AttemptReport, frozen=True, kw_only=True):
    #: Any JSON value up to `limits.result_bytes`; null is one.
    result: Any


class CompleteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: The job is done, by this report or by the same one before.
    ok: bool
    #: The message may be acknowledged in Redis.
    ack: bool
    #: Why not ok.
    reason: ReportReason | UnsetType = UNSET
    #: True: the same was reported before, and nothing has changed.
    replay: bool | UnsetType = UNSET


class JobError(WorkerRequest, frozen=True, kw_only=True):
    #: For programs; what the job's error is called from now on.
    code: Annotated[str, Meta(min_length=1, max_length=128)]
    #: For people; kept up to 4 KB.
    message: str = ""
    #: Kept up to 16 KB.
    stack: str | None = None
    #: Whether another attempt may succeed.
    retryable: bool = True


class FailRequest(AttemptReport, frozen=True, kw_only=True):
    error: JobError


class FailAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: The failure is written down, by this report or by the same one before.
    ok: bool
    ack: bool
    #: The job is queued again.
    requeued: bool
    #: The job is a dead letter.
    dlq: bool
    #: Why not ok; `canceled` with ok: the job was to be canceled, and is.
    reason: ReportReason | UnsetType = UNSET
    replay: bool | UnsetType = UNSET
    #: When a requeued job may be claimed again.
    retry_at: datetime | UnsetType = UNSET


class ReleaseRequest(AttemptReport, frozen=True, kw_only=True):
    """Hands a job back unfinished, as a worker does that has to stop: it is queued again and not charged."""

    #: A snooze: seconds until the job comes back, at least 1. Without it, or 0: at once, in its old place.
    delay_s: SnoozeS | UnsetType = UNSET


class ReleaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: The job is handed back, by this report or by the same one before.
    ok: bool
    ack: bool
    #: The job is queued again.
    requeued: bool
    #: Why not ok; `canceled` with ok: the job was to be canceled, and is.
    reason: ReportReason | UnsetType = UNSET
    replay: bool | UnsetType = UNSET


# Several reports in one call


class JobReport(WorkerRequest, frozen=True, kw_only=True):
    """One of several reports; the fields are those of a call for one job."""

    job_id: UUID
    attempt_id: UUID
    lease_token: LeaseToken
    stream: StreamName | UnsetType = UNSET
    message_id: Annotated[str, Meta(max_length=128)] | UnsetType = UNSET


class CompleteJob(JobReport, frozen=True, kw_only=True):
    #: Any JSON value up to `limits.result_bytes`; null is one. A large one is better sent with `complete`.
    result: Raw


class CompleteBatchRequest(WorkerRequest, frozen=True, kw_only=True):
    worker_id: WorkerId
    jobs: Annotated[list[CompleteJob], Meta(min_length=1, max_length=MAX_JOBS)]


class FailJob(JobReport, frozen=True, kw_only=True):
    error: JobError


class FailBatchRequest(WorkerRequest, frozen=True, kw_only=True):
    worker_id: WorkerId
    jobs: Annotated[list[FailJob], Meta(min_length=1, max_length=MAX_JOBS)]


class ReleaseJob(JobReport, frozen=True, kw_only=True):
    """Hands back one of several jobs."""

    delay_s: SnoozeS | UnsetType = UNSET


class ReleaseBatchRequest(WorkerRequest, frozen=True, kw_only=True):
    worker_id: WorkerId
    jobs: Annotated[list[ReleaseJob], Meta(min_length=1, max_length=MAX_JOBS)]


class ReportProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why one report of several was not taken, as the problem document of a call for one job says it. The job is still
    held: send another report, or after a status of 500 or more the same again.
    """

    status: int
    code: str
    detail: str


class CompleteJobAnswer(CompleteAnswer, frozen=True, kw_only=True):
    #: Only with ok and ack false, and without a reason.
    problem: ReportProblem | UnsetType = UNSET


class CompleteBatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: In the order of the request.
    jobs: list[CompleteJobAnswer]


class FailJobAnswer(FailAnswer, frozen=True, kw_only=True):
    #: Only with ok and ack false, and without a reason.
    problem: ReportProblem | UnsetType = UNSET


class FailBatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: In the order of the request.
    jobs: list[FailJobAnswer]


class ReleaseJobAnswer(ReleaseAnswer, frozen=True, kw_only=True):
    #: Only with ok and ack false, and without a reason.
    problem: ReportProblem | UnsetType = UNSET


class ReleaseBatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: In the order of the request.
    jobs: list[ReleaseJobAnswer]
