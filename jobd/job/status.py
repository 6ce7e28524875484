"""The status of a job, the outcome of an attempt, and why a job is a dead letter.

`JobStatus` is what is stored and what clients see. The views `model_runs` and `task_runs` have words of their own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class JobStatus(str, Enum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELED = "canceled"


#: A job in one of these never changes again.
FINAL_STATUSES: Final = frozenset({JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELED})


class AttemptOutcome(str, Enum):
    """How an attempt ended; every outcome but `interrupted` and `released` was charged to the job."""

    DONE = "done"
    #: its holder reported a failure
    FAILED = "failed"
    #: its holder fell silent, and the reaper or the next claim closed it
    EXPIRED = "expired"
    #: the node that ran it ended or stood still, and a reaper closed it
    INTERRUPTED = "interrupted"
    #: its holder failed or handed the job back after a cancel was requested
    CANCELED = "canceled"
    #: its holder handed the job back unfinished
    RELEASED = "released"


class DeadLetterReason(str, Enum):
    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    INTERRUPTIONS_EXHAUSTED = "interruptions_exhausted"
