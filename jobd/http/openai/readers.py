"""Who reads the answers of which calls here, and what becomes of a job whose last reader has left.

A model that computes an answer for nobody keeps others from its slot. So the job of a call is canceled when nobody has
read it for `openai.reader_grace_s`: long enough for a client whose line was cut to send the call again, which leads to
the same job. A job that is to go on by itself is simply not entered here.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

import anyio

from jobd.errors import JobdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from uuid import UUID

log = logging.getLogger(__name__)

#: Seconds after which a cancel that failed, because Postgres is away, is tried again.
RETRY_S = 1.0
#: Seconds that the last cancels may take when the gateway stops.
LAST_S = 1.0


class CallReader:
    """One who reads the answer of a call."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        #: The job has ended, or is to go on without a reader: leaving means nothing.
        self.may_leave = False
        #: Nobody else can take up what was read: when jobd stops, the job is canceled at once.
        self.has_begun = False


class CallReaders:
    """A task beside the requests (`run`) cancels the jobs that are left."""

    def __init__(self, cancel: Callable[[Sequence[UUID]], Awaitable[object]], grace_s: Callable[[], float]) -> None:
        self._cancel = cancel
        self._grace_s = grace_s
        self._readers: dict[UUID, int] = {}
        #: Jobs whose last reader has left, with the time at which they are canceled, by time.monotonic().
        self._left: dict[UUID, float] = {}
        #: Jobs to be canceled when the gateway stops: what their reader has had is of no use to another.
        self._useless: set[UUID] = set()
        self._news = anyio.Event()

    @contextlib.contextmanager
    def reading(self, job_id: UUID) -> Iterator[CallReader]:
        reader = CallReader(job_id)
        self._readers[job_id] = self._readers.get(job_id, 0) + 1
        self._left.pop(job_id, None)
        try:
            yield reader
        finally:
            self._leave(reader)

    def _leave(self, reader: CallReader) -> None:
        job_id = reader.job_id
        self._readers[job_id] -= 1
        if not self._readers[job_id]:
            del self._readers[job_id]
            if not reader.may_leave:
                self._left[job_id] = time.monotonic() + self._grace_s()
                if reader.has_begun:
                    self._useless.add(job_id)
                self._news.set()

    async def run(self) -> None:
        try:
            while True:
                self._news = anyio.Event()
                wait_s = min(self._left.values(), default=math.inf) - time.monotonic()
                with anyio.move_on_after(max(0.0, wait_s)):
                    await self._news.wait()
                await self._cancel_due()
        finally:
            with anyio.move_on_after(LAST_S, shield=True):
                await self._cancel_now([job_id for job_id in self._left if job_id in self._useless])

    async def _cancel_due(self) -> None:
        now = time.monotonic()
        due = [job_id for job_id, at in self._left.items() if at <= now]
        if due and not await self._cancel_now(due):
            await anyio.sleep(RETRY_S)

    async def _cancel_now(self, job_ids: Sequence[UUID]) -> bool:
        if job_ids:
            try:
                await self._cancel(job_ids)
            except (JobdError, TimeoutError, OSError) as error:
                log.warning("jobs that nobody reads any more were not canceled yet: %s", error)
                return False
            log.info("canceled %d jobs of calls that nobody reads any more", len(job_ids))
        for job_id in job_ids:
            if job_id not in self._readers:  # else somebody came meanwhile, and hears of the cancel
                self._left.pop(job_id, None)
            self._useless.discard(job_id)
        return True
