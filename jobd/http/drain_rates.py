"""The drain rate of each queue, from its counters, and the Retry-After of a full queue.

A job that leaves the queue is running or finished afterwards, so the growth of those counters is the drain. Nothing
runs in the background: a request that needs the rate, or a submit, takes the next sample if the last one is old enough.
Retention takes finished jobs out of the counters; an interval in which they shrank is left out.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from jobd.errors import ServerDown
from jobd.lifecycle.read import queue_stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.lifecycle.read import QueueStats
    from jobd.store.postgres import Database

log = logging.getLogger(__name__)

#: Age in seconds from which a request that needs the rate takes a new sample.
FRESH_S = 1.0
#: Age in seconds from which any submit takes one, so that a rate is known when the queue is full.
PASSING_S = 5.0
#: Seconds over which the rate is averaged.
WINDOW_S = 60.0
#: Share of a full queue that must be free before clients return, so that not all of them return for one place.
ROOM = 0.01
#: Retry-After in seconds while the rate is not known.
UNKNOWN_S = 5
#: Longest Retry-After in seconds.
LONGEST_S = 300


class _Sample(NamedTuple):
    at: float
    queues: dict[str, QueueStats]


class DrainRates:
    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._samples: deque[_Sample] = deque()
        self._last = -math.inf

    async def sample(self, old_s: float = FRESH_S) -> None:
        """Take a sample if the last is older than `old_s`; none is taken while Postgres is away."""
        now = self._clock()
        if now - self._last < old_s:
            return
        self._last = now
        try:
            self.add(await queue_stats(self._database))
        except ServerDown as error:
            log.debug("no sample of the queues: %s", error)

    def add_if_old(self, stats: list[QueueStats]) -> None:
        """Take what was just read for another purpose as a sample, if the last is older than `FRESH_S`."""
        if self._clock() - self._last >= FRESH_S:
            self._last = self._clock()
            self.add(stats)

    def is_old(self) -> bool:
        return self._clock() - self._last >= PASSING_S

    def add(self, stats: list[QueueStats]) -> None:
        now = self._clock()
        self._samples.append(_Sample(now, {queue.queue: queue for queue in stats}))
        while self._samples[0].at < now - WINDOW_S:
            self._samples.popleft()

    def stats(self, queue: str) -> QueueStats | None:
        """As the newest sample has it; None: there is no sample, or no such queue."""
        return self._samples[-1].queues.get(queue) if self._samples else None

    def per_s(self, queue: str) -> float | None:
        """Jobs that left the queue per second; None: not known yet."""
        left, seconds = 0, 0.0
        for old, new in pairwise(self._samples):
            drained = _drained(old.queues.get(queue), new.queues.get(queue))
            if drained is not None:
                left += drained
                seconds += new.at - old.at
        return left / seconds if seconds >= FRESH_S else None

    def retry_after_s(self, queue: str, max_queued: int) -> int:
        """Seconds until `ROOM` of the queue is free at the present rate."""
        rate = self.per_s(queue)
        if rate is None:
            return UNKNOWN_S
        stats = self.stats(queue)
        surplus = max(0, stats.queued - max_queued) if stats else 0
        wanted = surplus + max(1.0, max_queued * ROOM)
        return LONGEST_S if wanted > rate * LONGEST_S else max(1, math.ceil(wanted / rate))


def _drained(old: QueueStats | None, new: QueueStats | None) -> int | None:
    if new is None:
        return None
    before = (0, 0) if old is None else (old.running, _finished(old))
    after = (new.running, _finished(new))
    return None if after[1] < before[1] else max(0, sum(after) - sum(before))


def _finished(stats: QueueStats) -> int:
    return stats.done + stats.error + stats.canceled
