"""The schedule service: on every node, it fires what is due and starts what waited.

It sleeps until the next schedule is due and polls once a minute besides, for what other nodes have changed. While
occurrences wait for the end of jobs it polls every second, and at once when such a job ends on this node. Time is that
of Postgres, carried on by the boot clock: so a sleep of the machine and a step of the clock are noticed within seconds.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import anyio

from jobd.job.history import LAST_EVENTS
from jobd.lifecycle.enqueue import Created
from jobd.schedules.fire import PAGE, SANE, fire_due, look, plan_again_after_step_back, settle_open, start_buffered
from jobd.schedules.reconcile import reconcile
from jobd.supervise.wakeup import Wakeup
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from jobd.config.model import Config, ScheduleConfig
    from jobd.engine.engine import Engine
    from jobd.lifecycle.notices import Changes
    from jobd.schedules.fire import Fired, Look
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds between two polls while nothing is due.
LOOK_S = 60.0
#: Seconds between two polls while occurrences wait for the end of jobs, or for room in their queue.
BUFFERED_S = 1.0
#: Seconds between two checks of how jobs ended.
OPEN_S = 60.0
#: What becomes of an occurrence, for /metrics.
OUTCOMES = ("started", "skipped", "missed", "delayed")
#: Longest sleep in seconds: after it the clock is compared with the time of the next schedule.
SLICE_S = 2.0
#: Shortest sleep in seconds: what is due and locked is under way on another node.
SHORTEST_S = 0.1


class ScheduleService:
    def __init__(self, database: Database, engine: Engine, config: Callable[[], Config]) -> None:
        self._database = database
        self._engine = engine
        self._config = config
        #: Set when a schedule was changed on this node, or a job ended for which an occurrence waits.
        self.wakeup = Wakeup()
        #: Jobs for whose end an occurrence waits.
        self._awaited: Collection[UUID] = ()
        #: What was taken over into the table.
        self._reconciled: Mapping[str, ScheduleConfig] | None = None
        self._era_no: int | None = None
        self._settled_at = 0.0
        #: Occurrences that this process has decided about, by what became of them.
        self.occurrences = Counter[str](dict.fromkeys(OUTCOMES, 0))

    def jobs_changed(self, changes: Changes) -> None:
        """To be called after a commit of this node that changed jobs; costs next to nothing while nothing waits."""
        if self._awaited and any(notice.type in LAST_EVENTS for notice in changes.of(self._awaited)):
            self.wakeup.set()

    async def run(self, handle: Handle) -> None:
        self._reconciled, self._era_no, self._settled_at = None, None, 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.wakeup.set_when, handle.stop)
            await self._take_over_configuration()
            handle.ready()
            while not handle.stop.is_set():
                seen = await self.run_once()
                _tell_clock(handle, seen)
                handle.beat()
                await self._sleep(handle, seen)
            tasks.cancel_scope.cancel()

    async def run_once(self) -> Look:
        """Do all that there is to do now, and say what comes next."""
        await self._take_over_configuration()
        await self._notice_step()
        seen = await look(self._database)
        if seen.next_at is not None and seen.next_at <= seen.now:
            await self._fire(seen)
        if seen.has_buffered:
            await self._all_pages(lambda after: start_buffered(self._database, self._config(), after=after))
        else:
            self._awaited = ()
        if seen.has_open and anyio.current_time() - self._settled_at >= OPEN_S:
            await self._all_pages(lambda after: settle_open(self._database, self._config(), after=after))
            self._settled_at = anyio.current_time()
        return await look(self._database) if self._has_acted(seen) else seen

    def _has_acted(self, seen: Look) -> bool:
        return seen.has_buffered or seen.has_open or (seen.next_at is not None and seen.next_at <= seen.now)

    async def _fire(self, seen: Look) -> None:
        if seen.now < SANE:
            return
        while True:
            fired = await fire_due(self._database, self._config())
            await self._follow_up(fired)
            if fired.number < PAGE:
                return

    async def _all_pages(self, work: Callable[[str], Awaitable[Fired]]) -> None:
        after, awaited = "", set[UUID]()
        while True:
            fired = await work(after)
            await self._follow_up(fired)
            awaited.update(fired.awaited)
            after = fired.last
            if fired.number < PAGE:
                self._awaited = awaited
                return

    async def _follow_up(self, fired: Fired) -> None:
        """After the commit: wake the slots for new jobs, and cancel jobs that are in the way of others."""
        if fired.jobs:
            self._engine.enqueued(fired.jobs, fired.answers)
            made = sum(isinstance(answer, Created) for answer in fired.answers)
            self.occurrences["started"] += made
            log.debug("%d occurrences of %d schedules became jobs", made, fired.number)
        for event in fired.events:
            if event.kind in OUTCOMES:
                self.occurrences[event.kind] += event.number
            log.warning("schedule %s: %s %d, %s", event.schedule, event.kind, event.number, event.detail)
        self._awaited = {*self._awaited, *fired.awaited}
        if fired.cancels:
            await self._engine.cancel(fired.cancels)

    async def _take_over_configuration(self) -> None:
        schedules = self._config().schedules
        if schedules is not self._reconciled:
            await reconcile(self._database, schedules)
            self._reconciled = schedules

    async def _notice_step(self) -> None:
        """At the start and after each step of the clock: what was decided about in the future is planned again."""
        era_no = self._database.clock.era_no
        if era_no is None:
            era_no = (await self._database.clock.check()).no
        if era_no != self._era_no:
            number = await plan_again_after_step_back(self._database)
            if number:
                log.warning("the clock was set back: %d schedules are planned again", number)
            self._era_no = era_no

    async def _sleep(self, handle: Handle, seen: Look) -> None:
        """Until something is due, at most a minute; in slices, each of which compares the clock."""
        longest_s = BUFFERED_S if seen.has_buffered else LOOK_S
        until = anyio.current_time() + longest_s
        is_first = True
        while not handle.stop.is_set():
            left_s = until - anyio.current_time()
            if seen.next_at is not None and seen.now >= SANE:
                due_s = (ms(seen.next_at) - self._database.clock.now_ms()) / 1000
                left_s = min(left_s, max(due_s, SHORTEST_S if is_first else 0.0))
            if left_s <= 0 or self._has_news():
                return
            is_first = False
            if await self.wakeup.wait(min(left_s, SLICE_S)):
                return
            handle.beat()

    def _has_news(self) -> bool:
        return self._config().schedules is not self._reconciled or self._database.clock.era_no != self._era_no


def _tell_clock(handle: Handle, seen: Look) -> None:
    if seen.now < SANE:
        handle.tell(f"the clock shows {seen.now:%Y-%m-%d}, which cannot be right: no schedule fires")
    else:
        handle.tell("")
