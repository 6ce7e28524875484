"""Takes jobs of queues in mode `direct` from Postgres, for slots and HTTP workers alike.

Most jobs are taken by a commit that happens anyway: the one that enqueues them, if somebody waits, or the one that
completes others. The engine asks here what is wanted (`reserve`) and brings what it took (`deliver`). A take of its own
is made when neither comes: at the start, when another node has enqueued or a delayed job has become due, and by a poll
whose pause doubles up to LONGEST_POLL_S.

Where tasks need memory (`board.ledger`), slots of the queues that have their jobs take by a statement of its own, which
starts what fits. HTTP workers of such a queue take as ever: their memory is elsewhere. Likewise where models take turns
(`model_servers`): slots take jobs of the loaded model first, unless the queue has jobs that need memory.

Whether a queue may have waiting jobs is known from what takes and commits of this process have left (`_Queue`); a take
that brings less than was wanted has emptied the queue, unless something was committed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.engine.limits import queue_limits
from jobd.errors import JobdError
from jobd.lifecycle.admit import admit, nudge_keys
from jobd.lifecycle.modes import ensure_queues, queue_modes
from jobd.lifecycle.pause import tend_pauses
from jobd.lifecycle.publish import next_due_s, promote_due_in
from jobd.lifecycle.take import Want, stray_claims
from jobd.lifecycle.take_fitting import Fitting
from jobd.store.faults import LineBroken
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from jobd.board.ledger import MemoryLedger
    from jobd.config.model import Config
    from jobd.dispatch.waiting_line import Caller, Callers, SlotCaller
    from jobd.engine.demand import Reservation
    from jobd.engine.engine import Engine
    from jobd.lifecycle.admit import QueueLimits
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.take_resident import PutBehind
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Most jobs that one statement takes.
MOST_AT_ONCE = 500
#: Seconds between two reads of the queues' modes and pauses and of the next delayed job.
TICK_S = 1.0
#: Seconds between two polls of Postgres at first; each poll that brings nothing doubles them.
POLL_S = 1.0
#: Longest time in seconds between two polls of Postgres.
LONGEST_POLL_S = 5.0
#: Seconds before a failed take is tried again.
RETRY_S = 0.25
#: Seconds that free slots wait for the commit that reports their last jobs and takes the next, before they take alone.
REPORT_SOON_S = 0.02
#: Seconds after a broken connection at which claims are searched whose answer it lost: the server may commit late.
STRAY_AFTER_S = (0.0, 5.0, 20.0)


class LoadedModels(Protocol):
    """Which models are loaded, of those that take turns."""

    @property
    def queues(self) -> Collection[str]:
        """Where their jobs are expected."""
        ...

    def put_behind(self) -> PutBehind | None:
        """The jobs that are put behind now; None: none."""
        ...


class Taking:
    """Jobs that were promised to callers and are being taken, by queue."""

    __slots__ = ("changes", "is_fitting", "promises", "wants")

    def __init__(
        self, promises: dict[str, list[tuple[Caller, int]]], changes: dict[str, int], *, is_fitting: bool = False
    ) -> None:
        self.promises = promises
        #: Whether it is for slots that choose: of queues with jobs that need memory, or of models that take turns.
        self.is_fitting = is_fitting
        #: How many commits had left work in each queue when the take was sent.
        self.changes = changes
        self.wants = [
            Want(queue, [caller.owner_id for caller, number in promised for _ in range(number)])
            for queue, promised in promises.items()
        ]


class _Queue:
    """What this process knows of a queue."""

    __slots__ = ("changes", "has_work", "is_direct", "is_paused", "short_task", "slots_have_all")

    def __init__(self) -> None:
        self.is_direct = False
        #: The task whose job was first in line when there was too little memory for it.
        self.short_task: str | None = None
        #: Of a queue with jobs that need memory: its slots have taken all that fits, until something changes.
        self.slots_have_all = False
        #: A take would bring nothing; what is known may be a tick old, and the take itself decides.
        self.is_paused = False
        #: Whether jobs may wait there.
        self.has_work = True
        #: Grows with every commit that may have left jobs there.
        self.changes = 0

    @property
    def is_open(self) -> bool:
        return self.is_direct and not self.is_paused


class DirectTaker:
    def __init__(
        self,
        engine: Engine,
        database: Database,
        callers: Callers,
        config: Callable[[], Config],
        *,
        memory: MemoryLedger,
        models: LoadedModels | None = None,
        serve: Callable[[Iterable[tuple[Caller, list[ClaimedJob]]]], None],
        on_modes: Callable[[], None],
        on_promoted: Callable[[set[str]], None],
        known_tokens: Callable[[], list[UUID]] = list,
    ) -> None:
        self._engine = engine
        self._database = database
        self._callers = callers
        self._config = config
        self._memory = memory
        memory.on_freed = self.note_memory
        self._models = models
        self._model_queues = frozenset[str]() if models is None else frozenset(models.queues)
        #: Brings jobs to callers; those of one that has left go back.
        self._serve = serve
        self._on_modes = on_modes
        #: Hears of queues in which delayed jobs were found to be due.
        self._on_promoted = on_promoted
        #: The lease tokens of all jobs that slots of this process hold.
        self._known_tokens = known_tokens
        self._queues: dict[str, _Queue] = {}
        self._slot_callers: dict[str, SlotCaller] = {}
        self._wakeup = Wakeup()
        self._tick_at = 0.0
        self._poll_at = 0.0
        self._poll_s = POLL_S
        #: When to search for claims whose answer was lost, by time.monotonic(); soonest first.
        self._strays_at: list[float] = []
        #: Takes that were sent and not answered yet.
        self._under_way = 0
        #: Takes that were sent since the start, to notice that one was sent meanwhile.
        self._sent = 0
        self._take_scheduled_at = 0.0
        #: Pauses and resumes of queues by this process, to notice that one came meanwhile.
        self._pauses = 0
        #: Whether a commit may have given a limit key room.
        self._has_limited = False
        #: The limits that keys were last looked at with; None: not since the start.
        self._limits: dict[str, QueueLimits] | None = None
        engine.demand = self

    # -- modes -----------------------------------------------------------------------------------------------------

    def is_direct(self, queue: str) -> bool:
        known = self._queues.get(queue)
        return known is not None and known.is_direct

    def set_modes(self, direct: Iterable[str]) -> None:
        """These queues are in mode `direct`, and no others."""
        now_direct = set(direct)
        changed = {name for name, queue in self._queues.items() if queue.is_direct} != now_direct
        for name in now_direct:
            self._queue(name).is_direct = True
        for name in self._queues.keys() - now_direct:
            self._queues[name].is_direct = False
        if changed:
            self.note_work()
            self._on_modes()

    def _queue(self, name: str) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    # -- demand: asked by the engine --------------------------------------------------------------------------------

    def reserve(self, queues: Mapping[str, int] | None = None) -> Taking | None:
        """Of the queues that jobs are being added to, up to that number each; None: of all that may have jobs."""
        if queues is None:
            for name, caller in self._slot_callers.items():
                if not self._chooses(name):
                    caller.sink.ask(at_report=True)
            return self._reserve(dict.fromkeys(self._with_work(), MOST_AT_ONCE))
        return self._reserve({name: number for name, number in queues.items() if self._queue(name).is_open})

    def _reserve(self, most: Mapping[str, int]) -> Taking | None:
        """Promise jobs of these queues, up to that number each; callers that prefer a queue come first (`ranks`)."""
        promises: dict[str, list[tuple[Caller, int]]] = {}
        left = dict(most)
        for rank in self._callers.ranks():
            for name in self._callers.queues(rank):
                if left.get(name, 0) > 0 and (
                    promised := self._callers.promise_many(name, rank, left[name], without=self._fitting_caller(name))
                ):
                    promises.setdefault(name, []).extend(promised)
                    left[name] -= sum(number for _, number in promised)
        if not promises:
            return None
        self._under_way += 1
        self._sent += 1
        return Taking(promises, {name: self._queue(name).changes for name in promises})

    def _fitting_caller(self, queue: str) -> SlotCaller | None:
        """The slots of the queue, if they choose what they take."""
        return self._slot_callers.get(queue) if self._chooses(queue) else None

    def _chooses(self, queue: str) -> bool:
        return queue in self._memory.queues or queue in self._model_queues

    def _reserve_fitting(self, queues: Iterable[str]) -> Taking | None:
        """Promise jobs to the slots of these queues that choose: those with needs of memory, else the others."""
        promises: dict[str, list[tuple[Caller, int]]] = {}
        names = list(queues)
        for name in [name for name in names if name in self._memory.queues] or names:
            caller = self._fitting_caller(name)
            if caller is not None and caller in self._callers and caller.room:
                promises[name] = [(caller, self._callers.promise_to(caller, MOST_AT_ONCE))]
        if not promises:
            return None
        self._under_way += 1
        self._sent += 1
        return Taking(promises, {name: self._queue(name).changes for name in promises}, is_fitting=True)

    def cancel(self, reservation: Reservation, *, is_unknown: bool) -> None:
        assert isinstance(reservation, Taking)  # made by `reserve`
        self._under_way -= 1
        for promises in reservation.promises.values():
            for caller, number in reversed(promises):
                self._callers.take_back(caller, number)
        if is_unknown:
            now = time.monotonic()
            self._strays_at = [now + after_s for after_s in STRAY_AFTER_S]
            self._wakeup.set()

    def deliver(self, reservation: Reservation, jobs: Sequence[ClaimedJob]) -> None:
        assert isinstance(reservation, Taking)  # made by `reserve`
        self._under_way -= 1
        by_queue: dict[str, list[ClaimedJob]] = {name: [] for name in reservation.promises}
        for job in jobs:
            by_queue[job.queue].append(job)
        for name, promises in reservation.promises.items():
            wanted = sum(number for _, number in promises)
            queue = self._queue(name)
            if len(by_queue[name]) < wanted and queue.changes == reservation.changes[name]:
                queue.has_work = False
            self._hand_out(promises, by_queue[name])
        if jobs:
            self._poll_s = POLL_S

    def _hand_out(self, promises: list[tuple[Caller, int]], jobs: list[ClaimedJob]) -> None:
        if len(promises) == 1:
            served = [(promises[0][0], promises[0][1], jobs)]
        else:
            of_owner: dict[str, list[ClaimedJob]] = {}
            for job in jobs:
                of_owner.setdefault(job.owner_id, []).append(job)
            served = []
            for caller, number in promises:
                own = of_owner.get(caller.owner_id, [])
                served.append((caller, number, own[:number]))
                del own[:number]
        for caller, number, own in reversed(served):
            if not own:
                self._callers.take_back(caller, number)
        for caller, number, own in served:
            if own:
                self._callers.keep(caller, number)
                self._serve([(caller, own)])

    def note_work(self, queues: Iterable[str] | None = None) -> None:
        for name in self._queues if queues is None else queues:
            queue = self._queue(name)
            queue.has_work = True
            queue.slots_have_all = False
            queue.changes += 1
            if queue.is_open and self._callers.wants(name):
                self._wakeup.set()

    def note_memory(self) -> None:
        """Memory may be free for jobs that wait for it."""
        short = [name for name, queue in self._queues.items() if queue.short_task is not None]
        if short:
            self.note_work(name for name in short if self._memory.shortage(self._queue(name).short_task or "") is None)

    def note_pause(self, queue: str, *, paused: bool) -> None:
        self._pauses += 1
        self._queue(queue).is_paused = paused
        self.note_work([queue])

    def wake(self) -> None:
        self._wakeup.set()

    def note_delayed(self) -> None:
        self._tick_at = 0.0
        self._wakeup.set()

    def note_limited(self) -> None:
        self._has_limited = True
        self._wakeup.set()

    # -- slots -----------------------------------------------------------------------------------------------------

    def open(self, caller: SlotCaller) -> Callable[[int, bool], None]:
        """The slots of a queue join the line, in the place of those that were there before a restart."""
        (queue,) = caller.queues
        if (before := self._slot_callers.get(queue)) is not None:
            self._callers.leave(before)
        self._slot_callers[queue] = caller
        self._callers.join(caller)

        def want(number: int, is_reporting: bool) -> None:
            grows = number - caller.promised > caller.room
            self._callers.want(caller, number)
            if grows:
                self.call(queue, is_reporting=is_reporting)

        return want

    def call(self, queue: str, *, is_reporting: bool = False) -> None:
        """Somebody waits for a job of this queue: take, unless a report comes soon and takes for it."""
        known = self._queue(queue)
        if not (known.is_open and known.has_work):
            return
        if not is_reporting:
            self._wakeup.set()
        elif self._take_scheduled_at < (now := time.monotonic()):
            self._take_scheduled_at = now + REPORT_SOON_S
            asyncio.get_running_loop().call_later(REPORT_SOON_S, self._wakeup.set)

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        """Take jobs that no commit of this process takes: at wakeups, ticks and polls."""
        await self._try(self._start)
        while not handle.stop.is_set():
            handle.beat()
            await self._try(self._run_once)
            await self._wakeup.wait(min(self._tick_at, self._poll_at) - time.monotonic())

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except JobdError as error:
            log.debug("no jobs are taken: %s", error)
            self._tick_at = self._poll_at = time.monotonic() + RETRY_S
            self.note_work()

    async def _start(self) -> None:
        await ensure_queues(self._database, self._config().queues)
        self._tick_at = 0.0

    async def _run_once(self) -> None:
        now = time.monotonic()
        if self._strays_at and now >= self._strays_at[0]:
            self._strays_at.pop(0)
            await self._adopt_strays()
        if now >= self._tick_at:
            await self._tick()
        if self._has_limited:
            await self._admit()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_s
            self._poll_s = min(LONGEST_POLL_S, self._poll_s * 2)
            for name, queue in self._queues.items():
                queue.has_work = queue.has_work or self._callers.wants(name)
                queue.slots_have_all = False
        while (taking := self._reserve(dict.fromkeys(self._with_work(), MOST_AT_ONCE))) is not None:
            await self.take(taking)
        while (self._memory.queues or self._model_queues) and (
            taking := self._reserve_fitting(self._with_fitting_work())
        ) is not None:
            await self.take(taking)

    def _with_work(self) -> list[str]:
        return [name for name, queue in self._queues.items() if queue.is_open and queue.has_work]

    def _with_fitting_work(self) -> list[str]:
        return [name for name in self._with_work() if not self._queue(name).slots_have_all]

    async def take(self, taking: Taking, *, any_mode: bool = False) -> bool:
        """Take what was promised; whether there was anything."""
        try:
            if taking.is_fitting and self._memory.queues & taking.promises.keys():
                return await self._take_fitting(taking, any_mode=any_mode)
            behind = self._models.put_behind() if taking.is_fitting and self._models is not None else None
            if behind is None:
                jobs = await self._engine.take(taking.wants, any_mode=any_mode)
            else:
                jobs = await self._engine.take_resident(taking.wants, behind, any_mode=any_mode)
        except BaseException as error:
            self.cancel(taking, is_unknown=isinstance(error, (LineBroken, anyio.get_cancelled_exc_class())))
            raise
        self.deliver(taking, jobs)
        return bool(jobs)

    async def _take_fitting(self, taking: Taking, *, any_mode: bool) -> bool:
        """Take with a promise of memory for the one job that may need some; that is held, or free again, afterwards."""
        offer = self._memory.offer()
        started: list[tuple[UUID, str]] = []
        try:
            fitting = Fitting(offer.tasks, offer.startable, offer.impossible)
            taken = await self._engine.take_fitting(taking.wants, fitting, any_mode=any_mode)
            started = [(job.lease_token, job.task) for job in taken.jobs]
        finally:
            self._memory.settle(offer, started)
        has_more = any(task in offer.tasks for _, task in started)  # it takes one such job at a time
        self.deliver(taking, taken.jobs)
        for name in taking.promises:
            queue = self._queue(name)
            queue.short_task = taken.short_task
            if not queue.has_work and not has_more:
                queue.slots_have_all = True
            if has_more or taken.short_task is not None:  # HTTP workers may have what does not fit here
                queue.has_work = True
        return bool(taken.jobs)

    def reserve_all(self, queue: str) -> Taking | None:
        """All that is wanted of this queue, whatever its mode."""
        return self._reserve_fitting([queue]) or self._reserve({queue: MOST_AT_ONCE})

    async def _tick(self) -> None:
        """Read the modes and pauses, which another node may have changed, and promote delayed jobs that are due."""
        pauses = self._pauses
        modes = await queue_modes(self._database)
        self.set_modes(name for name, queue in modes.items() if queue.mode == "direct")
        if pauses == self._pauses:  # else this process has changed one, which is newer than what was read
            for name, queue in modes.items():
                if queue.paused != self._queue(name).is_paused:
                    self.note_pause(name, paused=queue.paused)
        if back := await tend_pauses(self._database):
            self.note_work(back)
            self._on_promoted(back)
        due_s = await next_due_s(self._database)
        if (limits := queue_limits(self._config())) != self._limits:
            self._limits = limits
            await nudge_keys(self._database)
        if due_s is not None and due_s <= 0:
            if promoted := await promote_due_in(self._database):
                self.note_work()
                self._on_promoted(promoted)
            await self._admit()
            due_s = await next_due_s(self._database)
        self._tick_at = time.monotonic() + (TICK_S if due_s is None else min(TICK_S, max(0.001, due_s)))

    async def _admit(self) -> None:
        """Put jobs with limit keys in line, as far as their keys have room."""
        self._has_limited = False
        if queues := await admit(self._database, queue_limits(self._config())):
            self._engine.note_limits()
            self._engine.wake_relay()
            self.note_work(queues)
            self._on_promoted(queues)

    async def _adopt_strays(self) -> None:
        """Run the jobs that were claimed for slots by a statement whose answer was lost with its connection.

        Only while no take is under way: the jobs that it claims are not known here yet, and would pass for strays.
        """
        sent = self._sent
        for queue, caller in self._slot_callers.items():
            strays = (
                [] if self._under_way else await stray_claims(self._database, caller.owner_id, self._known_tokens())
            )
            if self._under_way or self._sent != sent:
                self._strays_at.insert(0, time.monotonic() + RETRY_S)
                return
            own = [job for job in strays if job.queue == queue]
            if own:
                log.info("%d jobs were claimed by a statement whose answer was lost; they run now", len(own))
                self._memory.hold((job.lease_token, job.task) for job in own)
                caller.deliver(own)
