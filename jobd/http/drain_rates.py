"""How fast each queue drains, from its counters, and so when to come again to one that is full.

A job that leaves the line is running or finished afterwards, so the growth of those counters is the drain. Nothing runs
in the background: whoever asks, or has just submitted, takes the next sample if the last one is old enough. Retention
takes finished jobs out of the counters; a stretch in which they shrank says nothing and is left out.
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

#: How old the last sample may be for one who wants to know, and for one who passes by.
FRESH_S = 1.0
PASSING_S = 5.0
#: How far back the rate looks.
WINDOW_S = 60.0
#: What a full queue waits for: room for this part of it, so that not everybody comes back for a single place.
ROOM = 0.01
UNKNOWN_S = 5
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

    async def look(self, old_s: float = FRESH_S) -> None:
        """Take a sample if the last is older than this; without Postgres there is none."""
        now = self._clock()
        if now - self._last < old_s:
            return
        self._last = now
        try:
            self.add(await queue_stats(self._database))
        except ServerDown as error:
            log.debug("no sample of the queues: %s", error)

    def is_old(self, old_s: float = PASSING_S) -> bool:
        return self._clock() - self._last >= old_s

    def add(self, stats: list[QueueStats]) -> None:
        now = self._clock()
        self._samples.append(_Sample(now, {one.queue: one for one in stats}))
        while self._samples[0].at < now - WINDOW_S:
            self._samples.popleft()

    def per_s(self, queue: str) -> float | None:
        """Jobs that left the line each second; None: not known yet."""
        left, seconds = 0, 0.0
        for old, new in pairwise(self._samples):
            drained = _drained(old.queues.get(queue), new.queues.get(queue))
            if drained is not None:
                left += drained
                seconds += new.at - old.at
        return left / seconds if seconds >= FRESH_S else None

    def retry_after_s(self, queue: str, max_queued: int) -> int:
        """When a part of the queue will be free if it drains as it did."""
        rate = self.per_s(queue)
        if rate is None:
            return UNKNOWN_S
        stats = self._samples[-1].queues.get(queue)
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
