"""What decisions read, and what they answer.

Instants are seconds on one clock, the database's; its zero does not matter. An answer carries everything that has to be
written.

    changes     Claimed  Renewed  Completed  Requeued  DeadLettered  Canceled  CancelRequested
    refusals    NotClaimable  LeaseLost  Superseded  Conflicting  NotReapable  AlreadyFinal  NotDeadLettered
    replays     AlreadyFinished

`ok` and `ack` are the answer to a worker: `ack` says that the message which brought the job has had its effect.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from msgspec import Struct

from jobd.job.status import AttemptOutcome, DeadLetterReason, JobStatus


class ClaimRef(Struct, frozen=True):
    """What the holder of a claim shows to prove it: both must match."""

    attempt_id: str
    lease_token: str


class Lease(Struct, frozen=True, kw_only=True):
    """The hold on a running job; it stands for the open attempt."""

    claim: ClaimRef
    lease_expires_at: float
    #: grows by one with every renewal
    claim_version: int = 1
    #: held by the slots of a node, which renews all its leases by itself: only a node that stops lets one expire
    of_node: bool = False


class ClosedAttempt(Struct, frozen=True, kw_only=True):
    claim: ClaimRef
    number: int
    outcome: AttemptOutcome


class JobView(Struct, frozen=True, kw_only=True):
    job_id: str
    max_attempts: int
    status: JobStatus = JobStatus.QUEUED
    #: grows by one each time the job enters the queue; a message that carries an older one is stale
    enqueue_id: int = 1
    #: not to be claimed before this instant
    run_after: float = 0.0
    #: has its place in the queue: it was due once, and stays so if the clock goes back
    in_line: bool = False
    #: the number of the newest attempt, which never recurs
    attempt_no: int = 0
    #: attempts charged: at claim, and given back by a release and an interruption
    attempt_count: int = 0
    #: attempts that ended because their node stopped
    interruptions: int = 0
    cancel_requested: bool = False
    #: set exactly while the job is running
    lease: Lease | None = None
    #: closed attempts, oldest first; a decision needs only the one that its claim names
    closed: tuple[ClosedAttempt, ...] = ()
    #: the dead letter that this job runs again
    redriven_from: str | None = None


# Changes


class Claimed(Struct, frozen=True, kw_only=True):
    lease: Lease
    attempt_no: int
    #: an expired lease was taken over, and its attempt closed
    took_over: bool


class Renewed(Struct, frozen=True, kw_only=True):
    lease: Lease
    cancel_requested: bool


class Completed(Struct, frozen=True):
    ok: ClassVar[bool] = True
    ack: ClassVar[bool] = True


class Requeued(Struct, frozen=True, kw_only=True):
    outcome: AttemptOutcome
    enqueue_id: int
    run_after: float
    ok: ClassVar[bool] = True
    ack: ClassVar[bool] = True


class DeadLettered(Struct, frozen=True, kw_only=True):
    outcome: AttemptOutcome
    reason: DeadLetterReason
    ok: ClassVar[bool] = True
    ack: ClassVar[bool] = True


class Canceled(Struct, frozen=True):
    #: None when no attempt was open
    outcome: AttemptOutcome | None
    ok: ClassVar[bool] = True
    ack: ClassVar[bool] = True


class CancelRequested(Struct, frozen=True):
    """The job runs on; its holder learns it with the next heartbeat."""


# Refusals and replays: nothing changes


class NotClaimableReason(str, Enum):
    FINAL = "final"
    STALE_MESSAGE = "stale_message"
    NOT_DUE = "not_due"
    LEASED = "leased"
    CANCEL_REQUESTED = "cancel_requested"


class NotClaimable(Struct, frozen=True):
    reason: NotClaimableReason

    @property
    def ack(self) -> bool:
        """A message that came too early is the only one still to have its effect."""
        return self.reason is not NotClaimableReason.NOT_DUE


class LeaseLost(Struct, frozen=True):
    """The holder must stop its handler and write nothing more."""


class AlreadyFinished(Struct, frozen=True, kw_only=True):
    """The same call as before, and so the same answer."""

    outcome: AttemptOutcome
    requeued: bool
    dead_lettered: bool
    ok: ClassVar[bool] = True
    ack: ClassVar[bool] = True


class Conflicting(Struct, frozen=True):
    """The holder itself already reported another outcome for this attempt."""

    outcome: AttemptOutcome
    ok: ClassVar[bool] = False
    ack: ClassVar[bool] = True


class Superseded(Struct, frozen=True):
    """The attempt is no longer, or never was, the holder's to finish."""

    ok: ClassVar[bool] = False
    ack: ClassVar[bool] = True


class NotReapable(Struct, frozen=True):
    """The job moved on, or its lease was renewed, since the reaper read it."""


class AlreadyFinal(Struct, frozen=True):
    status: JobStatus


class NotDeadLettered(Struct, frozen=True):
    status: JobStatus


Ended = Requeued | DeadLettered | Canceled
Refused = AlreadyFinished | Conflicting | Superseded
