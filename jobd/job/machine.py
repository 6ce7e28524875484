"""The job state machine: what is known goes in, a decision comes out.

Nothing here guards the tables: every statement has its own WHERE for that. This is where the rules can be read, printed
and tried out by the million, and tests compare the statements with it. In every history:

- A final job never changes.
- A job has an open attempt, and with it a lease, exactly while it is running.
- Only the holder's token and attempt end an attempt. The clock alone ends nothing: an expired lease that nobody took
  over still renews and completes.
- Attempts are charged at claim; a release gives the charge back, but never the number.
- The stop of a node interrupts what its slots ran: that counts as an interruption, which has a bound of its own; the
  charge is given back. Only a reaper ends such an attempt.
- A cancel request ends the job at the next chance that would otherwise put it back; a completion beats it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from jobd.job.model import (
    AlreadyFinal,
    AlreadyFinished,
    Canceled,
    CancelRequested,
    Claimed,
    ClaimRef,
    ClosedAttempt,
    Completed,
    Conflicting,
    DeadLettered,
    Ended,
    JobView,
    Lease,
    LeaseLost,
    NotClaimable,
    NotClaimableReason,
    NotDeadLettered,
    NotReapable,
    Refused,
    Renewed,
    Requeued,
    Superseded,
)
from jobd.job.retry import DeadLetter, RetryPolicy, requeue_or_dead_letter, requeue_or_give_up
from jobd.job.status import FINAL_STATUSES, AttemptOutcome, DeadLetterReason, JobStatus


class Transition(Struct, frozen=True):
    #: None: the job is new
    source: JobStatus | None
    event: str
    guard: str
    target: JobStatus


QUEUED = JobStatus.QUEUED
RUNNING = JobStatus.RUNNING
DONE = JobStatus.DONE
ERROR = JobStatus.ERROR
CANCELED = JobStatus.CANCELED

_CURRENT: Final = "enqueue_id is current"
_EXPIRED: Final = "enqueue_id is current, lease of a worker expired"
_HELD: Final = "attempt and token are current"
_OVERDUE: Final = "attempt is the one seen, lease of a worker expired"
_STOPPED: Final = "attempt is the one seen, lease of slots expired or their node known to be dead"

#: Every change that a job may undergo. A guard that asks for attempts or interruptions also asks that no cancel was
#: requested.
TRANSITIONS: Final = (
    Transition(None, "submit", "", QUEUED),
    Transition(None, "redrive", "of another job, which is in error", QUEUED),
    Transition(QUEUED, "claim", f"{_CURRENT}, run_after has come", RUNNING),
    Transition(QUEUED, "cancel", "", CANCELED),
    Transition(RUNNING, "claim", f"{_EXPIRED}, attempts left", RUNNING),
    Transition(RUNNING, "claim", f"{_EXPIRED}, attempts used up", ERROR),
    Transition(RUNNING, "claim", f"{_EXPIRED}, cancel requested", CANCELED),
    Transition(RUNNING, "heartbeat", "token is current", RUNNING),
    Transition(RUNNING, "cancel", "", RUNNING),
    Transition(RUNNING, "complete", _HELD, DONE),
    Transition(RUNNING, "fail", f"{_HELD}, retryable and attempts left", QUEUED),
    Transition(RUNNING, "fail", f"{_HELD}, not retryable or attempts used up", ERROR),
    Transition(RUNNING, "fail", f"{_HELD}, cancel requested", CANCELED),
    Transition(RUNNING, "release", f"{_HELD}, no cancel requested", QUEUED),
    Transition(RUNNING, "release", f"{_HELD}, cancel requested", CANCELED),
    Transition(RUNNING, "reap", f"{_OVERDUE}, attempts left", QUEUED),
    Transition(RUNNING, "reap", f"{_OVERDUE}, attempts used up", ERROR),
    Transition(RUNNING, "reap", f"{_OVERDUE}, cancel requested", CANCELED),
    Transition(RUNNING, "interrupt", f"{_STOPPED}, interruptions left", QUEUED),
    Transition(RUNNING, "interrupt", f"{_STOPPED}, interruptions used up", ERROR),
    Transition(RUNNING, "interrupt", f"{_STOPPED}, cancel requested", CANCELED),
)


# Guards


def holds_token(job: JobView, lease_token: str) -> bool:
    return job.lease is not None and job.lease.claim.lease_token == lease_token


def holds(job: JobView, claim: ClaimRef) -> bool:
    return job.lease is not None and job.lease.claim == claim


def has_expired(job: JobView, now: float) -> bool:
    return job.lease is not None and job.lease.lease_expires_at < now


def is_of_node(job: JobView) -> bool:
    return job.lease is not None and job.lease.of_node


def still_overdue(job: JobView, attempt_id: str, now: float) -> bool:
    """The reaper's whole guard, checked again at the write: the job may have moved on since the reaper read it."""
    return job.lease is not None and job.lease.claim.attempt_id == attempt_id and has_expired(job, now)


# Decisions


def decide_claim(
    job: JobView, claim: ClaimRef, *, enqueue_id: int | None, ttl_s: float, now: float, of_node: bool = False
) -> Claimed | NotClaimable | DeadLettered | Canceled:
    """Takes a due job, or takes over one whose worker's lease expired: at no more attempts than a reaper would allow.

    `of_node`: for the slots of a node. What such slots held is left to the reaper, which counts interruptions.
    """
    if job.status in FINAL_STATUSES:
        return NotClaimable(NotClaimableReason.FINAL)
    if enqueue_id is not None and enqueue_id != job.enqueue_id:
        return NotClaimable(NotClaimableReason.STALE_MESSAGE)
    if job.status is RUNNING:
        if not has_expired(job, now) or is_of_node(job):
            return NotClaimable(NotClaimableReason.LEASED)
        if job.cancel_requested:
            return Canceled(AttemptOutcome.EXPIRED)
        if job.attempt_count >= job.max_attempts:
            return DeadLettered(outcome=AttemptOutcome.EXPIRED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED)
    elif job.cancel_requested:
        return NotClaimable(NotClaimableReason.CANCEL_REQUESTED)
    elif job.run_after > now and not job.in_line:
        return NotClaimable(NotClaimableReason.NOT_DUE)
    lease = Lease(claim=claim, lease_expires_at=now + ttl_s, of_node=of_node)
    return Claimed(lease=lease, attempt_no=job.attempt_no + 1, took_over=job.status is RUNNING)


def decide_heartbeat(
    job: JobView, lease_token: str, *, ttl_s: float, now: float, claim_version: int | None = None
) -> Renewed | LeaseLost:
    """Renews while the token is current. The expiry never moves backwards, whatever the clock does."""
    if job.lease is None or not holds_token(job, lease_token):
        return LeaseLost()
    if claim_version is not None and claim_version != job.lease.claim_version:
        return LeaseLost()
    lease = replace(
        job.lease,
        lease_expires_at=max(job.lease.lease_expires_at, now + ttl_s),
        claim_version=job.lease.claim_version + 1,
    )
    return Renewed(lease=lease, cancel_requested=job.cancel_requested)


def decide_complete(job: JobView, claim: ClaimRef) -> Completed | Refused:
    """Ends the job, though its lease expired or a cancel was requested; the same report again gets the same answer."""
    return _refuse(job, claim, replays=_COMPLETE) or Completed()


def decide_fail(
    job: JobView, claim: ClaimRef, *, retryable: bool, policy: RetryPolicy, jitter: float, now: float
) -> Ended | Refused:
    """Requeues with a backoff while that is allowed, then dead-letters; the same report again gets the same answer."""
    if refused := _refuse(job, claim, replays=_FAIL):
        return refused
    if job.cancel_requested:
        return Canceled(AttemptOutcome.CANCELED)
    return _after_failure(job, AttemptOutcome.FAILED, retryable=retryable, policy=policy, jitter=jitter, now=now)


def decide_release(job: JobView, claim: ClaimRef, *, now: float, delay_s: float = 0.0) -> Requeued | Canceled | Refused:
    """Hands the job back uncharged: with its old `run_after`, so it keeps its place in the queue, or with a delay."""
    if refused := _refuse(job, claim, replays=_RELEASE):
        return refused
    if job.cancel_requested:
        return Canceled(AttemptOutcome.CANCELED)
    run_after = now + delay_s if delay_s else job.run_after
    return Requeued(outcome=AttemptOutcome.RELEASED, enqueue_id=job.enqueue_id + 1, run_after=run_after)


def decide_cancel(job: JobView) -> Canceled | CancelRequested | AlreadyFinal:
    if job.status in FINAL_STATUSES:
        return AlreadyFinal(job.status)
    if job.status is RUNNING:
        return CancelRequested()
    return Canceled(None)


def decide_reap(
    job: JobView, attempt_id: str, *, policy: RetryPolicy, jitter: float, now: float
) -> Ended | NotReapable:
    """Closes the attempt of a silent worker; it stays charged, so that no job can bring down workers for ever."""
    if not still_overdue(job, attempt_id, now) or is_of_node(job):
        return NotReapable()
    if job.cancel_requested:
        return Canceled(AttemptOutcome.EXPIRED)
    return _after_failure(job, AttemptOutcome.EXPIRED, retryable=True, policy=policy, jitter=jitter, now=now)


def decide_interrupt(
    job: JobView, attempt_id: str, *, policy: RetryPolicy, jitter: float, now: float, is_dead: bool = False
) -> Ended | NotReapable:
    """Closes the attempt of a node that stopped. `is_dead`: known to the next start on the same data directory, which
    does not wait until the lease expires."""
    seen = job.lease is not None and job.lease.claim.attempt_id == attempt_id
    if not is_of_node(job) or not (seen if is_dead else still_overdue(job, attempt_id, now)):
        return NotReapable()
    if job.cancel_requested:
        return Canceled(AttemptOutcome.INTERRUPTED)
    verdict = requeue_or_give_up(policy, interruptions=job.interruptions + 1, jitter=jitter)
    if isinstance(verdict, DeadLetter):
        return DeadLettered(outcome=AttemptOutcome.INTERRUPTED, reason=verdict.reason)
    return Requeued(outcome=AttemptOutcome.INTERRUPTED, enqueue_id=job.enqueue_id + 1, run_after=now + verdict.delay_s)


def decide_redrive(job: JobView, new_job_id: str, *, now: float) -> JobView | NotDeadLettered:
    """A new job that runs the dead letter again; the old one stays as it is."""
    if job.status is not ERROR:
        return NotDeadLettered(job.status)
    return JobView(
        job_id=new_job_id, max_attempts=job.max_attempts, run_after=now, in_line=True, redriven_from=job.job_id
    )


#: The outcomes that each report may have led to, and so replays.
_COMPLETE: Final = frozenset({AttemptOutcome.DONE})
_FAIL: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.CANCELED})
_RELEASE: Final = frozenset({AttemptOutcome.RELEASED, AttemptOutcome.CANCELED})

#: The outcomes that a holder may not know of: the attempt was taken from it, or handed back on its behalf.
_GIVEN_UP: Final = frozenset({AttemptOutcome.EXPIRED, AttemptOutcome.INTERRUPTED, AttemptOutcome.RELEASED})


def _refuse(job: JobView, claim: ClaimRef, *, replays: frozenset[AttemptOutcome]) -> Refused | None:
    """Why this claim cannot end its attempt, or None when it can."""
    if holds(job, claim):
        return None
    closed = next((attempt for attempt in job.closed if attempt.claim == claim), None)
    if closed is None:
        return Superseded()
    if closed.outcome in replays:
        return _as_before(job, closed)
    return Superseded() if closed.outcome in _GIVEN_UP else Conflicting(closed.outcome)


def _as_before(job: JobView, closed: ClosedAttempt) -> AlreadyFinished:
    """A failure put the job back unless it made the dead letter, which only the newest attempt can have done."""
    failed, released = closed.outcome is AttemptOutcome.FAILED, closed.outcome is AttemptOutcome.RELEASED
    dead_lettered = failed and job.status is ERROR and closed.number == job.attempt_no
    return AlreadyFinished(
        outcome=closed.outcome,
        requeued=released or (failed and not dead_lettered),
        dead_lettered=dead_lettered,
    )


def _after_failure(
    job: JobView, outcome: AttemptOutcome, *, retryable: bool, policy: RetryPolicy, jitter: float, now: float
) -> Requeued | DeadLettered:
    verdict = requeue_or_dead_letter(
        policy,
        attempt_count=job.attempt_count,
        max_attempts=job.max_attempts,
        retryable=retryable,
        jitter=jitter,
    )
    if isinstance(verdict, DeadLetter):
        return DeadLettered(outcome=outcome, reason=verdict.reason)
    return Requeued(outcome=outcome, enqueue_id=job.enqueue_id + 1, run_after=now + verdict.delay_s)
