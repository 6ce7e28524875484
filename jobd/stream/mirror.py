"""The mirror: what Redis holds of the jobs, in which epoch, and how it is filled again when it was lost.

Redis may be flushed, restarted or replaced by an old copy at any moment. Every call shows the epoch that Postgres
knows; when Redis does not have it, the epoch is raised and every live job is published again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from redis.exceptions import ResponseError

from jobd.job.history import last_events
from jobd.lifecycle.events import ALL_PLACES_BYTES, HistoryPlace, last_places, read_history
from jobd.lifecycle.outbox import live_jobs, raise_epoch, read_epoch
from jobd.lifecycle.read import read_jobs
from jobd.stream.changes import change_of_job, change_of_live
from jobd.stream.memory import Memory, is_full
from jobd.stream.project import EpochChanged, Projector, RedisBatch, in_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from jobd.job.history import Event
    from jobd.store.session import Session
    from jobd.stream.connection import Transport
    from jobd.stream.project import Call

log = logging.getLogger(__name__)

#: Live jobs that are published again at a time, after Redis was lost.
PAGE = 500
#: Bytes of a job's last events that are published again to a Redis which has forgotten the job.
REPLAY_BYTES = 256 * 1024

_T = TypeVar("_T")


class Mirror:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.memory = Memory()
        self.epoch = ""

    @property
    def projector(self) -> Projector:
        return Projector(self._transport.client)

    # -- epochs --------------------------------------------------------------------------------------------------

    async def meet(self, session: Session) -> bool:
        """At the start: whether this is the Redis that Postgres knows."""
        self.epoch = await read_epoch(session)
        try:
            await self.projector.project(self.epoch, [])
        except EpochChanged:
            return False
        return await self.projector.is_known_run()

    async def raise_epoch(self, session: Session) -> None:
        self.epoch = await raise_epoch(session)

    async def prepare(self, queues: Sequence[str], fences: Mapping[str, int]) -> None:
        await self.projector.prepare(self.epoch, queues, fences)

    async def tell_live_jobs(
        self, session: Session, queues: Sequence[str], most_waiting: int, without_mirror: Collection[str]
    ) -> None:
        """Publish all running jobs, and the first waiting ones of each queue, to an empty Redis."""
        count = 0
        mirrored = [queue for queue in queues if queue not in without_mirror]
        async for page in live_jobs(session, mirrored, page=PAGE, most_waiting=most_waiting):
            published = [live for live in page if live.queue not in without_mirror]
            for group in _groups(published):
                events = await _last_events(session, [live.job_id for live in group])
                changes = [change_of_live(live, past) for live, past in zip(group, events, strict=True) if past]
                await self.projector.project(self.epoch, changes)
            count += len(published)
        log.info("Redis was new or had forgotten; published %d live jobs (epoch %s)", count, self.epoch.split("/")[-1])

    # -- writing -------------------------------------------------------------------------------------------------

    async def send(self, session: Session, calls: Sequence[Call], batch: RedisBatch) -> Collection[str]:
        """Write a batch, also if Redis is full or has lost the hash of a job; the queues that took no offers."""
        try:
            lacking = await self.projector.send(self.epoch, calls)
        except ResponseError as error:
            if not is_full(error):
                raise
            await self.make_room()
            lacking = await self.projector.send(self.epoch, calls)  # what was published before changes nothing
        if lacking.missing or lacking.unoffered:
            await self._publish_whole(session, {*lacking.missing, *lacking.unoffered})
        if lacking.unoffered:
            again = set(lacking.unoffered)
            offers = [offer for offer in batch.offers if offer.job_id in again]
            await self.projector.send(self.epoch, in_calls(RedisBatch(offers=offers, modes=batch.modes)))
        await self.memory.look(self._transport.client)
        return lacking.refused

    async def make_room(self) -> None:
        await self.memory.make_room(self._transport.client)

    async def _publish_whole(self, session: Session, job_ids: Iterable[str]) -> None:
        """Jobs whose hash had expired or was lost: published whole, as they stand now."""
        jobs = list((await read_jobs(session, sorted(map(UUID, job_ids)))).values())
        for group in _groups(jobs):
            events = await _last_events(session, [job.id for job in group])
            changes = [change_of_job(job, past) for job, past in zip(group, events, strict=True) if past]
            await self.projector.project(self.epoch, changes)


def _groups(jobs: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Groups small enough for their events to be read in one query (ALL_PLACES_BYTES)."""
    size = ALL_PLACES_BYTES // REPLAY_BYTES
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


async def _last_events(session: Session, job_ids: Sequence[UUID]) -> list[list[Event]]:
    """What is published of each job's events: the last ones, after a gap if there are more; none: the job is gone."""
    places = await last_places(session, job_ids, REPLAY_BYTES)
    records = await read_history(session, [HistoryPlace(*pair) for pair in zip(job_ids, places, strict=True)])
    return [last_events(record, after) if record else [] for record, after in zip(records, places, strict=True)]
