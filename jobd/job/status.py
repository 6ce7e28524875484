"""The words for where a job stands and how an attempt ended.

`JobStatus` is what is stored and what clients see. The other vocabularies are views of it: nothing stores their words.
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
    """How an attempt ended; every outcome but `released` was charged to the job."""

    DONE = "done"
    #: its holder reported a failure
    FAILED = "failed"
    #: its holder fell silent, and the reaper or the next claim closed it
    EXPIRED = "expired"
    #: its holder failed or handed the job back after a cancel was requested
    CANCELED = "canceled"
    #: its holder handed the job back unfinished
    RELEASED = "released"


class DeadLetterReason(str, Enum):
    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"


#: The `status` column of the view `model_runs`, which has no word for a canceled job.
MODEL_RUN_STATUS: Final = {
    JobStatus.QUEUED: "PENDING",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.DONE: "SUCCEEDED",
    JobStatus.ERROR: "FAILED",
    JobStatus.CANCELED: None,
}

_TASK_RUN_STATUS: Final = {
    JobStatus.QUEUED: "PENDING",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.DONE: "SUCCESSFUL",
    JobStatus.ERROR: "FAILED",
    JobStatus.CANCELED: "CANCELLED",
}

_WORKER_STATUS: Final = {
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.DONE: "final",
    JobStatus.ERROR: "DLQ",
    JobStatus.CANCELED: None,
}


def task_run_status(status: JobStatus, attempt_count: int) -> str:
    """The `status` column of the view `task_runs`, which distinguishes a first wait from a later one."""
    if status is JobStatus.QUEUED and attempt_count > 0:
        return "RETRYING"
    return _TASK_RUN_STATUS[status]


def worker_status(status: JobStatus, attempt_count: int) -> str | None:
    """The word of the worker contract, which has none for a canceled job."""
    if status is JobStatus.QUEUED and attempt_count > 0:
        return "requeued"
    return _WORKER_STATUS[status]
