"""The verbs behind group commit: hand in one item, await your own answer, share a commit with those who came meanwhile.

A slot, an HTTP worker and the relay all call these same methods. Each verb has a batcher of its own; while a flush is
under way the next one gathers. `BatchedVerb` and the table under it say what flushes a batch, and what is made of it
when the connection broke in the middle: read back what came of each item, or send it again.

Until Postgres is back the items wait, for at most `RETURN_S`; then their callers get OutcomeUnknown.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final, Generic

import anyio
import asyncpg
import msgspec

from jobd.config.task_settings import lease_ttls, retry_policies, retry_policy
from jobd.engine.batch import Answer, Batcher, Item, NotApplied
from jobd.errors import ServerDown
from jobd.job.model import CancelRequested
from jobd.lifecycle import events
from jobd.lifecycle.cancel import CancelAnswer, cancel
from jobd.lifecycle.claim import (
    Ask,
    ClaimAnswer,
    ClaimedJob,
    Fresh,
    claim,
    fresh_ids,
    own_claims,
    poll_claim,
)
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.enqueue import Created, Enqueued, KeyBusy, NewJob, QueueFull, enqueue
from jobd.lifecycle.fail import Ended, Failure, fail
from jobd.lifecycle.heartbeat import Beat, Renewal, heartbeat
from jobd.lifecycle.read import pause_queue
from jobd.lifecycle.read_back import jobs_that_stand
from jobd.lifecycle.redrive import redrive, redrive_once
from jobd.lifecycle.release import release
from jobd.store.faults import LineBroken
from jobd.store.postgres import check_writable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.job.model import Canceled, Completed, LeaseLost, Requeued
    from jobd.lifecycle.events import EventBatch
    from jobd.lifecycle.report import Held, Refusal
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

#: Items of one flush, and so rows of one commit. At 500 the cost per item is flat; more would only add latency.
MAX_BATCH = 500
#: Items that wait for a flush; callers beyond that wait for room, or are refused (enqueue).
MAX_WAITING = 20_000
#: Seconds that a restart of Postgres may take before callers get OutcomeUnknown.
RETURN_S = 15.0
#: Seconds between two tries to reach a Postgres that is away.
RETRY_S = 0.1
#: Seconds that a job waits for another transaction that holds its idempotency key.
KEY_BUSY_S = 1.5
#: Seconds between two tries meanwhile.
KEY_RETRY_S = 0.25
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0


class BatchedVerb(Generic[Item, Answer]):
    """A verb behind group commit."""

    def __init__(
        self,
        flush: Callable[[Engine, Sequence[Item]], Awaitable[Sequence[Answer]]],
        resolve: Callable[[Engine, Sequence[Item]], Awaitable[Sequence[Answer | NotApplied]]],
    ) -> None:
        #: Runs a batch in one commit; an answer for each item.
        self.flush = flush
        #: After a broken connection: the answer to each item that was applied, NotApplied for one to be sent again.
        self.resolve = resolve


# -- how each verb flushes a batch -------------------------------------------------------------------------------------


async def _enqueue(engine: Engine, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
    return await enqueue(engine.database, jobs, max_queued=engine.config().limits.max_queued)


async def _claim(engine: Engine, asks: Sequence[tuple[Ask, Fresh]]) -> Sequence[ClaimAnswer]:
    config = engine.config()
    return await claim(
        engine.database,
        [ask for ask, _ in asks],
        ttl_s=config.leases.ttl_s,
        task_ttls=lease_ttls(config),
        fresh=[ids for _, ids in asks],
    )


async def _heartbeat(engine: Engine, beats: Sequence[Beat]) -> Sequence[Renewal | LeaseLost]:
    return await heartbeat(engine.database, beats, ttl_s=engine.config().leases.ttl_s)


async def _complete(engine: Engine, reports: Sequence[Completion]) -> Sequence[Completed | Refusal]:
    return await complete(engine.database, reports)


async def _fail(engine: Engine, reports: Sequence[Failure]) -> Sequence[Ended | Refusal]:
    config = engine.config()
    return await fail(engine.database, reports, policy=retry_policy(config), task_policies=retry_policies(config))


async def _release(engine: Engine, holders: Sequence[Held]) -> Sequence[Requeued | Canceled | Refusal]:
    return await release(engine.database, holders)


async def _emit(engine: Engine, batches: Sequence[EventBatch]) -> Sequence[events.Answer]:
    return await events.append_events(engine.database, batches, limit=engine.events_limit())


# -- what came of a batch whose connection broke -----------------------------------------------------------------------


async def _created(engine: Engine, jobs: Sequence[NewJob]) -> Sequence[Created | NotApplied]:
    """The job's id says whether it is there."""
    there = await jobs_that_stand(engine.database, [job.id for job in jobs])
    return [Created(job.id) if job.id in there else NotApplied() for job in jobs]


async def _own_claims(engine: Engine, asks: Sequence[tuple[Ask, Fresh]]) -> Sequence[ClaimedJob | NotApplied]:
    """The lease has the token that the ask brought."""
    stand = await own_claims(engine.database, [ask for ask, _ in asks], [ids for _, ids in asks])
    return [NotApplied() if job is None else job for job in stand]


async def _send_again(_: Engine, items: Sequence[object]) -> Sequence[NotApplied]:
    """Reports are idempotent by attempt, and a lease that is renewed twice is renewed."""
    return [NotApplied() for _ in items]


async def _send_again_if_counted(_: Engine, batches: Sequence[EventBatch]) -> Sequence[NotApplied]:
    """Events are kept once if their holder counts them; the outcome of others is unknown."""
    if any(batch.emitted_n is None for batch in batches):
        raise ServerDown("the connection broke while events were being kept")
    return [NotApplied() for _ in batches]


# -- the table of batched verbs ----------------------------------------------------------------------------------------

ENQUEUE: Final = BatchedVerb(_enqueue, resolve=_created)
CLAIM: Final = BatchedVerb(_claim, resolve=_own_claims)
HEARTBEAT: Final = BatchedVerb(_heartbeat, resolve=_send_again)
COMPLETE: Final = BatchedVerb(_complete, resolve=_send_again)
FAIL: Final = BatchedVerb(_fail, resolve=_send_again)
RELEASE: Final = BatchedVerb(_release, resolve=_send_again)
EMIT: Final = BatchedVerb(_emit, resolve=_send_again_if_counted)
VERBS: Final[tuple[BatchedVerb[Any, Any], ...]] = (ENQUEUE, CLAIM, HEARTBEAT, COMPLETE, FAIL, RELEASE, EMIT)


class Engine:
    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        on_commit: Callable[[], None] = lambda: None,
        *,
        on_cancel_requested: Callable[[UUID], None] = lambda _: None,
        is_disk_low: Callable[[], bool] = lambda: False,
    ) -> None:
        self.database = database
        self.config = config
        #: Called after every commit that wrote an outbox row, to wake the relay.
        self._on_commit = on_commit
        #: Called for every running job that is to be canceled: its holder may be in this very process.
        self._on_cancel_requested = on_cancel_requested
        #: Whether the disk has less free space than `limits.min_free_mb`.
        self._is_disk_low = is_disk_low
        self._make_batchers()

    # -- verbs -------------------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueue one job; raises `batch.BatcherFull` when too many callers wait already."""
        answer = await self._batcher(ENQUEUE).submit_or_refuse(job)
        deadline = time.monotonic() + KEY_BUSY_S
        while isinstance(answer, KeyBusy) and time.monotonic() < deadline:
            await anyio.sleep(KEY_RETRY_S)
            answer = await self._batcher(ENQUEUE).submit_or_refuse(job)
        return answer

    async def enqueue_whole(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue all of them or none, in a commit of their own. After `ServerDown`, their ids say which it was."""
        database, limits = await self._open(), self.config().limits
        answers = await enqueue(database, jobs, max_queued=limits.max_queued, whole=True)
        self._on_commit()
        return answers

    async def claim(self, asks: Sequence[Ask]) -> list[ClaimAnswer | Exception]:
        """Claim what messages speak of. Its lease counts from here, however often the claim has to be sent."""
        sent_at = time.monotonic()
        answers = await self._batcher(CLAIM).submit_many(list(zip(asks, fresh_ids(len(asks)), strict=True)))
        return [
            msgspec.structs.replace(answer, sent_at=sent_at) if isinstance(answer, ClaimedJob) else answer
            for answer in answers
        ]

    async def poll_claim(self, queues: Sequence[str], owner_id: str, most: int) -> list[ClaimedJob]:
        """Claim without messages. After `ServerDown` a claim may stand that nobody knows of; it ends with its lease."""
        database, config = await self._open(), self.config()
        sent_at = time.monotonic()
        claimed = await poll_claim(
            database,
            queues,
            owner_id=owner_id,
            most=most,
            ttl_s=config.leases.ttl_s,
            task_ttls=lease_ttls(config),
        )
        if claimed:
            self._on_commit()
        return [msgspec.structs.replace(job, sent_at=sent_at) for job in claimed]

    async def heartbeat(self, beats: Sequence[Beat]) -> list[Renewal | LeaseLost | Exception]:
        return await self._batcher(HEARTBEAT).submit_many(beats)

    async def complete(self, report: Completion) -> Completed | Refusal:
        return await self._batcher(COMPLETE).submit(report)

    async def complete_many(self, reports: Sequence[Completion]) -> list[Completed | Refusal | Exception]:
        return await self._batcher(COMPLETE).submit_many(reports)

    async def fail(self, report: Failure) -> Ended | Refusal:
        return await self._batcher(FAIL).submit(report)

    async def release(self, holder: Held) -> Requeued | Canceled | Refusal:
        return await self._batcher(RELEASE).submit(holder)

    async def emit(self, batch: EventBatch) -> events.Answer:
        """Keep events that a handler emitted. A holder that counts them (`emitted_n`) may send a batch again."""
        return await self._batcher(EMIT).submit(batch)

    async def emit_many(self, batches: Sequence[EventBatch]) -> list[events.Answer | Exception]:
        return await self._batcher(EMIT).submit_many(batches)

    def events_limit(self) -> events.Limit:
        return events.Limit(self.config().limits.job_events_mb << 20, self._is_disk_low())

    async def cancel(self, job_ids: Sequence[UUID]) -> list[CancelAnswer]:
        """Cancel, which may be asked for any number of times."""
        database = await self._open()
        answers = await cancel(database, job_ids)
        self._on_commit()
        for job_id, answer in zip(job_ids, answers, strict=True):
            if isinstance(answer, CancelRequested):
                self._on_cancel_requested(job_id)
        return answers

    async def redrive(self, job_ids: Sequence[UUID], *, again: bool = True) -> dict[UUID, UUID] | QueueFull:
        """Run dead letters again, the new job of each; with `again` also those that do so already."""
        database, most = await self._open(), self.config().limits.max_queued
        if again:
            redriven = await redrive(database, job_ids, max_queued=most)
        else:
            redriven = await redrive_once(database, job_ids, max_queued=most)
        self._on_commit()
        return redriven

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        database = await self._open()
        await pause_queue(database, queue, paused=paused)
        self._on_commit()

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        """Flush until asked to stop, then flush what is left."""
        try:
            async with anyio.create_task_group() as tasks:
                for batcher in self._batchers.values():
                    tasks.start_soon(batcher.run)
                handle.ready()
                while not handle.stop.is_set():
                    with anyio.move_on_after(BEAT_S):
                        await handle.stop.wait()
                    handle.beat()
                for batcher in self._batchers.values():
                    batcher.close()
        finally:
            self._make_batchers()  # what comes after a failure waits for the next run

    def _make_batchers(self) -> None:
        self._batchers = {
            verb: Batcher(
                functools.partial(self._flush, verb),
                max_batch=MAX_BATCH,
                max_queue=MAX_WAITING,
                is_item_error=is_item_error,
                is_unknown_outcome=lambda error: isinstance(error, LineBroken),
                read_back=functools.partial(self._resolve, verb),
            )
            for verb in VERBS
        }

    def _batcher(self, verb: BatchedVerb[Item, Answer]) -> Batcher[Item, Answer]:
        return self._batchers[verb]

    async def _flush(self, verb: BatchedVerb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer]:
        await self._open()
        answers = await verb.flush(self, items)
        self._on_commit()
        return answers

    async def _resolve(self, verb: BatchedVerb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer | NotApplied]:
        await self._is_back()
        return await verb.resolve(self, items)

    async def _open(self) -> Database:
        """The database, if need be after a restart of its server: callers wait a moment rather than fail."""
        if not self.database.is_open:
            await self._is_back()
        return self.database

    async def _is_back(self) -> None:
        deadline = time.monotonic() + RETURN_S
        while True:
            try:
                await check_writable(self.database, self.database.url)
                return
            except ServerDown as error:
                if time.monotonic() > deadline:
                    raise ServerDown(str(error)) from error  # nothing was sent, so there is no unknown outcome
                await anyio.sleep(RETRY_S)


def is_item_error(error: Exception) -> bool:
    """The error is about the data of one item of the batch: its sender gets it, and no other caller."""
    return isinstance(error, (asyncpg.exceptions.DataError, asyncpg.IntegrityConstraintViolationError, ValueError))
