"""The context of a job that is only played: what a handler emits is checked as in jobd, and kept in a list."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.job.inputs import Input
from jobd.store.ids import new_id
from jobd.tasks.event_check import checked_event
from jobd.tasks.runner import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID


class RecordedEvent(NamedTuple):
    type: str
    step: str
    #: As followers get it: decoded from its JSON.
    data: dict[str, Any]


class FakeContext(Context):
    """Give it to a handler in place of a real one. It can be used from any thread."""

    def __init__(
        self,
        *,
        task: str = "test",
        attempt: int = 1,
        max_attempts: int = 3,
        timeout_s: float = 60.0,
        inputs: Mapping[str, Any] | None = None,
        cancel_after_events: int | None = None,
        job_id: UUID | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> None:
        """`inputs` maps a `ref` to the result of a job that is done, or to an `Input` for any other end.

        With `cancel_after_events` the job is canceled as soon as its handler has emitted that many.
        """
        super().__init__(
            job_id=job_id or new_id(),
            task=task,
            attempt=attempt,
            max_attempts=max_attempts,
            timeout_s=timeout_s,
            emit=self._record,
            traceparent=traceparent,
            tracestate=tracestate,
            inputs={ref: _input(value) for ref, value in (inputs or {}).items()},
        )
        self.timeout_s = timeout_s
        #: All events, in the order in which they were emitted.
        self.events: list[RecordedEvent] = []
        #: Whether `cancel` was called.
        self.is_canceled = False
        #: Called when the job is canceled, in the thread that cancels it.
        self.on_cancel: Callable[[], None] = _nothing
        self._cancel_after_events = cancel_after_events
        self._lock = threading.Lock()
        self._is_closed = False

    # -- what was emitted ------------------------------------------------------------------------------------------

    @property
    def shares(self) -> list[float]:
        """Of `ctx.progress`."""
        return [event.data["progress"] for event in self.events if event.type == "progress"]

    @property
    def notes(self) -> list[str]:
        """What `ctx.progress` said beside the shares."""
        return [event.step for event in self.events if event.type == "progress"]

    @property
    def tokens(self) -> list[str]:
        return [event.data["text"] for event in self.events if event.type == "token"]

    @property
    def text(self) -> str:
        """All tokens joined."""
        return "".join(self.tokens)

    @property
    def lines(self) -> list[str]:
        """Of `ctx.log`."""
        return [event.data["line"] for event in self.events if event.type == "log"]

    # -- what happens to the job -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the job, as `jobd cancel` would: an `async def` is cancelled, all else sees `ctx.cancelled`."""
        self.is_canceled = True
        self.cancelled = True
        self.close()
        self.on_cancel()

    def close(self) -> None:
        """The attempt ends: what its handler still emits is ignored."""
        self._is_closed = True

    def _record(self, kind: str, step: str, data: Mapping[str, Any]) -> None:
        if self._is_closed:
            return
        event = checked_event(kind, step, data)
        with self._lock:
            self.events.append(RecordedEvent(event.type, event.step, msgspec.json.decode(event.data)))
            is_due = len(self.events) == self._cancel_after_events
        if is_due:
            self.cancel()


def _input(value: Any) -> Input:
    return value if isinstance(value, Input) else Input(id=str(new_id()), status="done", result=value)


def _nothing() -> None:
    return None
