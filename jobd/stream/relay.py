"""The relay, outward: publishes to Redis what Postgres has committed, and keeps each stream topped up with jobs.

It comes after the answers. A caller that waits for a commit is answered by the node that made it, while the relay waits
for some milliseconds (a debounce): what a short job goes through meanwhile is one write. The longer the last round
took, the longer it rests, and so it lags under load, by `relay.max_lag_s` at most. Only jobs that go through a stream
are published at once.

One relay works at a time (a lease in Postgres; the others stand by), which only saves work: the script changes
nothing when it gets something twice. Outbox rows are deleted once published, and they are published in their order:
there is no cursor that could run past a row which is committed late.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from redis.exceptions import ResponseError

from jobd.engine.limits import queue_limits
from jobd.errors import JobdError
from jobd.lifecycle.admit import admit
from jobd.lifecycle.outbox import turn_page
from jobd.lifecycle.publish import look_ahead, promote_due_in, queues_with_work
from jobd.store.leader import LeaderLease, leading
from jobd.stream import connection as redis_connection
from jobd.stream import wake
from jobd.stream.beside import beside, meanwhile
from jobd.stream.keys import queue_of, stream_of
from jobd.stream.memory import is_full
from jobd.stream.mirror import Mirror
from jobd.stream.modes import Modes
from jobd.stream.page import NO_WORK, PageWork, make_work
from jobd.stream.project import EpochChanged, OfferMode, make_group
from jobd.stream.window import Window
from jobd.stream.work import say_work, work_note

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from anyio.abc import TaskGroup

    from jobd.config.model import Config
    from jobd.lifecycle.outbox import OutboxPage
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.stream.changes import OfferArray
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle
    from jobd.supervise.wakeup import Wakeup

log = logging.getLogger(__name__)

#: The longest sleep without a wakeup: a wakeup from another node may be lost, a job may not.
TICK_S = 1.0
#: Seconds between two checks that the streams still hold the messages that were put there.
SWEEP_S = 5.0
#: Changes in a page of the outbox from which on no further commit is added to it; so large that all changes of a short
#: job are usually in one page, and become one write.
PAGE_CHANGES = 4000
#: Seconds between a commit and the round that publishes it, for its callers to be answered and a short job to be done.
SHORT_PAUSE_S = 0.004
#: Rest after a round, as a multiple of the time that the round took: a duty cycle of about a tenth.
REST = 10.0
#: Longest rest in seconds while jobs go through streams, whose workers wait for the next offer.
STREAM_REST_S = 0.02
#: Seconds since the last offer for which jobs count as going through streams.
STREAM_S = 600.0
#: Seconds since the last offer for which the relay does not rest at all while a stream has room.
OFFERED_S = 1.0
#: Seconds between two checks of the modes by a node that stands by.
MODES_S = 1.0


class Relay:
    def __init__(
        self,
        database: Database,
        transport: Transport,
        wakeup: Wakeup,
        config: Callable[[], Config],
        names: OwnerNames | None = None,
        *,
        on_modes: Callable[[frozenset[str]], None] = lambda direct: None,
        on_work: Callable[[Collection[str]], None] = lambda queues: None,
    ) -> None:
        """`on_modes` hears which queues are in mode `direct`, and `on_work` which of them have jobs to be taken."""
        self._database = database
        self._lease = LeaderLease(database, "relay", names)
        self._name = names.owner_id if names is not None else ""
        self._transport = transport
        self._wakeup = wakeup
        self._config = config
        self._on_work = on_work
        self.modes = Modes(database, transport, config, on_modes)
        self.window = Window(config, self.modes)
        self.mirror = Mirror(transport)
        self._next_sweep = 0.0
        #: Queues whose stream held fewer messages than were put into it, at the last sweep.
        self._lacking: list[str] = []
        #: When the next delayed job may be due; not later than a tick from now.
        self._due_at = 0.0
        #: A queue was paused or resumed while a batch was on its way to Redis, which is not obeyed yet.
        self._has_new_pauses = False
        #: When something was last offered, when the last round ended, and how long it took.
        self._offered_at = 0.0
        self._ended_at = 0.0
        self._took_s = 0.0
        #: Since when something waits to be published; None: nothing does.
        self._waiting_since: float | None = None
        self._leads = False

    def lag_s(self) -> float | None:
        """For how many seconds the oldest change waits that is not in Redis yet; None if another node relays."""
        if not self._leads:
            return None
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        handle.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wakeup.set_when, handle.stop)
            with redis_connection.translated(self._transport.url, strict=False):
                while not handle.stop.is_set():
                    async with self._leading(handle, tasks) as leads:
                        if leads:
                            await self._lead(handle, self._database)
            tasks.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def _leading(self, handle: Handle, tasks: TaskGroup) -> AsyncIterator[bool]:
        """Wakeups are passed on while another node relays, and received while this one does."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(beside(tasks, wake.pass_on, self._wakeup, self._transport))
            stack.enter_context(beside(tasks, self._follow_modes))
            async with leading(self._lease, handle, tasks) as leads:
                stack.close()
                stack.enter_context(beside(tasks, wake.hear, self._wakeup, self._transport))
                yield leads

    async def _follow_modes(self) -> None:
        """While another node relays, and decides on the modes."""
        while True:
            with contextlib.suppress(JobdError):
                await self.modes.load(self._database)
            await anyio.sleep(MODES_S)

    async def _lead(self, handle: Handle, session: Session) -> None:
        try:
            await self._tell_and_offer(handle, session)
        except ResponseError as error:
            if is_full(error):  # wherever it was met; there is room when the relay is started again
                await self.mirror.make_room()
            raise
        finally:
            self._leads = False

    async def _tell_and_offer(self, handle: Handle, session: Session) -> None:
        await self._begin(session)
        is_woken = True
        while not handle.stop.is_set():
            await self._lease.check()
            await self._sweep(session)
            await self._change_modes(session)
            busy = await self.run_once(session)
            handle.beat()
            if not busy and is_woken and await self._look_ahead(session):  # woken for something else: a pause, perhaps
                await self.run_once(session)
            is_woken = await self._rest(handle, session)
        while await self.run_once(session):  # what the others have committed while they stopped
            pass

    async def _begin(self, session: Session) -> None:
        """Go on if this is the Redis that Postgres knows, else publish everything again."""
        self._leads, self._waiting_since = True, None
        await self._forget(session)
        try:
            if await self.mirror.meet(session):
                await self.modes.begin(self.mirror.epoch)
                return
        except EpochChanged:
            log.debug("another node has raised the epoch")
        await self._start_anew(session)

    async def _rest(self, handle: Handle, session: Session) -> bool:
        """Until the wakeup is set (True), or the one check of a tick shows that there is something to do."""
        while not handle.stop.is_set():
            if await self._wakeup.wait(self._due_at - time.monotonic()):
                self._waiting_since = time.monotonic()
                await self._let_others_go_first(handle)
                return True
            handle.beat()
            await self._lease.check()
            await self._sweep(session)
            if await self._change_modes(session) or await self._look_ahead(session):
                return False
        return False

    async def _let_others_go_first(self, handle: Handle) -> None:
        """Debounce: callers who wait for the commit are answered first, and further commits join the same page."""
        now = time.monotonic()
        shortest_s, longest_s = SHORT_PAUSE_S, self._config().relay.max_lag_s / 2  # the round takes its time too
        if now - self._offered_at < STREAM_S:
            is_urgent = now - self._offered_at < OFFERED_S and self.window.room()
            shortest_s, longest_s = 0.0, 0.0 if is_urgent else STREAM_REST_S
        pause_s = min(longest_s, max(shortest_s, REST * self._took_s - (now - self._ended_at)))
        if pause_s > 0.0:
            with anyio.move_on_after(pause_s):
                await handle.stop.wait()
        else:
            await anyio.lowlevel.checkpoint()

    async def _forget(self, session: Session) -> None:
        self.window.forget_all({*self._config().queues, *await queues_with_work(session)})

    # -- publishing ----------------------------------------------------------------------------------------------

    async def run_once(self, session: Session) -> bool:
        """Publish the outbox and top up the streams; whether there was anything to do.

        While a large page is on its way to Redis, the one before it is deleted and the next is made ready.
        """
        started_at = time.monotonic()
        published: list[int] = []
        work = await self._gather(session)
        was_busy = work.size > 0
        try:
            while work.size:
                following = NO_WORK
                async with meanwhile(self._send(work)):
                    if work.is_large and not self.modes.is_due and not self._has_new_pauses:
                        following, published = await self._gather(session, published, work.seqs), []
                published, work = [*published, *work.seqs], following
        except EpochChanged:
            await self._start_anew(session)
            return True
        if published:
            await turn_page(session, published=published, most_changes=0)
        self._waiting_since = None
        self._ended_at = time.monotonic()
        self._took_s = self._ended_at - started_at
        return was_busy

    async def _gather(self, session: Session, published: Sequence[int] = (), skip: Sequence[int] = ()) -> PageWork:
        """A page of changes, without those that are being published, and what the streams have room for after them."""
        self._wakeup.clear()  # it is set after a commit, so the page below has that commit
        without_mirror = self._without_mirror()
        page = await turn_page(
            session, published=published, skip=skip, most_changes=PAGE_CHANGES, without_mirror=without_mirror
        )
        await self._note(page)
        if self._has_new_pauses or time.monotonic() >= self._due_at:
            await self._look_ahead(session, is_calm=not skip)
        offers = [*self.window.offers_at_once(page.jobs), *await self.window.offers(session)]
        if offers:
            self._offered_at = time.monotonic()
        return await self._make_work(page, offers)

    async def _note(self, page: OutboxPage) -> None:
        now = time.monotonic()
        if page.jobs and now - page.age_s < (self._waiting_since or now):
            self._waiting_since = now - page.age_s
        await self._meet_queues({job.queue for job in page.jobs if not job.is_gone})
        self.window.note(page.jobs)
        for job in page.jobs:
            if job.due_in_s is not None:
                self._due_at = min(self._due_at, now + job.due_in_s)

    async def _make_work(self, page: OutboxPage, offers: Sequence[OfferArray]) -> PageWork:
        work = await make_work(page, offers, self.window, self._without_mirror(), self.mirror.memory.most_s)
        direct = {job.queue for job in page.jobs if job.order_at is not None and self.modes.is_direct(job.queue)}
        if direct:
            self._on_work(direct)
        modes = [
            OfferMode(queue, stream_of(queue), self.modes.of(queue).mode_no)
            for queue in {*(job.queue for job in page.jobs), *(queue_of(offer.stream) or "" for offer in offers)}
            if not self.modes.is_direct(queue)
        ]
        return work.ready(modes, work_note(self._name, direct))

    def _without_mirror(self) -> list[str]:
        return [name for name, queue in self._config().queues.items() if not queue.mirror]

    async def _send(self, work: PageWork) -> None:
        refused = await self.mirror.send(self._database, work.calls, work.batch)
        if refused:
            log.info("the mode of %s was changed by another node", ", ".join(refused))
            for queue in refused:
                self.window.forget(queue)
            await self.modes.begin(self.mirror.epoch)

    async def _start_anew(self, session: Session) -> None:
        """A Redis that Postgres does not know: raise the epoch, make the streams, publish every live job."""
        while True:
            try:
                await self._fill(session)
                return
            except EpochChanged:
                log.info("Redis has changed while it was filled; beginning again")
                await self._lease.check()

    async def _fill(self, session: Session) -> None:
        await self.mirror.raise_epoch(session)
        await self._forget(session)
        await self.modes.load(session)
        queues, without_mirror = list(self.window.offered), self._without_mirror()
        await self.mirror.prepare(queues, self.modes.fences())
        await self.modes.begin(self.mirror.epoch)
        published: list[int] = []
        while True:  # first the changes in the outbox, then the live jobs as they are
            page = await turn_page(
                session, published=published, most_changes=PAGE_CHANGES, without_mirror=without_mirror
            )
            if not page.jobs:
                break
            await self._note(page)
            await self._send(await self._make_work(page, []))
            published = page.seqs
        most_waiting = self._config().relay.stream_window
        await self.mirror.tell_live_jobs(session, queues, most_waiting, without_mirror)

    # -- streams -------------------------------------------------------------------------------------------------

    async def _meet_queues(self, queues: set[str]) -> None:
        """Serve queues that only another node has in its configuration, from their first job on."""
        for queue in queues - self.window.offered.keys():
            await make_group(self._transport.client, stream_of(queue))
            self.window.meet([queue])

    async def _look_ahead(self, session: Session, *, is_calm: bool = True) -> bool:
        """Obey pauses, and give jobs their place whose time has come; whether there is anything to publish or offer.

        A pause is obeyed only while no batch is on its way to Redis, which could add messages after the withdrawal.
        """
        room = self.window.room()
        ahead = await look_ahead(session, list(room), known=self.window.known(room))
        paused, paused_tasks = set(ahead.paused), set(ahead.paused_tasks)
        self._has_new_pauses = not is_calm and (self.window.paused, self.window.paused_tasks) != (paused, paused_tasks)
        if is_calm:
            await self._obey_pauses(paused, paused_tasks)
        due_in_s = TICK_S if ahead.due_in_s is None else min(TICK_S, max(0.0, ahead.due_in_s))
        self._due_at = time.monotonic() + due_in_s
        promoted = await self._promote(session) if due_in_s == 0.0 else set[str]()
        await self._say_work({queue for queue in promoted if self.modes.is_direct(queue)})
        if promoted or ahead.has_unoffered:
            self.window.look_again()
        return bool(promoted) or ahead.has_news or ahead.has_unoffered

    async def _promote(self, session: Session) -> set[str]:
        """Delayed jobs that are due, and those whose limit key has room; their queues."""
        return await promote_due_in(session) | await admit(self._database, queue_limits(self._config()))

    async def _obey_pauses(self, paused: set[str], paused_tasks: set[str]) -> None:
        """Messages of a queue that was paused are taken back, as far as nobody has read them.

        When a task was paused, those of every queue: what is not of that task is offered again.
        """
        new_tasks = paused_tasks - self.window.paused_tasks
        queues = self.window.offered.keys() if new_tasks else (paused - self.window.paused) & self.window.offered.keys()
        for queue in [queue for queue in queues if self.window.offered[queue] or queue in paused]:
            count = await self.mirror.projector.withdraw(queue)
            self.window.forget(queue)
            log.info("queue %s, or a task, is paused; %d messages were taken back", queue, count)
        self.window.paused, self.window.paused_tasks = paused, paused_tasks

    async def _change_modes(self, session: Session) -> bool:
        """To be called while nothing is on its way to Redis; whether a queue has another mode now."""
        try:
            changed = await self.modes.check(session, self.mirror.epoch)
        except EpochChanged:
            await self._start_anew(session)
            return True
        await self._meet_queues(changed)
        for queue in changed:
            self.window.forget(queue)
        await self._say_work({queue for queue in changed if self.modes.is_direct(queue)})
        return bool(changed)

    async def _say_work(self, queues: set[str]) -> None:
        if queues:
            self._on_work(queues)
            await say_work(self._transport, self._name, queues)

    async def _sweep(self, session: Session) -> None:
        """Now and then: a stream that holds less than was put into it has lost messages: all is published again."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_S
        if not await self.mirror.projector.is_known_run():
            await self._start_anew(session)
        expected = {queue: len(offered) for queue, offered in self.window.offered.items() if offered}
        lacking = [
            queue for queue, number in expected.items() if await self._transport.client.xlen(stream_of(queue)) < number
        ]
        # Twice in a row: the message of a job that is claimed just now leaves the stream before `window` knows.
        if lacking and lacking == self._lacking:
            log.warning("messages are missing from the stream of %s", ", ".join(lacking))
            await self._start_anew(session)
            lacking = []
        self._lacking = lacking
