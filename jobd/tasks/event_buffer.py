"""What running jobs tell, from any thread, and the one task that writes it down for all of them.

Telling never waits. What cannot be written soon enough is bounded: of a job with `MOST_WAITING` events in hand the
oldest log lines and tokens are dropped, and one `dropped` event says how many there were. A chunk on its way is kept as
it is until its fate is known, and carries how many went before it, so one that is sent twice is kept once.
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
from jobd.job.model import LeaseLost
from jobd.lifecycle.events import CHUNK_BYTES, CHUNK_EVENTS, DROPPED_FIRST, OutOfStep, Telling
from jobd.tasks.event_check import told_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobd.job.history import Told
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.events import Answer

log = logging.getLogger(__name__)

MOST_WAITING = 1000
#: The pause between two writes; the first after a quiet time goes out at once.
PAUSE_S = 0.05
#: The pause after a write that failed.
RETRY_S = 0.5


class Teller:
    """What one attempt of a job has to tell."""

    def __init__(self, job: ClaimedJob, on_lost: Callable[[], None], wake: Callable[[Teller], None]) -> None:
        self._job = job
        self._on_lost = on_lost
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[Told] = deque()
        self._dropped = 0
        #: The chunk that is on its way.
        self._sent: list[Told] = []
        self._told_n = 0
        self._closed = False
        #: Set when there is nothing more to send; only there while somebody waits for it.
        self.emptied: anyio.Event | None = None

    @property
    def has_more(self) -> bool:
        return bool(self._waiting or self._sent)

    def emit(self, kind: str, step: str, data: Mapping[str, Any]) -> None:
        """Tell this. Does nothing once the attempt has ended, whoever still runs."""
        if self._closed:
            return
        told = told_event(kind, step, data)
        with self._lock:
            self._waiting.append(told)
            if len(self._waiting) > MOST_WAITING:
                self._drop_oldest()
        self._wake(self)

    def close(self) -> None:
        """What is not yet told never will be."""
        self._closed = True
        with self._lock:
            self._waiting.clear()
            self._sent = []

    def next_telling(self) -> Telling | None:
        """The chunk to send now: the last one again, as long as its fate is not known."""
        with self._lock:
            if not self._sent:
                self._sent = self._next_chunk()
        if not self._sent:
            return None
        return Telling(
            job_id=self._job.job_id, lease_token=self._job.lease_token, events=self._sent, told_n=self._told_n
        )

    def settle(self, answer: Answer | Exception) -> bool:
        """Take note of what came of the chunk; whether it is settled, and not to be sent again."""
        if isinstance(answer, JobdError):
            return False
        if isinstance(answer, LeaseLost):
            self.close()
            self._on_lost()
        elif isinstance(answer, OutOfStep):  # somebody else tells with this lease; go on from where it stands
            self._sent = self._sent[max(0, answer.told_n - self._told_n) :]
            self._told_n = answer.told_n
        elif isinstance(answer, Exception):
            log.warning("events of job %s were dropped: %s", self._job.job_id, type(answer).__name__)
            self._dropped += len(self._sent)
            self._sent = []
        else:
            self._told_n += len(self._sent)
            self._sent = []
        return True

    def _next_chunk(self) -> list[Told]:
        chunk: list[Told] = []
        if self._dropped:
            chunk.append(told_event("dropped", "", {"count": self._dropped}))
            self._dropped = 0
        size = 0
        while self._waiting and len(chunk) < CHUNK_EVENTS and size < CHUNK_BYTES:
            chunk.append(self._waiting.popleft())
            size += len(bytes(chunk[-1].data))
        return chunk

    def _drop_oldest(self) -> None:
        n = next((n for n, told in enumerate(self._waiting) if told.type in DROPPED_FIRST), 0)
        del self._waiting[n]
        self._dropped += 1


class EventKeeper(Protocol):
    """Where events are written down: the engine, or a jobd elsewhere."""

    async def tell_many(self, tellings: Sequence[Telling]) -> Sequence[Answer | Exception]: ...


class EventSink:
    """Writes down what all tellers have to tell."""

    def __init__(self, engine: EventKeeper) -> None:
        self._engine = engine
        self._dirty: set[Teller] = set()
        #: Those of them whose jobs are about to be reported.
        self._awaited: set[Teller] = set()
        self._is_running = False
        self._called = anyio.Event()
        self._hurried = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def teller(self, job: ClaimedJob, on_lost: Callable[[], None]) -> Teller:
        return Teller(job, on_lost, self._wake)

    async def flush(self, teller: Teller) -> None:
        """Return when all that was told is written, or can no longer be."""
        while teller.has_more:
            if not self._is_running:
                await self._write_alone(teller)
                continue
            teller.emptied = anyio.Event()
            self._awaited.add(teller)
            self._dirty.add(teller)
            self._called.set()
            self._hurried.set()
            try:
                await teller.emptied.wait()
            finally:
                self._awaited.discard(teller)

    async def run(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._is_running = True
        try:
            while True:
                await self._run_once()
        finally:
            self._is_running = False
            for teller in self._awaited:  # they see to it themselves now
                if teller.emptied is not None:
                    teller.emptied.set()

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

    async def _write_alone(self, teller: Teller) -> None:
        telling = teller.next_telling()
        if telling is not None:
            (answer,) = await self._engine.tell_many([telling])
            if not teller.settle(answer):
                await anyio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """One chunk of everyone who has something to tell; whether it is known what came of all of them."""
        tellers = [self._dirty.pop() for _ in range(len(self._dirty))]
        sent = [(teller, telling) for teller in tellers if (telling := teller.next_telling()) is not None]
        answers: Sequence[Answer | Exception] = ()
        if sent:
            answers = await self._engine.tell_many([telling for _, telling in sent])
        settled = [teller.settle(answer) for (teller, _), answer in zip(sent, answers, strict=True)]
        for teller in tellers:
            if teller.has_more:
                self._dirty.add(teller)
            elif teller.emptied is not None:
                teller.emptied.set()
        return all(settled)

    def _wake(self, teller: Teller) -> None:
        if teller in self._dirty:
            return
        self._dirty.add(teller)
        if threading.get_ident() == self._thread:
            self._called.set()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all tellers with it
                self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        self._called.set()
