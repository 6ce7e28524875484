"""The relay, inward: workers that speak only Redis become holders of normal leases in Postgres.

Such a worker reads a stream as a consumer of the group, writes the job's hash and events, and acknowledges. What it
does is seen from outside, a few times a second:

    its message is pending          a claim, owner `redis:{consumer}`, with a lease like any other
    hash or events move             a heartbeat
    hash says done, error, canceled the final state, carried into Postgres
    its own events                  kept in Postgres, so that clients can follow them and come back to them
    nothing moves                   nothing: the lease ends and the reaper does what it does for anyone

A worker that has lost its job is a zombie. What it still writes is put right from Postgres for a while.
"""

from __future__ import annotations

import logging
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from msgspec.structs import asdict
from redis.exceptions import ResponseError

from jobd.engine.engine import is_item_error
from jobd.engine.results import ResultNotKept
from jobd.host.logs import job_fields
from jobd.job.model import LeaseLost
from jobd.lifecycle.claim import Ask, ClaimedJob, claims_that_stand
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.events import CHUNK_BYTES, CHUNK_EVENTS, EventBatch, OutOfStep, append_events
from jobd.lifecycle.fail import Failure
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.notices import EMITTED
from jobd.lifecycle.publish import queues_with_work
from jobd.lifecycle.read import note_raw_workers, read_jobs
from jobd.store.leader import LeaderLease, leading
from jobd.stream import connection as redis_connection
from jobd.stream.changes import correction_of
from jobd.stream.consumers import has_raw_workers
from jobd.stream.keys import EPOCH, GROUP, events_key, job_key, stream_of
from jobd.stream.message import read_message
from jobd.stream.project import TRIM, EpochChanged, Projector
from jobd.stream.raw_report import error_in, event_in, owner_of, result_in
from jobd.stream.scripts import script
from jobd.tasks.failure import error_text
from jobd.tasks.runner import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.engine.results import Results
    from jobd.lifecycle.events import Answer
    from jobd.lifecycle.read import Job
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

FOREIGN = script("foreign")
#: Seconds between two checks of the pending lists while raw workers are there.
LOOK_S = 0.25
#: Seconds between two checks of the pending lists while no raw worker was seen.
IDLE_LOOK_S = 1.0
#: Pending messages that are read at a time.
PAGE = 1000
#: Times within `leases.ttl_s` that Postgres is updated with the queues that raw workers read.
NOTES_PER_LEASE = 20
#: High-water mark of a raw worker's events in Redis in bytes, and what is left after trimming; as in project.lua.
MOST_EVENT_BYTES, KEPT_EVENT_BYTES = 1 << 20, 1 << 18
#: Largest second half of a stream id (`<ms>-<sequence>`), an unsigned 64-bit number.
LARGEST_SEQUENCE = (1 << 64) - 1
#: How long what a zombie (a worker that has lost its lease) writes is corrected, in multiples of `leases.ttl_s`.
ZOMBIE_LEASES = 10


class _Raw:
    """A message in the hands of a raw worker."""

    def __init__(self, stream: str, message_id: str, job: ClaimedJob) -> None:
        self.stream = stream
        self.message_id = message_id
        self.job = job
        #: Time of the hash and id of the newest event at the last check; another value is a heartbeat.
        self.signs: tuple[object, ...] = ()
        #: The last of its events that Postgres has; at first an id before the millisecond of the message that it took.
        self.last_event_id = f"{int(message_id.partition('-')[0]) - 1}-{LARGEST_SEQUENCE}"
        #: Number of its events that Postgres has.
        self.emitted_n = 0
        #: Bytes of its events that were kept in Postgres since its stream was last shortened.
        self.event_bytes = 0


class RawWorkers:
    def __init__(
        self,
        engine: Engine,
        database: Database,
        transport: Transport,
        config: Callable[[], Config],
        results: Results,
        names: OwnerNames | None = None,
    ) -> None:
        self._engine = engine
        self._database = database
        self._lease = LeaderLease(database, "raw_workers", names)
        self._transport = transport
        self._config = config
        self._results = results
        self._held: dict[tuple[str, str], _Raw] = {}
        #: When Postgres is next updated with the queues that raw workers read.
        self._note_at = 0.0
        #: Jobs that raw workers have lost, and until when they are watched.
        self._zombies: dict[UUID, float] = {}
        #: Version, status, time and lengths of the hash of such a job when it was right: its result, which may be
        #: large, is read again only after one of them has changed.
        self._right: dict[UUID, object] = {}

    async def run(self, handle: Handle) -> None:
        handle.ready()
        async with anyio.create_task_group() as tasks:
            with redis_connection.translated(self._transport.url, strict=False):
                while not handle.stop.is_set():
                    async with leading(self._lease, handle, tasks) as leads:
                        if leads:
                            await self._lead(handle)
            tasks.cancel_scope.cancel()

    async def _lead(self, handle: Handle) -> None:
        self._held, self._zombies = {}, {}
        while not handle.stop.is_set():
            await self._lease.check()
            await self.run_once(self._database)
            handle.beat()
            with anyio.move_on_after(LOOK_S if self._held or self._zombies else IDLE_LOOK_S):
                await handle.stop.wait()

    async def run_once(self, session: Session) -> None:
        queues = {*self._config().queues, *await queues_with_work(session)}
        read = [queue for queue in queues if await has_raw_workers(self._transport.client, stream_of(queue))]
        if time.monotonic() >= self._note_at:
            await note_raw_workers(session, read)
            self._note_at = time.monotonic() + self._config().leases.ttl_s / NOTES_PER_LEASE
        for queue in read:
            await self._meet_new_ones(session, stream_of(queue))
        if self._held:
            ended = await self._look_at_hashes()
            await self._keep_events(session)  # after the check of the hashes: nothing before a final status is missed
            for raw, status in ended:
                await self._end(raw, status)
        if self._zombies:
            await self._put_right(session)

    # -- claims ------------------------------------------------------------------------------------------------

    async def _meet_new_ones(self, session: Session, stream: str) -> None:
        """Claim for each message that a raw worker has in hand, or has acknowledged since the last check."""
        client = self._transport.client
        try:
            held = [message_id for where, message_id in self._held if where == stream]
            messages: Any = await client.register_script(FOREIGN)(keys=[stream], args=[PAGE, *held])
        except ResponseError as error:
            log.debug("no raw workers on %s: %s", stream, error)  # the stream is being created again
            return
        asks: list[Ask] = []
        for message_id, consumer, job_id, enqueue_id in messages:
            message = read_message({b"job_id": job_id, b"enqueue_id": enqueue_id})
            if message is None:
                await self._settle(stream, message_id.decode())
                continue
            asks.append(
                Ask(
                    job_id=message[0],
                    enqueue_id=message[1],
                    owner_id=owner_of(consumer),
                    stream=stream,
                    message_id=message_id.decode(),
                )
            )
        if asks:
            await self._claim(session, asks)

    async def _claim(self, session: Session, asks: Sequence[Ask]) -> None:
        """A claim that stands already is this worker's own, from before jobd was restarted."""
        standing = await claims_that_stand(session, asks)
        for ask, answer in zip(asks, await self._engine.claim(asks), strict=True):
            job = standing.get(ask.job_id) if not isinstance(answer, ClaimedJob) else answer
            if job is not None and ask.stream is not None and ask.message_id is not None:
                self._held[ask.stream, ask.message_id] = _Raw(ask.stream, ask.message_id, job)
            elif not isinstance(answer, Exception) and ask.stream is not None and ask.message_id is not None:
                fields = job_fields(ask.job_id)
                log.info("raw worker %s has a message of a job that is not to be had", ask.owner_id, extra=fields)
                self._watch_zombie(ask.job_id)
                await self._settle(ask.stream, ask.message_id)

    async def _settle(self, stream: str, message_id: str) -> None:
        await self._transport.client.xack(stream, GROUP, message_id)
        await self._transport.client.xdel(stream, message_id)

    # -- events ------------------------------------------------------------------------------------------------

    async def _keep_events(self, session: Session) -> None:
        """The events of raw workers since the last check; before their ends, after which nothing is kept."""
        raws = list(self._held.values())
        while raws:
            pipeline = self._transport.client.pipeline(transaction=False)
            for raw in raws:
                pipeline.xrange(events_key(raw.job.job_id), f"({raw.last_event_id}", count=CHUNK_EVENTS)
            answered = zip(raws, await pipeline.execute(raise_on_error=False), strict=True)
            whole = [(raw, entries) for raw, entries in answered if entries and not isinstance(entries, Exception)]
            chunks = [(raw, _chunk_of(entries)) for raw, entries in whole]
            batches = [_batch_of(raw, entries) for raw, entries in chunks]
            not_empty = [batch for batch in batches if batch.events]
            kept = await self._append(session, not_empty)
            self._engine.notify(EMITTED, not_empty, kept)
            answers = iter(kept)
            for (raw, entries), batch in zip(chunks, batches, strict=True):
                answer = next(answers) if batch.events else None
                _move_on(raw, entries, batch, answer)
                raw.event_bytes += sum(len(part) for _, fields in entries for part in fields.values())
                if raw.event_bytes > MOST_EVENT_BYTES:
                    await self._shorten(raw)
            raws = [raw for raw, entries in whole if raw.last_event_id != entries[-1][0].decode()]
            raws += [raw for raw, entries in chunks if len(entries) == CHUNK_EVENTS]

    async def _shorten(self, raw: _Raw) -> None:
        """Leave the last of its events in Redis, and those that are not kept in Postgres yet."""
        raw.event_bytes = 0
        trim = self._transport.client.register_script(TRIM)
        await trim(keys=[events_key(raw.job.job_id)], args=[KEPT_EVENT_BYTES, raw.last_event_id])

    async def _append(self, session: Session, batches: Sequence[EventBatch]) -> list[Answer | None]:
        """Store them in Postgres; None for a batch that Postgres refuses."""
        limit = self._engine.events_limit()
        try:
            return [*await append_events(session, batches, limit=limit, seen=True)]
        except Exception as error:
            if not is_item_error(error):
                raise
            log.warning("events of raw workers were refused: %s", type(error).__name__)
        answers: list[Answer | None] = []
        for batch in batches:
            try:
                answers += await append_events(session, [batch], limit=limit, seen=True)
            except Exception as error:
                if not is_item_error(error):
                    raise
                answers.append(None)
        return answers

    # -- heartbeats and ends -----------------------------------------------------------------------------------

    async def _look_at_hashes(self) -> list[tuple[_Raw, bytes]]:
        """Renew the leases of those whose hash or events have changed; return those who have ended, and how."""
        raws = list(self._held.values())
        pipeline = self._transport.client.pipeline(transaction=False)
        for raw in raws:
            pipeline.hmget(job_key(raw.job.job_id), ["status", "updated_ts"])
            pipeline.xrevrange(events_key(raw.job.job_id), count=1)
        answers = await pipeline.execute(raise_on_error=False)
        moving: list[_Raw] = []
        ended: list[tuple[_Raw, bytes]] = []
        for n, raw in enumerate(raws):
            fields, newest = answers[2 * n], answers[2 * n + 1]
            if isinstance(fields, Exception):
                continue
            status, updated_ts = fields
            if status in (b"done", b"error", b"canceled"):
                ended.append((raw, status))
                continue
            signs = (updated_ts, newest[0][0] if newest and not isinstance(newest, Exception) else None)
            if signs != raw.signs:
                raw.signs = signs
                moving.append(raw)
        if moving:
            await self._beat(moving)
        return ended

    async def _end(self, raw: _Raw, status: bytes) -> None:
        """Carry the end of one job into Postgres. Whatever is wrong with it, the other jobs go on."""
        try:
            answer = await self._report(raw, status)
        except Exception as failure:  # tried again at the next check; if it never succeeds, the lease expires
            fields = job_fields(raw.job.job_id, raw.job.attempt_no, raw.job.traceparent)
            log.debug("the end of a job is reported later: %s", failure, extra=fields)
            return
        del self._held[raw.stream, raw.message_id]
        if not answer.ok:
            self._watch_zombie(raw.job.job_id)

    async def _report(self, raw: _Raw, status: bytes) -> Any:
        if status != b"done":
            error = error_in(await self._field(raw, "error"))
            if status == b"canceled":
                await self._engine.cancel([raw.job.job_id])
            return await self._fail(raw, error)
        try:
            return await self._engine.complete(await self._completion(raw))
        except TaskFailed as error:
            return await self._fail(raw, error_text(error), retryable=error.retryable)
        except Exception as error:
            if not is_item_error(error):
                raise
            failed = TaskFailed("bad_result", f"the result cannot be stored: {type(error).__name__}", retryable=False)
            return await self._fail(raw, error_text(failed))

    async def _completion(self, raw: _Raw) -> Completion:
        """The report of a job that is done, its result inline or in a file; raises TaskFailed."""
        limit = self._config().limits.result_bytes
        size = int(await self._transport.client.hstrlen(job_key(raw.job.job_id), "result"))
        if size > limit:
            raise TaskFailed(
                "result_too_large",
                f"the result has {size} bytes, more than limits.result_bytes = {limit}; keep it elsewhere and write"
                " where",
                retryable=False,
            )
        field = await self._field(raw, "result")
        result = await to_thread.run_sync(result_in, field, limiter=self._results.limiter)
        try:
            ref = await self._results.keep(raw.job, result) if result else None
        except ResultNotKept as error:
            raise TaskFailed(error.code, str(error)) from None
        text = result.decode() if result and ref is None else None
        return Completion(**asdict(raw.job.held), result=text, result_ref=ref)

    async def _field(self, raw: _Raw, name: str) -> bytes:
        value: Any = await self._transport.client.hget(job_key(raw.job.job_id), name)
        return value or b""

    async def _fail(self, raw: _Raw, error: str, *, retryable: bool = False) -> Any:
        return await self._engine.fail(Failure(**asdict(raw.job.held), error=error, retryable=retryable))

    async def _beat(self, raws: Sequence[_Raw]) -> None:
        beats = [LeaseProof(resource_id=raw.job.job_id, lease_token=raw.job.lease_token) for raw in raws]
        for raw, answer in zip(raws, await self._engine.heartbeat(beats), strict=True):
            if isinstance(answer, LeaseLost):
                del self._held[raw.stream, raw.message_id]
                self._watch_zombie(raw.job.job_id)

    # -- zombies -----------------------------------------------------------------------------------------------

    def _watch_zombie(self, job_id: UUID) -> None:
        self._zombies[job_id] = time.monotonic() + ZOMBIE_LEASES * self._config().leases.ttl_s

    async def _put_right(self, session: Session) -> None:
        """Publish the jobs again whose hash, written by a worker that had lost them, differs from Postgres."""
        now = time.monotonic()
        self._zombies = {job_id: until for job_id, until in self._zombies.items() if until > now}
        self._right = {job_id: signs for job_id, signs in self._right.items() if job_id in self._zombies}
        jobs = await read_jobs(session, list(self._zombies))
        held = {raw.job.job_id for raw in self._held.values()}  # by another worker, who may have ended just now
        wrong = [job for job in jobs.values() if job.id not in held and await self._says_otherwise(job)]
        epoch: Any = await self._transport.client.get(EPOCH)
        if wrong and epoch is not None:
            try:
                await Projector(self._transport.client).project(epoch.decode(), [correction_of(job) for job in wrong])
            except EpochChanged:
                return  # the relay publishes everything again
            log.warning("put right %d jobs that a raw worker wrote to after it had lost them", len(wrong))

    async def _says_otherwise(self, job: Job) -> bool:
        """Whether the hash differs from what a correction would write; False until the relay has published the job."""
        correction = correction_of(job)
        right = dict(zip(correction.fields[::2], correction.fields[1::2], strict=True))
        client, key, names = self._transport.client, job_key(job.id), ["status", "result", "error"]
        pipeline: Any = client.pipeline(transaction=False)
        pipeline.hmget(key, ["jobd_version", "status", "updated_ts"]).hstrlen(key, "result").hstrlen(key, "error")
        signs = correction.version, await pipeline.execute()
        known = signs[1][0][0] or b""
        if self._right.get(job.id) == signs or not known.isdigit() or int(known) < correction.version:
            return False
        if await client.hmget(key, names) != [right[name].encode() for name in names]:
            return True
        self._right[job.id] = signs
        return False


def _chunk_of(entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> Sequence[tuple[bytes, dict[bytes, bytes]]]:
    """The first entries, up to the size of a chunk (CHUNK_BYTES), and at least one."""
    sizes = accumulate(sum(map(len, fields.values())) for _, fields in entries)
    return entries[: 1 + sum(size < CHUNK_BYTES for size in sizes)]


def _batch_of(raw: _Raw, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> EventBatch:
    events = [event for _, fields in entries if (event := event_in(fields)) is not None]
    return EventBatch(job_id=raw.job.job_id, lease_token=raw.job.lease_token, events=events, emitted_n=raw.emitted_n)


def _move_on(raw: _Raw, entries: Sequence[tuple[bytes, Any]], batch: EventBatch, answer: Answer | None) -> None:
    """Advance past the entries that were kept. After OutOfStep another node has kept some: take over its count."""
    if isinstance(answer, OutOfStep):
        raw.emitted_n = answer.emitted_n
    elif answer is not None:
        raw.emitted_n += len(batch.events)
    raw.last_event_id = entries[-1][0].decode()
