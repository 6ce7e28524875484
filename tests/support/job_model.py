"""A job in memory: the pure machine driven as a whole, command by command.

Tests drive it alone, and as the model that the database must agree with.

    commands    Claim  Heartbeat  Complete  Fail  Release  Cancel  Reap  Interrupt
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import assert_never

from jobd.job import machine
from jobd.job.model import (
    AlreadyFinal,
    Canceled,
    CancelRequested,
    Claimed,
    ClaimRef,
    ClosedAttempt,
    Completed,
    DeadLettered,
    Ended,
    JobView,
    LeaseLost,
    NotClaimable,
    NotReapable,
    Refused,
    Renewed,
    Requeued,
)
from jobd.job.status import AttemptOutcome, JobStatus

if TYPE_CHECKING:
    from jobd.job.retry import RetryPolicy


class Claim(Struct, frozen=True, kw_only=True):
    #: a fresh pair, never used before
    claim: ClaimRef
    ttl_s: float
    #: what the message said; None when the job was found in the table itself
    enqueue_id: int | None
    #: by the slots of a node, not by a worker
    of_node: bool = False


class Heartbeat(Struct, frozen=True, kw_only=True):
    lease_token: str
    ttl_s: float
    #: a holder that shows the version it knows loses when it has moved
    claim_version: int | None = None


class Complete(Struct, frozen=True):
    claim: ClaimRef


class Fail(Struct, frozen=True, kw_only=True):
    claim: ClaimRef
    retryable: bool
    jitter: float


class Release(Struct, frozen=True):
    claim: ClaimRef
    #: a snooze, if there is one
    delay_s: float = 0.0


class Cancel(Struct, frozen=True):
    pass


class Reap(Struct, frozen=True, kw_only=True):
    #: the attempt whose lease was seen to have expired
    attempt_id: str
    jitter: float


class Interrupt(Struct, frozen=True, kw_only=True):
    attempt_id: str
    jitter: float
    #: its node is known to be dead: the lease need not have expired
    is_dead: bool = False


Command = Claim | Heartbeat | Complete | Fail | Release | Cancel | Reap | Interrupt
Answer = (
    Claimed
    | Renewed
    | Completed
    | CancelRequested
    | Ended
    | NotClaimable
    | LeaseLost
    | Refused
    | NotReapable
    | AlreadyFinal
)


def apply(job: JobView, command: Command, *, now: float, policy: RetryPolicy) -> tuple[JobView, Answer]:
    """Decides one command and carries the decision out."""
    answer = decide(job, command, now=now, policy=policy)
    return carry_out(job, answer), answer


def decide(job: JobView, command: Command, *, now: float, policy: RetryPolicy) -> Answer:
    if isinstance(command, Claim):
        return machine.decide_claim(
            job,
            command.claim,
            enqueue_id=command.enqueue_id,
            ttl_s=command.ttl_s,
            now=now,
            of_node=command.of_node,
        )
    if isinstance(command, Heartbeat):
        return machine.decide_heartbeat(
            job, command.lease_token, ttl_s=command.ttl_s, now=now, claim_version=command.claim_version
        )
    if isinstance(command, Complete):
        return machine.decide_complete(job, command.claim)
    if isinstance(command, Fail):
        return machine.decide_fail(
            job, command.claim, retryable=command.retryable, policy=policy, jitter=command.jitter, now=now
        )
    if isinstance(command, Release):
        return machine.decide_release(job, command.claim, now=now, delay_s=command.delay_s)
    if isinstance(command, Cancel):
        return machine.decide_cancel(job)
    if isinstance(command, Reap):
        return machine.decide_reap(job, command.attempt_id, policy=policy, jitter=command.jitter, now=now)
    if isinstance(command, Interrupt):
        return machine.decide_interrupt(
            job, command.attempt_id, policy=policy, jitter=command.jitter, now=now, is_dead=command.is_dead
        )
    assert_never(command)


def carry_out(job: JobView, answer: Answer) -> JobView:
    """The job after this answer; a refusal or a replay leaves it as it was."""
    if isinstance(answer, Claimed):
        before = close_attempt(job, AttemptOutcome.EXPIRED)
        return replace(
            before,
            status=JobStatus.RUNNING,
            attempt_no=answer.attempt_no,
            attempt_count=job.attempt_count + 1,
            in_line=False,
            lease=answer.lease,
        )
    if isinstance(answer, Renewed):
        return replace(job, lease=answer.lease)
    if isinstance(answer, CancelRequested):
        return replace(job, cancel_requested=True)
    if isinstance(answer, Completed):
        return replace(close_attempt(job, AttemptOutcome.DONE), status=JobStatus.DONE)
    if isinstance(answer, Requeued):
        return replace(
            close_attempt(job, answer.outcome),
            status=JobStatus.QUEUED,
            enqueue_id=answer.enqueue_id,
            run_after=answer.run_after,
            # a snooze brings a time of its own, which lies ahead
            in_line=answer.outcome is AttemptOutcome.RELEASED and answer.run_after == job.run_after,
        )
    if isinstance(answer, DeadLettered):
        return replace(close_attempt(job, answer.outcome), status=JobStatus.ERROR)
    if isinstance(answer, Canceled):
        closed = job if answer.outcome is None else close_attempt(job, answer.outcome)
        return replace(closed, status=JobStatus.CANCELED, in_line=False)
    return job


def close_attempt(job: JobView, outcome: AttemptOutcome) -> JobView:
    if job.lease is None:
        return job
    attempt = ClosedAttempt(claim=job.lease.claim, number=job.attempt_no, outcome=outcome)
    interrupted = outcome is AttemptOutcome.INTERRUPTED
    given_back = outcome is AttemptOutcome.RELEASED or interrupted
    return replace(
        job,
        lease=None,
        closed=(*job.closed, attempt),
        attempt_count=job.attempt_count - given_back,
        interruptions=job.interruptions + interrupted,
    )
