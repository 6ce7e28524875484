"""The relay, outward: tells Redis what Postgres has committed, and keeps each stream topped up with jobs to be had.

Waiting jobs stay in Postgres. At most `relay.stream_window` of a queue are in its stream unclaimed, in the order in
which they shall run, so a late urgent job overtakes the rest and Redis stays small however long the queue is.

One relay works at a time (a session lock in Postgres; the others stand by), which only saves work: the script changes
nothing when it is told something twice. Outbox rows are deleted once told, and what is there is told in its order:
there is no cursor that could run past a row which is committed late.

Redis may be flushed, restarted or replaced by an old copy at any moment. Every call shows the epoch that Postgres
knows; when Redis does not have it, the epoch is raised and every live job is told anew.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from jobd.lifecycle.outbox import forget_told, live_jobs, read_outbox
from jobd.lifecycle.publish import next_due_in, promote_due, select_for_publish
from jobd.lifecycle.read import read_jobs
from jobd.store.leader import leading
from jobd.store.postgres import translated
from jobd.stream import connection as redis_connection
from jobd.stream.keys import stream_of
from jobd.stream.project import EpochChanged, Projector, change_of, change_of_job, change_of_live, offer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.bell import Bell
    from jobd.config import Config
    from jobd.lifecycle.outbox import Told
    from jobd.service import Handle
    from jobd.store.postgres import Connection, Database
    from jobd.stream.connection import Transport
    from jobd.stream.project import Change

log = logging.getLogger(__name__)

#: "relay" in ASCII, as a key for the session lock.
LEADER_KEY = 0x72656C6179
#: How long it may sleep though nobody rings: a ring from another node may be lost, a job may not.
TICK_S = 1.0
#: How often it looks whether the streams still hold what it put there.
SWEEP_S = 5.0
#: Commits told in one round.
COMMITS = 100
PAGE = 500
#: Events after which a job is no longer an unclaimed message in its stream.
LEAVES_THE_STREAM = frozenset({"running", "taken", "requeued", "done", "error", "canceled"})


class Relay:
    def __init__(self, database: Database, transport: Transport, bell: Bell, config: Callable[[], Config]) -> None:
        self._database = database
        self._transport = transport
        self._bell = bell
        self._config = config
        #: For each queue the jobs that are in its stream and not claimed yet, as far as has been told.
        self._offered: dict[str, set[UUID]] = {}
        self._epoch = ""
        self._next_sweep = 0.0
        #: When the next delayed job may be due; not later than a tick from now.
        self._due_at = 0.0
        self._lacking: list[str] = []

    async def run(self, handle: Handle) -> None:
        handle.ready()
        with translated(self._database.url), redis_connection.translated(self._transport.url):
            async with leading(self._database, LEADER_KEY, handle) as session:
                if session is None:
                    return
                self._offered = {queue: set() for queue in self._config().queues}
                await self._meet_redis(session)
                while not handle.stop.is_set():
                    await self._sweep(session)
                    busy = await self.run_once(session)
                    handle.beat()
                    if not busy:
                        await self._bell.wait(await self._until_due(session))
                while await self.run_once(session):  # what the others have committed while they stopped
                    pass

    async def run_once(self, session: Connection) -> bool:
        """Tell one round of changes and top up the streams; whether there was anything to do."""
        told = await read_outbox(session, most=COMMITS)
        self._note(told)
        if time.monotonic() >= self._due_at:
            await promote_due(session)
        offers = await self._offers(session)
        if not told and not offers:
            return False
        try:
            await self._project(session, [change_of(one) for one in told], offers)
        except EpochChanged:
            await self._start_anew(session)
            return True
        await forget_told(session, sorted({one.seq for one in told}))
        return True

    # -- streams -----------------------------------------------------------------------------------------------

    async def _offers(self, session: Connection) -> list[list[Any]]:
        window = self._config().relay.stream_window
        room = {queue: window - len(offered) for queue, offered in self._offered.items() if len(offered) < window}
        if not room:
            return []
        known = [job_id for queue in room for job_id in self._offered[queue]]
        found = []
        for offer in await select_for_publish(session, list(room), most=max(room.values()), known=known):
            if room[offer.queue] > 0:
                room[offer.queue] -= 1
                self._offered[offer.queue].add(offer.job_id)
                found.append(offer_of(offer))
        return found

    def _note(self, told: Sequence[Told]) -> None:
        for one in told:
            if one.event in LEAVES_THE_STREAM and one.queue in self._offered:
                self._offered[one.queue].discard(one.job_id)
            if one.event == "requeued":
                self._due_at = 0.0  # perhaps at once

    async def _until_due(self, session: Connection) -> float:
        seconds = await next_due_in(session)
        wait_s = TICK_S if seconds is None else min(TICK_S, max(0.0, seconds))
        self._due_at = time.monotonic() + wait_s
        return wait_s

    # -- telling -----------------------------------------------------------------------------------------------

    async def _project(self, session: Connection, changes: Sequence[Change], offers: Sequence[list[Any]]) -> None:
        projector = Projector(self._transport.client)
        missing = await projector.project(self._epoch, changes, offers)
        if missing:
            await self._tell_whole(session, projector, missing)

    async def _tell_whole(self, session: Connection, projector: Projector, job_ids: Sequence[str]) -> None:
        """Jobs whose hash had expired or was lost: told whole, as they stand now."""
        jobs = await read_jobs(session, sorted(set(job_ids)))  # type: ignore[arg-type]  # text is fine for a uuid
        await projector.project(self._epoch, [change_of_job(job) for job in jobs.values()])

    async def _meet_redis(self, session: Connection) -> None:
        """At the start: go on if this is the Redis that Postgres knows, else start anew."""
        self._epoch = await session.fetchval("SELECT id::text || '/' || epoch FROM installation")
        try:
            await Projector(self._transport.client).project(self._epoch, [])
        except EpochChanged:
            await self._start_anew(session)

    async def _start_anew(self, session: Connection) -> None:
        """A Redis that Postgres does not know: raise the epoch, make the streams, tell every live job."""
        self._epoch = await session.fetchval(
            "UPDATE installation SET epoch = epoch + 1 RETURNING id::text || '/' || epoch"
        )
        queues = list(self._config().queues)
        self._offered = {queue: set() for queue in queues}
        projector = Projector(self._transport.client)
        await projector.prepare(self._epoch, queues)
        while told := await read_outbox(session, most=COMMITS):  # first what happened, then what stands
            await self._project(session, [change_of(one) for one in told], [])
            await forget_told(session, sorted({one.seq for one in told}))
        count = 0
        async for page in live_jobs(session, queues, page=PAGE):
            await projector.project(self._epoch, [change_of_live(live) for live in page])
            count += len(page)
        log.info("Redis was new or had forgotten; told it %d live jobs (epoch %s)", count, self._epoch.split("/")[-1])

    async def _sweep(self, session: Connection) -> None:
        """Now and then: a stream that holds less than was put into it has lost messages, so everything is told anew."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP_S
        expected = {queue: len(offered) for queue, offered in self._offered.items()}
        lacking = [
            queue for queue, number in expected.items() if await self._transport.client.xlen(stream_of(queue)) < number
        ]
        # Twice in a row: what is claimed just now is out of the stream a moment before it is out of our books.
        if lacking and lacking == self._lacking:
            log.warning("messages are missing from the stream of %s", ", ".join(lacking))
            await self._start_anew(session)
            lacking = []
        self._lacking = lacking
