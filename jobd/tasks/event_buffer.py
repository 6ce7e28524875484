"""Events that running jobs emit, from any thread, and the one task that writes them to the event log for all jobs.

`EventBuffer.emit` never waits. A buffer is bounded: at `MOST_WAITING` events adjacent deltas of an answer are joined,
so that a reader who adds them up misses none. When that does not help, the oldest log lines and then deltas are
dropped, and one `dropped` event says how many. A chunk that was sent is kept unchanged until it is answered and carries
the number of events before it, so a chunk that is sent twice is stored once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from jobd.errors import JobdError
from jobd.host.logs import job_fields
from jobd.job.model import LeaseLost
from jobd.lifecycle.events import CHUNK_BYTES, CHUNK_EVENTS, DROPPED_FIRST, EventBatch, OutOfStep
from jobd.openai.deltas import DELTA_TYPES
from jobd.tasks.event_check import checked_event
from jobd.tasks.event_join import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobd.job.history import HandlerEvent
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.events import Answer

log = logging.getLogger(__name__)

#: Events of one attempt that wait to be written; beyond it they are joined or dropped.
MOST_WAITING = 1000
#: Deltas that must have come since the last joining before another is tried, as it looks at all that wait.
JOIN_AFTER = 250
#: Seconds between two writes, so that many small events share a transaction; the first is written at once, and so is
#: the first delta of an answer.
PAUSE_S = 0.05
#: Seconds between a write that failed and the next.
RETRY_S = 0.5


class EventBuffer:
    """Events of one attempt that are not written yet."""

    def __init__(self, job: ClaimedJob, on_lost: Callable[[], None], wake: Callable[[EventBuffer, bool], None]) -> None:
        self._job = job
        self._on_lost = on_lost
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[HandlerEvent] = deque()
        self._dropped = 0
        #: Deltas that came since the last joining.
        self._unjoined = 0
        #: Whether the first delta was emitted.
        self._has_begun = False
        #: The chunk that was sent and is not answered yet.
        self._sent: list[HandlerEvent] = []
        self._told_n = 0
        self._closed = False
        #: Set when the buffer is empty; exists only while `EventSink.flush` waits for it.
        self.emptied: anyio.Event | None = None

    @property
    def has_more(self) -> bool:
        return bool(self._waiting or self._sent)

    def emit(self, kind: str, step: str, data: Mapping[str, Any]) -> None:
        """Add an event. Ignored once the attempt has ended, as a thread of its handler may still run."""
        if self._closed:
            return
        event = checked_event(kind, step, data)
        with self._lock:
            self._waiting.append(event)
            self._unjoined += kind in DELTA_TYPES
            if len(self._waiting) > MOST_WAITING:
                self._make_room()
        is_first = not self._has_begun and kind in DELTA_TYPES
        self._has_begun = self._has_begun or is_first
        self._wake(self, is_first)

    def close(self) -> None:
        """Drop what is not written yet, and ignore what is emitted from now on."""
        self._closed = True
        with self._lock:
            self._waiting.clear()
            self._sent = []

    def next_chunk(self) -> EventBatch | None:
        """The chunk to send now: the last one again if it was not answered."""
        with self._lock:
            if not self._sent:
                self._sent = self._new_chunk()
        if not self._sent:
            return None
        return EventBatch(
            job_id=self._job.job_id, lease_token=self._job.lease_token, events=self._sent, emitted_n=self._told_n
        )

    def settle(self, answer: Answer | Exception) -> bool:
        """Take the answer to the chunk; False: the outcome is not known, send the chunk again."""
        if isinstance(answer, JobdError):
            return False
        if isinstance(answer, LeaseLost):
            self.close()
            self._on_lost()
        elif isinstance(answer, OutOfStep):  # another process emits with this lease: go on from its count
            self._sent = self._sent[max(0, answer.emitted_n - self._told_n) :]
            self._told_n = answer.emitted_n
        elif isinstance(answer, Exception):
            fields = job_fields(self._job.job_id, self._job.attempt_no, self._job.traceparent)
            log.warning("events of a job were dropped: %s", type(answer).__name__, extra=fields)
            self._dropped += len(self._sent)
            self._sent = []
        else:
            self._told_n += len(self._sent)
            self._sent = []
        return True

    def _new_chunk(self) -> list[HandlerEvent]:
        chunk: list[HandlerEvent] = []
        if self._dropped:
            chunk.append(checked_event("dropped", "", {"count": self._dropped}))
            self._dropped = 0
        size = 0
        while self._waiting and len(chunk) < CHUNK_EVENTS and size < CHUNK_BYTES:
            chunk.append(self._waiting.popleft())
            size += len(bytes(chunk[-1].data))
        return chunk

    def _make_room(self) -> None:
        if self._unjoined >= JOIN_AFTER:
            self._waiting = joined(self._waiting)
            self._unjoined = 0
        while len(self._waiting) > MOST_WAITING:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Log lines before deltas, which add up to an answer, and both before anything else."""
        types = [event.type for event in self._waiting]
        n = (
            types.index("log")
            if "log" in types
            else next((n for n, kind in enumerate(types) if kind in DROPPED_FIRST), 0)
        )
        del self._waiting[n]
        self._dropped += 1


class EventKeeper(Protocol):
    """Where events are written: the engine, or a jobd on another machine."""

    async def emit_many(self, tellings: Sequence[EventBatch]) -> Sequence[Answer | Exception]: ...


class EventSink:
    """Writes the events of all buffers."""

    def __init__(self, engine: EventKeeper) -> None:
        self._engine = engine
        self._dirty: set[EventBuffer] = set()
        #: Buffers that `flush` waits for, because their jobs are about to be reported.
        self._awaited: set[EventBuffer] = set()
        self._is_running = False
        self._called = anyio.Event()
        self._hurried = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def buffer(self, job: ClaimedJob, on_lost: Callable[[], None]) -> EventBuffer:
        return EventBuffer(job, on_lost, self._wake)

    async def flush(self, buffer: EventBuffer) -> None:
        """Return when all events of the buffer are written, or can no longer be written."""
        while buffer.has_more:
            if not self._is_running:
                await self._write_alone(buffer)
                continue
            buffer.emptied = anyio.Event()
            self._awaited.add(buffer)
            self._dirty.add(buffer)
            self._called.set()
            self._hurried.set()
            try:
                await buffer.emptied.wait()
            finally:
                self._awaited.discard(buffer)

    async def run(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._is_running = True
        try:
            while True:
                await self._run_once()
        finally:
            self._is_running = False
            for buffer in self._awaited:  # wake `flush`, which now writes them itself
                if buffer.emptied is not None:
                    buffer.emptied.set()

    async def _run_once(self) -> None:
        self._called = anyio.Event()
        if not self._dirty:
            await self._called.wait()
        started_at = time.monotonic()
        self._hurried = anyio.Event()
        if await self._write():
            with anyio.move_on_after(PAUSE_S - (time.monotonic() - started_at)):
                await self._hurried.wait()
        else:
            await anyio.sleep(RETRY_S)

    async def _write_alone(self, buffer: EventBuffer) -> None:
        chunk = buffer.next_chunk()
        if chunk is not None:
            (answer,) = await self._engine.emit_many([chunk])
            if not buffer.settle(answer):
                await anyio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """Write one chunk of each buffer that has events; False: the outcome of some is not known."""
        buffers = [self._dirty.pop() for _ in range(len(self._dirty))]
        sent = [(buffer, chunk) for buffer in buffers if (chunk := buffer.next_chunk()) is not None]
        answers: Sequence[Answer | Exception] = ()
        if sent:
            answers = await self._engine.emit_many([chunk for _, chunk in sent])
        settled = [buffer.settle(answer) for (buffer, _), answer in zip(sent, answers, strict=True)]
        for buffer in buffers:
            if buffer.has_more:
                self._dirty.add(buffer)
            elif buffer.emptied is not None:
                buffer.emptied.set()
        return all(settled)

    def _wake(self, buffer: EventBuffer, hurry: bool) -> None:
        """There is something to write; `hurry`: somebody waits for it, as for the first delta of an answer."""
        if buffer in self._dirty and not hurry:
            return
        self._dirty.add(buffer)
        if threading.get_ident() == self._thread:
            self._call(hurry)
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended: nothing is written any more
                self._loop.call_soon_threadsafe(self._call, hurry)

    def _call(self, hurry: bool) -> None:
        self._called.set()
        if hurry:
            self._hurried.set()
