"""What `jobd top` knows: the last snapshots of a jobd, how fast its counters move, and whether it is away."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd import AsyncClient
    from jobd.client import ClientError, DeadLetters, QueueObject, Stats, Totals, Workers
    from jobd.wire.board import BoardObject

#: Most running jobs and dead letters that are asked for: more than fit on a screen.
MOST = 50
#: Rates are averages over this many seconds, so that single jobs do not make them jump.
WINDOW_S = 10.0
#: How long the frame says that jobd came back, in seconds.
BACK_S = 10.0


class Snapshot(NamedTuple):
    #: By `time.monotonic()`
    at: float
    stats: Stats
    workers: Workers
    letters: DeadLetters
    #: None: a jobd that has no such call.
    board: BoardObject | None = None


class Rates(NamedTuple):
    """Per second."""

    came: float
    ended: float
    failed: float


async def take_snapshot(client: AsyncClient) -> Snapshot:
    stats = await client.stats()
    workers = await client.workers(limit=MOST, held=MOST)
    letters = await client.dead_letters(limit=MOST)
    return Snapshot(time.monotonic(), stats, workers, letters, await _board(client))


async def _board(client: AsyncClient) -> BoardObject | None:
    from jobd.client import NotFound

    try:
        return await client.board()
    except NotFound:
        return None


class SnapshotHistory:
    """The snapshots of the last WINDOW_S, and whether jobd is away; frames are drawn from it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.last: Snapshot | None = None
        #: Why the last try failed; None: it did not.
        self.trouble: ClientError | None = None
        self._away_since: float | None = None
        self._was_away_s = 0.0
        self._back_at: float | None = None
        self._snapshots: deque[Snapshot] = deque()

    def add(self, new: Snapshot) -> None:
        if self._away_since is not None:
            self._was_away_s, self._back_at = new.at - self._away_since, new.at
            self._snapshots.clear()  # a rate over the outage would be wrong
        self._away_since, self.trouble, self.last = None, None, new
        self._snapshots.append(new)
        while new.at - self._snapshots[0].at > WINDOW_S and len(self._snapshots) > 2:
            self._snapshots.popleft()

    def fail(self, error: ClientError) -> None:
        self.trouble = error
        if self._away_since is None:
            self._away_since = time.monotonic()

    @property
    def away_s(self) -> float | None:
        """For how long jobd has been away; None: it is there."""
        return None if self._away_since is None else time.monotonic() - self._away_since

    @property
    def was_away_s(self) -> float | None:
        """For how long it was away; None once it has been back for BACK_S."""
        is_news = self._back_at is not None and time.monotonic() - self._back_at < BACK_S
        return self._was_away_s if is_news else None

    def rates(self) -> Rates | None:
        """Of all jobs; None: not known yet."""
        return self._rates([snapshot.stats.totals for snapshot in self._snapshots])

    def queue_rates(self, name: str) -> Rates | None:
        snapshots = [{queue.name: queue for queue in snapshot.stats.queues}.get(name) for snapshot in self._snapshots]
        return self._rates(snapshots)

    def _rates(self, counters: Sequence[Totals | QueueObject | None]) -> Rates | None:
        if len(counters) < 2 or counters[0] is None or counters[-1] is None:
            return None
        first, last = counters[0], counters[-1]
        passed_s = self._snapshots[-1].at - self._snapshots[0].at
        ended = _ended(last) - _ended(first)
        came = ended + last.queued + last.running - first.queued - first.running
        # Retention takes from the counters, too; a rate below nothing would only puzzle.
        return Rates(*(max(0.0, number / passed_s) for number in (came, ended, last.error - first.error)))


def _ended(counters: Totals | QueueObject) -> int:
    return counters.done + counters.error + counters.canceled
