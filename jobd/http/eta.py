"""When a waiting job will start, in seconds from now, or None while that is not known.

A job in line starts when those before it have: by how long attempts of its queue ran in the last hour (the rollups) and
how many run at once, or, where nothing has ended yet, by the drain rate. A delayed job waits for its time, and then as
long as the first in line waits now. For a queue that is paused or that nobody serves it is not known.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from jobd.lifecycle.rollups import read_run_times
from jobd.lifecycle.waiting import explain_waiting, queue_heads
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import moment, ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.http.drain_rates import DrainRates
    from jobd.lifecycle.rollups import RunTimes
    from jobd.lifecycle.waiting import Wait
    from jobd.store.postgres import Database

#: How far back run times are read.
LATELY = timedelta(hours=1)
#: Seconds for which run times that were read are used again, to spare the database.
FRESH_S = 10.0
#: Shortest run time in seconds that is believed: the commits of a short job take about as long.
SHORTEST_S = 0.001


class QueuePace(NamedTuple):
    """How fast a queue starts jobs."""

    #: Jobs that may run at once on this node, or that run now anywhere, if these are more.
    hands: int = 0
    #: Those of them that are free.
    free: int = 0
    #: How long an attempt runs on average; None: none has ended lately.
    run_s: float | None = None
    #: Jobs that left the queue per second; None: not known.
    drain_per_s: float | None = None
    #: How long the first in line could have run already.
    head_waits_s: float = 0.0


def eta_s(wait: Wait, pace: QueuePace) -> float | None:
    if wait.paused or wait.held == "depends":
        return None
    if not wait.in_line:
        return None if wait.due_s is None else max(0.0, wait.due_s) + pace.head_waits_s
    if wait.position is None:
        return None
    before = wait.position + 1 - pace.free
    if before <= 0:
        return 0.0
    if pace.hands and pace.run_s is not None:
        return before * max(SHORTEST_S, pace.run_s) / pace.hands
    return before / pace.drain_per_s if pace.drain_per_s else None


class Etas:
    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        drain: DrainRates,
        held_up: Callable[[str, str], wire.Waiting | None] = lambda queue, task: None,
    ) -> None:
        """`held_up`: by what of this board a job of a queue and task is kept from starting, if by anything."""
        self.database = database
        self._held_up = held_up
        self._config = config
        self._drain = drain
        self._run_times: dict[str, RunTimes] = {}
        self._read_at = -math.inf

    async def waiting(self, job_ids: Collection[UUID]) -> dict[UUID, wire.Waiting]:
        """Why each of the jobs waits and for how long; one that does not wait is left out."""
        waits = await explain_waiting(self.database, job_ids) if job_ids else {}
        if not waits:
            return {}
        await self._drain.sample()
        await self._read_run_times()
        queues = {wait.queue for wait in waits.values()}
        heads = await queue_heads(self.database, queues) if any(not wait.in_line for wait in waits.values()) else {}
        paces = {queue: self._pace(queue, heads.get(queue, 0.0)) for queue in queues}
        return {job_id: self._object(wait, eta_s(wait, paces[wait.queue])) for job_id, wait in waits.items()}

    def _object(self, wait: Wait, seconds: float | None) -> wire.Waiting:
        """A job that stands in line may be kept by the board: that is then said, and nobody knows for how long."""
        said = _object(wait, seconds)
        if said.reason not in ("in_line", "snoozed"):  # one that a message brought too early is put off
            return said
        held_up = self._held_up(wait.queue, wait.task)
        return said if held_up is None else msgspec.structs.replace(held_up, position=wait.position)

    async def _read_run_times(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= FRESH_S:
            self._read_at = now
            since = moment(self.database.clock.now_ms()) - LATELY
            self._run_times = await read_run_times(self.database, since)

    def _pace(self, queue: str, head_waits_s: float) -> QueuePace:
        configured, times, running = self._config().queues.get(queue), self._run_times.get(queue), 0
        stats = self._drain.stats(queue)
        if stats is not None:
            running = stats.running
        slots = 0 if configured is None else configured.slots
        return QueuePace(
            hands=max(slots, running),
            free=max(0, slots - running),
            run_s=times.run_s / times.attempts if times is not None and times.attempts else None,
            drain_per_s=self._drain.per_s(queue),
            head_waits_s=max(0.0, head_waits_s),
        )


def _object(wait: Wait, seconds: float | None) -> wire.Waiting:
    rounded = None if seconds is None else round(seconds, 1)
    if wait.held == "depends":
        return wire.Waiting(reason="depends", position=None)
    if wait.paused:
        paused = wait.paused
        return wire.Waiting(reason="paused", position=wait.position, eta_s=rounded, paused=paused)  # type: ignore[arg-type]  # of the statement
    if wait.in_line:
        return wire.Waiting(reason="in_line", position=wait.position, eta_s=rounded)
    if wait.held == "limited":
        until = UNSET if wait.until_at is None else ms(wait.until_at)
        return wire.Waiting(reason="limited", position=None, limit_key=wait.limit_key or UNSET, until_ts=until)
    if wait.attempt_count:
        return wire.Waiting(reason="retry_backoff", position=None, eta_s=rounded)
    return wire.Waiting(reason="snoozed" if wait.snoozes else "delayed", position=None, eta_s=rounded)
