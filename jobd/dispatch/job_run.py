"""One job in the hands of a slot: its handler's context, its events, and what stops it."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import anyio

from jobd.host.logs import job_fields
from jobd.openai.deltas import DELTA_TYPES
from jobd.tasks.runner import Context, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.leases.jobs import Hold
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.tasks.event_buffer import EventBuffer, EventSink

#: Seconds that a report may take once jobd stops.
LAST_REPORT_S = 2.0

_first_event = threading.Lock()


class JobRun:
    """A job that a slot has taken, until its report is written."""

    __slots__ = (
        "_buffer",
        "_sink",
        "began",
        "context",
        "handed_back",
        "has_told",
        "hold",
        "is_counted",
        "job",
        "report_s",
        "report_scope",
        "scope",
        "stopped",
        "told_once",
    )

    def __init__(self, job: ClaimedJob, hold: Hold, sink: EventSink) -> None:
        self.job = job
        self.hold = hold
        self._sink = sink
        #: Made with its first event: most jobs emit none.
        self._buffer: EventBuffer | None = None
        #: Made when its handler starts.
        self.context: Context | None = None
        #: The scope of the slot while the handler runs.
        self.scope: anyio.CancelScope | None = None
        #: Around a report of its own, which has a deadline from its beginning on.
        self.report_scope: anyio.CancelScope | None = None
        #: Whether its handler was started. Before that, a job whose lease is over can be handed back uncharged.
        self.began = False
        self.stopped = False
        self.handed_back = False
        #: Whether a reader may have read deltas of this attempt.
        self.has_told = False
        #: Whether deltas were read as they came: then no attempt may follow one that has emitted some.
        self.told_once = False
        #: Whether its slot has gone on, and its report counts among those that are not written yet.
        self.is_counted = False
        #: Seconds that its report may take, once jobd is in a hurry.
        self.report_s = math.inf
        hold.on_stop = self.stop

    def begin(self) -> Context:
        job = self.job
        self.began = True
        self.context = Context(
            job_id=job.job_id,
            task=job.task,
            attempt=job.attempt_no,
            max_attempts=job.max_attempts,
            timeout_s=job.timeout_s,
            emit=self._emit,
            lease=self.hold,
            traceparent=job.traceparent,
            tracestate=job.tracestate,
        )
        return self.context

    # -- events ----------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, step: str, data: Mapping[str, Any]) -> None:
        buffer = self._buffer if self._buffer is not None else self._make_buffer()
        buffer.emit(kind, step, data)
        if kind in DELTA_TYPES:
            self.has_told = True

    def mark_throttled(self, by: Sequence[str]) -> None:
        """Say in the events of the job that the board was slowed down while it ran."""
        if self.context is not None and not self.stopped:
            self._emit("throttled", "", {"by": list(by)})

    def _make_buffer(self) -> EventBuffer:
        with _first_event:  # handlers may emit from several threads
            if self._buffer is None:
                self._buffer = self._sink.buffer(self.job, self.hold.lose)
            return self._buffer

    @property
    def has_events(self) -> bool:
        """Whether events are not written yet."""
        return self._buffer is not None and self._buffer.has_more

    async def write_events(self) -> None:
        if self._buffer is not None:
            await self._sink.flush(self._buffer)

    def close_events(self) -> None:
        if self._buffer is not None:
            self._buffer.close()

    # -- stopping --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the handler: the lease is lost, the job is canceled, out of time, or handed back."""
        self.stopped = True
        if self.context is not None:
            self.context.cancelled = True
        if self.scope is not None:
            self.scope.cancel()
        if self.report_scope is not None and not self.may_report:
            self.report_scope.cancel()  # the report would be refused: the lease is lost

    def hand_back(self, within_s: float = LAST_REPORT_S) -> None:
        self.handed_back = True
        self.stop()
        self.report_within(within_s)

    @property
    def may_report(self) -> bool:
        return not (self.began and self.hold.is_lost)

    def report_within(self, seconds: float) -> None:
        self.report_s = min(self.report_s, seconds)
        if self.report_scope is not None:
            self.report_scope.deadline = min(self.report_scope.deadline, anyio.current_time() + seconds)

    def final(self, failed: TaskFailed) -> TaskFailed:
        """The failure as it is reported: the last one, if another attempt would speak into a stream that has begun."""
        if not (self.told_once and self.has_told and failed.retryable):
            return failed
        message = f"the answer broke off after it had begun to be read: {failed.code}: {failed.message}"
        return TaskFailed("stream_broken", message, retryable=False, stack=failed.stack)

    def why_stopped(self) -> TaskFailed | None:
        if self.hold.is_lost or self.handed_back:
            return None
        if self.hold.cancel.is_set():
            return TaskFailed("canceled", "the job was canceled while it ran", retryable=False)
        return TaskFailed("timeout", f"the attempt took longer than timeout_s = {self.job.timeout_s:g}")

    @property
    def log_fields(self) -> dict[str, str]:
        return {"service": "slots", **job_fields(self.job.job_id, self.job.attempt_no, self.job.traceparent)}
