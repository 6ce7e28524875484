"""The base class of runners, and the context that a running job gets.

A runner is made once for each task and runs many jobs, also at the same time. It returns the result (any JSON value),
or raises:

    TaskFailed             the attempt failed; whether another may help is said by `retryable`
    anything else          a fault of the user's code: failed, and worth another attempt

To stop a job for real (lease lost, canceled, out of time, jobd ends) its `run` is cancelled. Whatever it started, a
process, a thread, a request, must have ended or been asked to end when the cancellation leaves it; what cannot be
stopped must not be able to write anything more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from jobd.errors import JobdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID


class TaskFailed(JobdError):
    """An attempt failed, and why."""

    def __init__(self, code: str, message: str, *, retryable: bool = True, stack: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.stack = stack


class HeldLease(Protocol):
    #: By `time.monotonic()`: processes of the attempt must be gone then, even if jobd itself is frozen.
    kill_at: float
    #: Called in any thread when a renewal has moved `kill_at`.
    on_grant: Callable[[], None]


class Context:
    """What a running job knows, and how it emits events. Every method may be called from any thread."""

    def __init__(
        self,
        *,
        job_id: UUID,
        task: str,
        attempt: int,
        max_attempts: int,
        timeout_s: float,
        emit: Callable[[str, str, Mapping[str, Any]], None],
        lease: HeldLease | None = None,
    ) -> None:
        self.job_id = job_id
        self.task = task
        #: Number of this attempt, from 1. Usable as a fencing token: a later attempt has a larger number.
        self.attempt = attempt
        self.max_attempts = max_attempts
        #: Time by `time.monotonic()` at which the attempt is stopped.
        self.deadline = time.monotonic() + timeout_s
        #: True once the job has to stop: for code in a thread, which cannot be cancelled and has to check.
        self.cancelled = False
        self._emit = emit
        #: The lease of the attempt, for runners that start processes.
        self.lease = lease

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job."""
        return str(self.job_id)

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def event(self, kind: str, data: Mapping[str, Any], step: str = "") -> None:
        """Emit an event to followers of the job; never waits."""
        self._emit(kind, step, data)

    def progress(self, share: float, note: str = "") -> None:
        """How much is done, from 0 to 1."""
        self._emit("progress", note[:200], {"progress": min(1.0, max(0.0, share))})

    def token(self, text: str) -> None:
        self._emit("token", "", {"text": text})

    def log(self, line: str, level: str = "info") -> None:
        self._emit("log", "", {"line": line, "level": level})


class Runner(ABC):
    """Runs the jobs of one task. Only `run` has to be written."""

    @abstractmethod
    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        """Run one job; returns its result."""

    def check(self, payload: Mapping[str, Any]) -> None:
        """Raise TaskFailed for a payload that every attempt would refuse; called at submit. Default: take any."""
        return None

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the payload; None: unknown, or any JSON object."""
        return None

    async def gone(self, context: Context) -> None:
        """Return when nothing of a cancelled attempt runs any more; its slot waits for it. Default: at once."""
        return None

    async def close(self) -> None:
        """Free what was kept between jobs. Default: nothing was."""
        return None
