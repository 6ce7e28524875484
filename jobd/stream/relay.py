"""The relay, outward: tells Redis what Postgres has committed, and keeps each stream topped up with jobs to be had.

Waiting jobs stay in Postgres. At most `relay.stream_window` of a queue are in its stream unclaimed, in the order in
which they shall run, so a late urgent job overtakes the rest. As many more have a hash in Redis; the rest get theirs
when they are offered, so Redis stays small however long the queue is.

One relay works at a time (a lease in Postgres; the others stand by), which only saves work: the script changes
nothing when it gets something twice. Outbox rows are deleted once published, and they are published in their order:
there is no cursor that could run past a row which is committed late.

Redis may be flushed, restarted or replaced by an old copy at any moment. Every call shows the epoch that Postgres
knows; when Redis does not have it, the epoch is raised and every live job is published again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

import anyio
from redis.exceptions import ResponseError

from jobd.job.history import LAST_EVENTS, last_events
from jobd.lifecycle.events import ALL_PLACES_BYTES, HistoryPlace, last_places, read_history
from jobd.lifecycle.outbox import delete_outbox_rows, live_jobs, raise_epoch, read_epoch, read_outbox
from jobd.lifecycle.publish import look_ahead, promote_due, queues_with_work, select_for_publish
from jobd.lifecycle.read import read_jobs
from jobd.store.leader import LeaderLease, leading
from jobd.stream import connection as redis_connection
from jobd.stream import wake
from jobd.stream.keys import stream_of
from jobd.stream.memory import Memory, is_full
from jobd.stream.project import (
    EpochChanged,
    Projector,
    change_of,
    change_of_job,
    change_of_live,
    in_calls,
    make_group,
    merged,
    note_of,
    offer_of,
    offer_of_new,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

    from anyio.abc import TaskGroup

    from jobd.config.model import Config
    from jobd.job.history import Event
    from jobd.lifecycle.outbox import OutboxRow
    from jobd.store.leader import Names
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.stream.connection import Transport
    from jobd.stream.project import Call, Change, OfferArray
    from jobd.supervise.service import Handle
    from jobd.supervise.wakeup import Wakeup

log = logging.getLogger(__name__)

#: The longest sleep without a wakeup: a wakeup from another node may be lost, a job may not.
TICK_S = 1.0
#: How often it looks whether the streams still hold what it put there.
SWEEP_S = 5.0
#: Outbox rows that are published in one round.
COMMITS = 100
#: Live jobs that are published again at a time, after Redis was lost.
PAGE = 500
#: A stream is topped up when so large a part of its window is free.
TOP_UP_PARTS = 4
#: So many at once take Redis long enough for something else to be done meanwhile.
LARGE = 100
#: Bytes of a job's last events that are published again to a Redis which has forgotten the job.
REPLAY_BYTES = 256 * 1024
#: Events after which a job is no longer an unclaimed message in its stream.
LEAVES_THE_STREAM = frozenset({"running", "taken", "requeued", "done", "error", "canceled"})

_T = TypeVar("_T")


class _Work(NamedTuple):
    """A page of outbox rows to publish, and what is to be offered after it; ready to be sent."""

    seqs: list[int]
    offers: list[OfferArray]
    calls: list[Call]
    size: int

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE


NOTHING_TO_DO = _Work([], [], [], 0)


class Relay:
    def __init__(
        self,
        database: Database,
        transport: Transport,
        wakeup: Wakeup,
        config: Callable[[], Config],
        names: Names | None = None,
    ) -> None:
        self._database = database
        self._lease = LeaderLease(database, "relay", names)
        self._transport = transport
        self._wakeup = wakeup
        self._config = config
        #: For each queue the jobs that are in its stream and not claimed yet, as far as has been published.
        self._offered: dict[str, set[UUID]] = {}
        self._epoch = ""
        self._next_sweep = 0.0
        #: When the next delayed job may be due; not later than a tick from now.
        self._due_at = 0.0
        self._lacking: list[str] = []
        #: For each queue the jobs that have a hash and are not offered yet: no more than a window of them.
        self._ahead: dict[str, set[UUID]] = {}
        self._paused: set[str] = set()
        #: Seen while something was on its way, and not obeyed yet.
        self._has_new_pauses = False
        #: Queues in which every job that could be offered was, when last looked at.
        self._emptied: set[str] = set()
        self._memory = Memory()

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
            stack.enter_context(_beside(tasks, wake.pass_on, self._wakeup, self._transport))
            async with leading(self._lease, handle, tasks) as leads:
                stack.close()
                stack.enter_context(_beside(tasks, wake.hear, self._wakeup, self._transport))
                yield leads

    async def _lead(self, handle: Handle, session: Session) -> None:
        try:
            await self._tell_and_offer(handle, session)
        except ResponseError as error:
            if is_full(error):  # wherever it was met; there is room when the relay is started again
                await self._memory.make_room(self._transport.client)
            raise

    async def _tell_and_offer(self, handle: Handle, session: Session) -> None:
        await self._forget(session)
        await self._meet_redis(session)
        while not handle.stop.is_set():
            await self._lease.check()
            await self._sweep(session)
            busy = await self.run_once(session)
            handle.beat()
            if not busy:
                await self._rest(handle, session)
        while await self.run_once(session):  # what the others have committed while they stopped
            pass

    async def _rest(self, handle: Handle, session: Session) -> None:
        """Until the wakeup is set, or the one check of a tick shows that there is something to do."""
        await self._look_ahead(session)
        while not await self._wakeup.wait(self._due_at - time.monotonic()) and not handle.stop.is_set():
            handle.beat()
            await self._lease.check()
            await self._sweep(session)
            if await self._look_ahead(session):
                return

    async def _forget(self, session: Session) -> None:
        queues = {*self._config().queues, *await queues_with_work(session)}
        self._offered = {queue: set() for queue in queues}
        self._ahead = {queue: set() for queue in queues}
        self._paused = set()
        self._emptied = set()

    async def run_once(self, session: Session) -> bool:
        """Tell what there is and top up the streams; whether there was anything to do.

        While a large page is on its way to Redis, the one before it is forgotten and the next is made ready.
        """
        work = await self._gather(session)
        was_busy = work.size > 0
        published: list[int] = []
        while work.size:
            following = NOTHING_TO_DO
            try:
                async with _meanwhile(self._project(work)):
                    if published:
                        await delete_outbox_rows(session, published)
                    if work.is_large:
                        following = await self._gather(session, work.seqs)
            except EpochChanged:
                await self._start_anew(session)
                return True
            published, work = work.seqs, following
        await delete_outbox_rows(session, published)
        return was_busy

    async def _gather(self, session: Session, skip: Sequence[int] = ()) -> _Work:
        """A page of changes, without those that are being published, and what the streams have room for after them.

        A pause is obeyed only while nothing is on its way: what is taken back would else be followed by more.
        """
        if skip and self._has_new_pauses:
            return NOTHING_TO_DO
        rows = await read_outbox(session, most=COMMITS, skip=skip)
        await self._meet_queues({row.queue for row in rows if row.queue is not None})
        self._note(rows)
        if self._has_new_pauses or time.monotonic() >= self._due_at:
            await self._look_ahead(session, is_calm=not skip)
        offers = self._offers_at_once(rows)
        return self._work(rows, offers + await self._offers(session))

    # -- streams -----------------------------------------------------------------------------------------------

    async def _meet_queues(self, queues: set[str]) -> None:
        """Serve queues that only another node has in its configuration, from their first job on."""
        for queue in queues - self._offered.keys():
            await make_group(self._transport.client, stream_of(queue))
            self._offered[queue], self._ahead[queue] = set(), set()

    def _room(self) -> dict[str, int]:
        """Of the streams that are to be topped up: asking for every single place would cost too much."""
        window = self._config().relay.stream_window
        room = {queue: window - len(offered) for queue, offered in self._offered.items()}
        return {queue: number for queue, number in room.items() if number >= max(1, window // TOP_UP_PARTS)}

    def _known(self, queues: Iterable[str]) -> list[UUID]:
        return [job_id for queue in queues for job_id in self._offered[queue]]

    async def _offers(self, session: Session) -> list[OfferArray]:
        room = {queue: number for queue, number in self._room().items() if queue not in self._emptied}
        if not room:
            return []
        found = []
        for offer in await select_for_publish(session, list(room), most=max(room.values()), known=self._known(room)):
            if room[offer.queue] > 0:
                room[offer.queue] -= 1
                self._offered[offer.queue].add(offer.job_id)
                self._ahead[offer.queue].discard(offer.job_id)
                found.append(offer_of(offer))
        self._emptied |= {queue for queue, left in room.items() if left > 0}
        return found

    def _offers_at_once(self, rows: Sequence[OutboxRow]) -> list[OfferArray]:
        """New jobs of queues in which nothing else waits to be offered: nobody is overtaken, so nothing is asked."""
        found = []
        window = self._config().relay.stream_window
        new = [row for row in rows if row.order_at is not None and row.queue in self._emptied]
        for row in sorted(new, key=lambda row: (row.order_at, row.job_id)):
            queue = row.queue or ""
            offered = self._offered[queue]
            if row.job_id in offered:
                continue
            if len(offered) < window and queue in self._emptied and queue not in self._paused:
                offered.add(row.job_id)
                found.append(offer_of_new(row))
            else:
                self._emptied.discard(queue)
        return found

    def _note(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if row.event in LEAVES_THE_STREAM and row.queue in self._offered:
                self._offered[row.queue].discard(row.job_id)
                self._ahead[row.queue].discard(row.job_id)
            if row.event == "requeued" or (row.event == "queued" and row.order_at is None):
                self._due_at = 0.0  # perhaps at once
            if row.event == "requeued":
                self._emptied.discard(row.queue or "")

    async def _look_ahead(self, session: Session, *, is_calm: bool = True) -> bool:
        """Obey pauses, and give jobs their place whose time has come; whether there is anything to publish or offer."""
        room = self._room()
        ahead = await look_ahead(session, list(room), known=self._known(room))
        self._has_new_pauses = not is_calm and self._paused != set(ahead.paused)
        if is_calm:
            await self._obey_pauses(set(ahead.paused))
        due_in_s = TICK_S if ahead.due_in_s is None else min(TICK_S, max(0.0, ahead.due_in_s))
        self._due_at = time.monotonic() + due_in_s
        promoted = due_in_s == 0.0 and bool(await promote_due(session))
        if promoted or ahead.has_unoffered:
            self._emptied.clear()
        return promoted or ahead.has_news or ahead.has_unoffered

    async def _obey_pauses(self, paused: set[str]) -> None:
        """Messages of a queue that was paused are taken back, as far as nobody has read them."""
        for queue in (paused - self._paused) & self._offered.keys():
            count = await Projector(self._transport.client).withdraw(queue)
            self._offered[queue].clear()
            self._emptied.discard(queue)
            log.info("queue %s is paused; %d messages were taken back", queue, count)
        self._paused = paused

    # -- publishing --------------------------------------------------------------------------------------------

    def _work(self, rows: Sequence[OutboxRow], offers: list[OfferArray]) -> _Work:
        changes = merged(change for row in rows if (change := self._change(row)) is not None)
        calls = in_calls(changes, offers, [note_of(row) for row in rows])
        return _Work(sorted({row.seq for row in rows}), offers, calls, len(rows) + len(offers))

    async def _project(self, work: _Work) -> None:
        projector = Projector(self._transport.client)
        try:
            lacking = await projector.send(self._epoch, work.calls)
        except ResponseError as error:
            if not is_full(error):
                raise
            await self._memory.make_room(self._transport.client)
            lacking = await projector.send(self._epoch, work.calls)  # what was published before changes nothing
        if lacking.missing or lacking.unoffered:
            await self._tell_whole(projector, {*lacking.missing, *lacking.unoffered})
        if lacking.unoffered:
            again = set(lacking.unoffered)
            await projector.project(self._epoch, [], [offer for offer in work.offers if offer.job_id in again])
        await self._memory.look(self._transport.client)

    def _change(self, row: OutboxRow) -> Change | None:
        """A waiting job beyond the window gets its hash when it is offered; a finished one is kept as memory allows."""
        if row.event == "queued" and row.queue in self._offered and row.job_id not in self._offered[row.queue]:
            ahead = self._ahead[row.queue]
            if len(ahead) >= self._config().relay.stream_window:
                return None
            ahead.add(row.job_id)
        change = change_of(row)
        if change is not None and self._memory.most_s is not None and row.event in LAST_EVENTS:
            change.ttl_s = min(change.ttl_s, self._memory.most_s)
        return change

    async def _tell_whole(self, projector: Projector, job_ids: Iterable[str]) -> None:
        """Jobs whose hash had expired or was lost: published whole, as they stand now."""
        jobs = list((await read_jobs(self._database, sorted(map(UUID, job_ids)))).values())
        for some in _groups(jobs):
            events = await _last_events(self._database, [job.id for job in some])
            changes = [change_of_job(job, past) for job, past in zip(some, events, strict=True) if past]
            await projector.project(self._epoch, changes)

    async def _meet_redis(self, session: Session) -> None:
        """At the start: go on if this is the Redis that Postgres knows, else publish everything again."""
        self._epoch = await read_epoch(session)
        projector = Projector(self._transport.client)
        try:
            await projector.project(self._epoch, [])
        except EpochChanged:
            await self._start_anew(session)
        else:
            if not await projector.is_known_run():
                await self._start_anew(session)

    async def _start_anew(self, session: Session) -> None:
        """A Redis that Postgres does not know: raise the epoch, make the streams, publish every live job."""
        self._epoch = await raise_epoch(session)
        await self._forget(session)
        queues = list(self._offered)
        projector = Projector(self._transport.client)
        await projector.prepare(self._epoch, queues)
        while rows := await read_outbox(session, most=COMMITS):  # first what happened, then what stands
            await self._project(self._work(rows, []))
            await delete_outbox_rows(session, sorted({row.seq for row in rows}))
        count = 0
        async for page in live_jobs(session, queues, page=PAGE, most_waiting=self._config().relay.stream_window):
            for some in _groups(page):
                events = await _last_events(session, [live.job_id for live in some])
                changes = [change_of_live(live, past) for live, past in zip(some, events, strict=True) if past]
                await projector.project(self._epoch, changes)
            count += len(page)
        log.info("Redis was new or had forgotten; published %d live jobs (epoch %s)", count, self._epoch.split("/")[-1])

    async def _sweep(self, session: Session) -> None:
        """Now and then: a stream that holds less than was put into it has lost messages: all is published again."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_S
        if not await Projector(self._transport.client).is_known_run():
            await self._start_anew(session)
        expected = {queue: len(offered) for queue, offered in self._offered.items() if offered}
        lacking = [
            queue for queue, number in expected.items() if await self._transport.client.xlen(stream_of(queue)) < number
        ]
        # Twice in a row: what is claimed just now is out of the stream a moment before it is out of our books.
        if lacking and lacking == self._lacking:
            log.warning("messages are missing from the stream of %s", ", ".join(lacking))
            await self._start_anew(session)
            lacking = []
        self._lacking = lacking


def _groups(jobs: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """So few at a time that their events fit into memory."""
    size = ALL_PLACES_BYTES // REPLAY_BYTES
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


async def _last_events(connection: Session, job_ids: Sequence[UUID]) -> list[list[Event]]:
    """What is published of each job's events: the last ones, after a gap if there are more; none: the job is gone."""
    places = await last_places(connection, job_ids, REPLAY_BYTES)
    records = await read_history(connection, [HistoryPlace(*pair) for pair in zip(job_ids, places, strict=True)])
    return [last_events(record, after) if record else [] for record, after in zip(records, places, strict=True)]


@contextlib.contextmanager
def _beside(tasks: TaskGroup, function: Callable[..., Awaitable[None]], *arguments: object) -> Iterator[None]:
    """Run the function in another task until the body ends."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await function(*arguments)

    tasks.start_soon(run)
    try:
        yield
    finally:
        scope.cancel()


@contextlib.asynccontextmanager
async def _meanwhile(other: Coroutine[object, object, object]) -> AsyncIterator[None]:
    """Run `other` beside the body and wait for both: one error instead of a group, that of the body first."""
    failed: list[Exception] = []

    async def run() -> None:
        try:
            await other
        except Exception as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        except Exception as error:
            failed.insert(0, error)
    if failed:
        raise failed[0]
