"""The slots of one queue, and the jobs that wait in this process for one of them.

Jobs are handed over by the batch and begun in their order. One slot runs what it can: a slot that finishes a job goes
on with the next without leaving its turn of the event loop, and another one is woken only when a handler is seen to
wait for something. So a handler that never waits costs no switch between tasks, and handlers that do wait fill all
slots within a few turns.

While many short jobs wait, more of them are taken than there are slots (`_ahead`): as many as are expected to end
within AHEAD_S. Should they not be begun within UNBEGUN_S, because a long one came, they go back to the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.dispatch.job_run import JobRun

#: Seconds that a slot goes on with short jobs before it yields to other tasks of the event loop.
TURN_S = 0.002
#: Seconds of work that is taken ahead: the number of jobs that the slots are expected to finish within it.
AHEAD_S = 0.02
#: Most jobs that are taken ahead: as many as one commit takes.
MOST_AHEAD = 400
#: Seconds after which jobs that were taken ahead and have not begun go back to the queue.
UNBEGUN_S = 0.2
#: Weight of the newest job in the exponential moving average of how long a job takes.
NEWEST = 0.05


class SlotPool:
    def __init__(self, queue: str, slots: int, hand_back: Callable[[Sequence[JobRun]], None]) -> None:
        self.queue = queue
        self.slots = slots
        #: Slots that may be busy: fewer while the board is hot.
        self._allowed = slots
        self._hand_back = hand_back
        #: Says how many more jobs are wanted, and whether reports are about to be written; set when the slots begin.
        self.want: Callable[[int, bool], None] = lambda number, is_reporting: None
        self._waiting: deque[JobRun] = deque()
        #: Slots that wait for a job.
        self._idle: list[anyio.Event] = []
        #: Slots whose job has begun and not ended.
        self.busy = 0
        #: Jobs that have ended and whose report is not written yet.
        self._unreported = 0
        #: Jobs to be taken ahead of free slots.
        self._ahead = 0
        #: Jobs that are wanted now.
        self._asked = 0
        #: Whether the last batch brought as many jobs as were wanted, so that more are likely to wait.
        self._has_plenty = False
        #: Exponential moving average of how long a job takes, in seconds.
        self._run_s = AHEAD_S
        self._turn_ends_at = 0.0
        self._is_waking = False
        self.is_stopping = False

    # -- jobs in -------------------------------------------------------------------------------------------------

    def hand_over(self, runs: Sequence[JobRun], asked: int | None = None) -> None:
        """`asked`: how many jobs the call that brought them had asked for, if it took long."""
        if runs and not self._waiting:
            asyncio.get_running_loop().call_later(UNBEGUN_S, self._return_unbegun, runs[0])
        self._waiting.extend(runs)
        self._has_plenty = len(runs) >= (self._asked if asked is None else asked)
        if self._waiting and self._may_begin():
            self._wake(1)
        self.ask()

    def ask(self, *, at_report: bool = False) -> None:
        """Want as many jobs as can begin now, and some ahead of them while jobs are short.

        `at_report`: what is wanted of the commit that reports those that have ended.
        """
        ahead = self._ahead if self._allowed == self.slots else 0
        self._asked = 0 if self.is_stopping else max(0, self._room(at_report) + ahead - len(self._waiting))
        self.want(self._asked, self._unreported > 0)

    def _room(self, at_report: bool) -> int:
        if self.slots == 1:
            return self._allowed - self.busy - (0 if at_report else self._unreported)
        return min(self._allowed - self.busy, 2 * self.slots - self.busy - self._unreported)

    def _may_begin(self) -> bool:
        """One slot begins its next job when the report of the last is written; with more, one report each may wait."""
        if self.busy >= self._allowed:
            return False
        return self._unreported == 0 if self.slots == 1 else self._unreported < 2 * self.slots + self._ahead

    def allow(self, number: int) -> None:
        """Let this number of slots be busy from now on; jobs that run go on."""
        self._allowed = number
        if self._waiting and self._may_begin():
            self._wake(1)
        self.ask()

    def _return_unbegun(self, first: JobRun) -> None:
        """Jobs that no slot could begin for a while: others may have a free slot for them."""
        if self._waiting and self._waiting[0] is first:
            runs, self._ahead = list(self._waiting), 0
            self._waiting.clear()
            self._hand_back(runs)
        elif self._waiting:
            asyncio.get_running_loop().call_later(UNBEGUN_S, self._return_unbegun, self._waiting[0])

    def stop(self) -> list[JobRun]:
        """Take nothing more; returns the jobs that have not begun."""
        self.is_stopping = True
        runs = list(self._waiting)
        self._waiting.clear()
        self.ask()
        self._wake(len(self._idle))
        return runs

    # -- slots ---------------------------------------------------------------------------------------------------

    def next(self) -> JobRun | None:
        """The next job to begin, if one can begin now; `ended` is called for it later."""
        if not self._waiting or not self._may_begin():
            return None
        self.busy += 1
        if len(self._waiting) > 1 and not self._is_waking and self._idle:
            # Runs when the event loop turns: while this job waits for something, or has ended with its turn.
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_others)
        return self._waiting.popleft()

    def ended(self, took_s: float, *, is_reported: bool = False) -> None:
        """The slot of a job is free; its report is not written yet, unless `is_reported`."""
        self.busy -= 1
        self._unreported += not is_reported
        self._run_s += (took_s - self._run_s) * NEWEST

    def reported(self, number: int) -> None:
        """Reports were written. As long as jobs are short and plenty of them wait, take more of them ahead."""
        self._unreported -= number
        if self._has_plenty and self._run_s < AHEAD_S and self.slots > 1:
            most = min(MOST_AHEAD, int(self.slots * AHEAD_S / self._run_s))
            self._ahead = min(most, 2 * self._ahead + self.slots)
        else:
            self._ahead = 0
        if self._waiting and self._idle and self._may_begin():
            self._wake(1)
        self.ask()

    def has_turn(self, now: float) -> bool:
        """Whether a slot may go on without letting others have the event loop."""
        if now < self._turn_ends_at:
            return True
        self._turn_ends_at = now + TURN_S
        return False

    async def wait_for_job(self) -> None:
        event = anyio.Event()
        self._idle.append(event)
        try:
            await event.wait()
        finally:
            if event in self._idle:
                self._idle.remove(event)

    def _wake(self, number: int) -> None:
        for _ in range(min(number, len(self._idle))):
            self._idle.pop().set()

    def _wake_others(self) -> None:
        """Wake as many slots as are busy, since their handlers wait for something: the number doubles at each turn."""
        self._is_waking = False
        if self._may_begin():
            self._wake(min(len(self._waiting), self.busy))
