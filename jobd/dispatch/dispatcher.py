"""The dispatcher: brings jobs to the callers that wait for them on this node, slots and HTTP workers.

Callers say which queues they serve, in order of preference, and wait. Jobs of a queue in mode `direct` are taken from
Postgres (`direct`), those of a queue in mode `stream` through their messages in Redis (`stream_reader`, `pending`).

A job whose caller has gone when it arrives is handed back uncharged. Thousands may wait: they share one reader and its
one connection, and the cost of a job does not grow with their number (see `waiting_line`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import msgspec
from redis.exceptions import RedisError

from jobd.board.ledger import MemoryLedger
from jobd.dispatch.direct import DirectTaker
from jobd.dispatch.pending import PendingMessages
from jobd.dispatch.stream_reader import StreamReader
from jobd.dispatch.waiting_line import Caller, Callers, SlotCaller
from jobd.errors import JobdError
from jobd.host.logs import job_fields
from jobd.lifecycle.release import Release
from jobd.stream import work
from jobd.stream.keys import CONSUMER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.dispatch.direct import LoadedModels
    from jobd.dispatch.slots import JobSink
    from jobd.engine.engine import Engine
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds after which a job comes back that a message brought while there was too little memory for it.
MEMORY_S = 2.0


class Dispatcher:
    def __init__(
        self,
        engine: Engine,
        database: Database,
        transport: Transport,
        incarnation: UUID,
        config: Callable[[], Config],
        name: str = "",
        known_tokens: Callable[[], list[UUID]] = list,
        memory: MemoryLedger | None = None,
        models: LoadedModels | None = None,
    ) -> None:
        """`name`: of this node among those that relay. `known_tokens`: the leases that its slots hold.
        `memory`: what jobs of its slots are promised; None: nothing is known of it. `models`: those that take turns.
        """
        self._memory = MemoryLedger(config, lambda: None) if memory is None else memory
        self._engine = engine
        self._transport = transport
        self._name = name
        self.consumer = f"{CONSUMER_PREFIX}{incarnation}"
        self._callers = Callers()
        self._stopping = False
        #: Queues with jobs that have become due, which are not published to the other nodes yet.
        self._promoted: set[str] = set()
        self._has_promoted = anyio.Event()
        #: Jobs whose caller has gone.
        self._unwanted: list[ClaimedJob | Release] = []
        self._has_unwanted = anyio.Event()
        self.direct = DirectTaker(
            engine,
            database,
            self._callers,
            config,
            memory=self._memory,
            models=models,
            serve=self._serve,
            on_modes=lambda: self._reread.set(),
            on_promoted=self._note_promoted,
            known_tokens=known_tokens,
        )
        self.streams = StreamReader(engine, database, transport, self.consumer, self._callers, self.direct, self._serve)
        self.pending = PendingMessages(database, transport, self.consumer, config, self.streams)
        #: Set when a waiting read does not fit any more: queues have changed their mode, or slots want other queues.
        self._reread = anyio.Event()

    # -- callers ---------------------------------------------------------------------------------------------------

    async def take(
        self, queues: Sequence[str], owner_id: str, most: int = 1, wait_s: float | None = None
    ) -> list[ClaimedJob]:
        """Wait for jobs of these queues, the first queue first; at least one and at most `most`.

        With `wait_s` there may be none: when the time is up, and at once when jobd stops.
        """
        caller = Caller(queues, owner_id, most, patient=wait_s is None)
        if self._stopping and not caller.patient:
            return []
        self._callers.join(caller)
        for queue in caller.queues:
            self.direct.call(queue)
        try:
            # What arrives together with the end of the wait counts: the deadline ends in here, a cancellation does not.
            with anyio.move_on_after(wait_s):
                await self.streams.call(caller.queues)
                await caller.served.wait()
        except anyio.get_cancelled_exc_class():
            self._give_back(caller.jobs)
            with anyio.CancelScope(shield=True):
                await self._release_all()
            raise
        finally:
            self._callers.leave(caller)
        return caller.jobs

    def open(self, queue: str, owner_id: str, sink: JobSink) -> Callable[[int, bool], None]:
        """Bring jobs of the queue to its slots; what is returned says how many more they want."""
        caller = SlotCaller(queue, owner_id, sink)
        want = self.direct.open(caller)

        def want_of_both(number: int, is_reporting: bool) -> None:
            want(number, is_reporting)
            if number and not self.direct.is_direct(queue) and not self.streams.hears(queue):
                self._reread.set()

        return want_of_both

    def wanted_queues(self) -> frozenset[str]:
        """The queues of which somebody here wants jobs now."""
        return self._callers.all_queues()

    def _serve(self, served: Iterable[tuple[Caller, list[ClaimedJob]]]) -> None:
        for caller, jobs in served:
            if caller not in self._callers or caller.is_served:
                self._give_back(jobs)
            elif jobs:
                if not caller.stays:
                    self._callers.leave(caller)
                elif self._memory.is_used:
                    jobs = self._with_memory(jobs)
                caller.deliver(jobs)

    def _with_memory(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Those that fit, and for which memory is reserved now; others come back later.

        This is about jobs that a message has brought, and the first that turns up in a queue where none was expected.
        """
        fit: list[ClaimedJob] = []
        late: list[Release] = []
        for job in jobs:
            if self._memory.has_need(job.task):
                self._memory.queues.add(job.queue)
            if self._memory.admit(job.lease_token, job.task):
                fit.append(job)
            else:
                late.append(Release(**msgspec.structs.asdict(job.held), delay_s=MEMORY_S))
        self._give_back(late)
        return fit

    def _give_back(self, jobs: Sequence[ClaimedJob | Release]) -> None:
        if jobs:
            self._unwanted += jobs
            self._has_unwanted.set()

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        self._stopping = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._release_unwanted)
                tasks.start_soon(self._renew_reads)
                tasks.start_soon(self._say_promoted)
                tasks.start_soon(self.pending.run)
                tasks.start_soon(work.hear, self.direct.note_work, self._transport, self._name)
                tasks.start_soon(self._stop_reading, handle)
                handle.ready()
                async with anyio.create_task_group() as serving:  # these end by themselves: no statement is cut off
                    serving.start_soon(self.direct.run, handle)
                    await self.streams.run(handle)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._release_all()

    async def _stop_reading(self, handle: Handle) -> None:
        await handle.stop.wait()
        self._stopping = True
        for caller in self._callers:
            if not caller.patient:
                caller.served.set()
        self.direct.wake()
        await self.streams.read_again()  # it sees that it is to stop

    async def _renew_reads(self) -> None:
        while True:
            await self._reread.wait()
            self._reread = anyio.Event()
            await self.streams.read_again()

    def _note_promoted(self, queues: set[str]) -> None:
        self._promoted |= {queue for queue in queues if self.direct.is_direct(queue)}
        if self._promoted:
            self._has_promoted.set()

    async def _say_promoted(self) -> None:
        """Publish it to the other nodes, which also poll; in a task of its own, since Redis may be away."""
        while True:
            await self._has_promoted.wait()
            self._has_promoted = anyio.Event()
            queues, self._promoted = self._promoted, set()
            try:
                await work.say_work(self._transport, self._name, queues)
            except (JobdError, RedisError, OSError) as error:
                log.debug("other nodes did not hear of due jobs: %s", error)

    # -- jobs that nobody wants any more -----------------------------------------------------------------------------

    async def _release_unwanted(self) -> None:
        while True:
            await self._has_unwanted.wait()
            self._has_unwanted = anyio.Event()
            with anyio.CancelScope(shield=True):
                await self._release_all()

    async def _release_all(self) -> None:
        jobs, self._unwanted = self._unwanted, []
        if jobs:
            async with anyio.create_task_group() as tasks:
                for job in jobs:
                    tasks.start_soon(self._release, job)

    async def _release(self, job: ClaimedJob | Release) -> None:
        try:
            await self._engine.release(job if isinstance(job, Release) else job.held)
        except JobdError as error:
            fields = (
                job_fields(job.job_id)
                if isinstance(job, Release)
                else job_fields(job.job_id, job.attempt_no, job.traceparent)
            )
            log.debug("a job was not handed back (%s); its lease will end", error, extra=fields)
