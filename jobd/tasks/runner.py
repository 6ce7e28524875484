"""The base class of runners, and the context that a running job gets.

A runner is made once for each task and runs many jobs, also at the same time. It returns the result (any JSON value),
or raises:

    TaskFailed             the attempt failed; whether another may help is said by `retryable`
    Snoozed                not now: the job comes back later, and the attempt is not charged
    anything else          a fault of the user's code: failed, and worth another attempt

To stop a job for real (lease lost, canceled, out of time, jobd ends) its `run` is cancelled. Whatever it started, a
process, a thread, a request, must have ended or been asked to end when the cancellation leaves it; what cannot be
stopped must not be able to write anything more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from jobd.errors import JobdError
from jobd.job.retry import LONGEST_SNOOZE_S, SHORTEST_SNOOZE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from jobd.job.inputs import Input
    from jobd.tasks.openai.model_counts import ModelCounts

#: Of a job that waited for no others.
NO_INPUTS: Final[Mapping[str, Input]] = {}


class TaskFailed(JobdError):
    """An attempt failed, and why."""

    def __init__(self, code: str, message: str, *, retryable: bool = True, stack: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.stack = stack


class Snoozed(TaskFailed):
    """The handler puts its job off: it comes back after `delay_s`, and this attempt is not charged."""

    def __init__(self, delay_s: float) -> None:
        super().__init__("snoozed", f"put off for {delay_s:g} s")
        self.delay_s = delay_s


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
        traceparent: str | None = None,
        tracestate: str | None = None,
        inputs: Mapping[str, Input] = NO_INPUTS,
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
        #: The trace that the job belongs to (W3C Trace Context), to be handed on with calls that the handler makes.
        self.traceparent = traceparent
        self.tracestate = tracestate
        #: What the jobs and groups that the job waited for have ended with, by `ref` or id.
        self.inputs = inputs
        #: The process that the attempt runs in, if it has one of its own.
        self.pid: int | None = None

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

    def snooze(self, seconds: float) -> NoReturn:
        """Not now: end this attempt, uncharged, and let the job come back after this time, at least a second.

        It raises `Snoozed`, which the handler must let pass.
        """
        if not 0 <= seconds <= LONGEST_SNOOZE_S:  # NaN is refused with the rest
            raise ValueError(f"snooze({seconds!r}): expected seconds from 0 to {LONGEST_SNOOZE_S}")
        raise Snoozed(float(max(seconds, SHORTEST_SNOOZE_S)))


def trace_headers(context: Context) -> dict[str, str]:
    """The trace of the job as headers of a request that is made for it."""
    names = {"traceparent": context.traceparent, "tracestate": context.tracestate}
    return {name: value for name, value in names.items() if value is not None}


class Runner(ABC):
    """Runs the jobs of one task. Only `run` has to be written."""

    #: What models answered its jobs; None: it asks none.
    model_counts: ModelCounts | None = None

    @abstractmethod
    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        """Run one job; returns its result."""

    def check(self, payload: Mapping[str, Any]) -> None:
        """Raise TaskFailed for a payload that every attempt would refuse; called at submit. Default: take any."""
        return None

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the payload; None: unknown, or any JSON object."""
        return None

    def warm_pids(self) -> list[int]:
        """Idle processes that are kept for its next jobs, the first for the next. Default: none."""
        return []

    async def gone(self, context: Context) -> None:
        """Return when nothing of a cancelled attempt runs any more; its slot waits for it. Default: at once."""
        return None

    async def close(self) -> None:
        """Free what was kept between jobs. Default: nothing was."""
        return None
