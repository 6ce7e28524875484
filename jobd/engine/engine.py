"""The verbs behind group commit: hand in one item, await your own answer, share a commit with whoever else came.

A slot, an HTTP worker and the relay all call these same methods. Each verb has a batcher of its own; while a flush is
under way the next one gathers. What an answer means when the connection broke in the middle:

    enqueue                  the job's id says whether it is there
    claim                    the lease has the token that the ask brought
    complete, fail, release  idempotent by attempt: sent again, answered the same
    heartbeat                sent again: a lease that is renewed twice is renewed
    tell                     sent again if the holder counts what it tells, else unknown

Until Postgres is back the items wait, for at most `RETURN_S`; then their callers are told that the outcome is unknown.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import asyncpg
import msgspec

from jobd.config.task_settings import lease_ttls, retry_policies, retry_policy
from jobd.engine.batch import Batcher, NotApplied
from jobd.errors import ServerDown
from jobd.job.model import CancelRequested
from jobd.lifecycle import events, read_back
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
from jobd.lifecycle.redrive import redrive, redrive_once
from jobd.lifecycle.release import release
from jobd.store.faults import LineBroken
from jobd.store.postgres import check_writable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.engine.batch import Answer, Item
    from jobd.job.model import Canceled, Completed, LeaseLost, Requeued
    from jobd.lifecycle.events import Telling
    from jobd.lifecycle.report import Held, Refusal
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

#: At 500 a batch costs little more than its rows; a larger one only makes callers wait.
MAX_BATCH = 500
MAX_WAITING = 20_000
#: How long a restart of Postgres may take before callers are told that the outcome is unknown.
RETURN_S = 15.0
RETRY_S = 0.1
#: How long a job waits for another request with its idempotency key, and how often it is sent again meanwhile.
KEY_BUSY_S = 1.5
KEY_RETRY_S = 0.25
BEAT_S = 5.0

_T = TypeVar("_T")


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
        self._database = database
        self._config = config
        #: Called after every commit that others have to be told of.
        self._on_commit = on_commit
        #: Called for every running job that is to be canceled: its holder may be in this very process.
        self._on_cancel_requested = on_cancel_requested
        #: Whether the disk has less free space than `limits.min_free_mb`.
        self._is_disk_low = is_disk_low
        self._batchers: list[Batcher[Any, Any]] = []
        self._make_batchers()

    # -- verbs -------------------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueue one job; raises `batch.QueueFull` when too many callers wait already."""
        answer = await self._enqueues.submit_or_refuse(job)
        deadline = time.monotonic() + KEY_BUSY_S
        while isinstance(answer, KeyBusy) and time.monotonic() < deadline:
            await anyio.sleep(KEY_RETRY_S)
            answer = await self._enqueues.submit_or_refuse(job)
        return answer

    async def enqueue_whole(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue all of them or none, in a commit of their own. After `ServerDown`, their ids tell which it was."""
        database, limits = await self._open(), self._config().limits
        answers = await enqueue(database, jobs, max_queued=limits.max_queued, whole=True)
        self._on_commit()
        return answers

    async def claim(self, asks: Sequence[Ask]) -> list[ClaimAnswer | Exception]:
        """Claim what messages speak of. Its lease counts from here, however often the claim has to be sent."""
        sent_at = time.monotonic()
        answers = await self._claims.submit_many(list(zip(asks, fresh_ids(len(asks)), strict=True)))
        return [
            msgspec.structs.replace(answer, sent_at=sent_at) if isinstance(answer, ClaimedJob) else answer
            for answer in answers
        ]

    async def poll_claim(self, queues: Sequence[str], owner_id: str, most: int) -> list[ClaimedJob]:
        """Claim without messages. After `ServerDown` a claim may stand that nobody knows of; it ends with its lease."""
        database, config = await self._open(), self._config()
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
        return await self._heartbeats.submit_many(beats)

    async def complete(self, report: Completion) -> Completed | Refusal:
        return await self._completes.submit(report)

    async def complete_many(self, reports: Sequence[Completion]) -> list[Completed | Refusal | Exception]:
        return await self._completes.submit_many(reports)

    async def fail(self, report: Failure) -> Ended | Refusal:
        return await self._fails.submit(report)

    async def release(self, holder: Held) -> Requeued | Canceled | Refusal:
        return await self._releases.submit(holder)

    async def tell(self, telling: Telling) -> events.Answer:
        """Keep what a holder tells. One that counts (`told_n`) may send it again; another may not."""
        return await self._tellings.submit(telling)

    async def tell_many(self, tellings: Sequence[Telling]) -> list[events.Answer | Exception]:
        return await self._tellings.submit_many(tellings)

    def events_limit(self) -> events.Limit:
        return events.Limit(self._config().limits.job_events_mb << 20, self._is_disk_low())

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
        database, most = await self._open(), self._config().limits.max_queued
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
        """Flush until told to stop, then flush what is left."""
        try:
            async with anyio.create_task_group() as tasks:
                for batcher in self._batchers:
                    tasks.start_soon(batcher.run)
                handle.ready()
                while not handle.stop.is_set():
                    with anyio.move_on_after(BEAT_S):
                        await handle.stop.wait()
                    handle.beat()
                for batcher in self._batchers:
                    batcher.close()
        finally:
            self._make_batchers()  # what comes after a failure waits for the next run

    def _make_batchers(self) -> None:
        self._enqueues = self._batcher(self._flush_enqueues, self._read_back_enqueues)
        self._claims = self._batcher(self._flush_claims, self._read_back_claims)
        self._heartbeats = self._batcher(self._flush_heartbeats, _send_again)
        self._completes = self._batcher(self._flush_completes, _send_again)
        self._fails = self._batcher(self._flush_fails, _send_again)
        self._releases = self._batcher(self._flush_releases, _send_again)
        self._tellings = self._batcher(self._flush_tellings, _tell_again)
        self._batchers = [
            *(self._enqueues, self._claims, self._heartbeats),
            *(self._completes, self._fails, self._releases, self._tellings),
        ]

    def _batcher(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        look: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | NotApplied]]],
    ) -> Batcher[Item, Answer]:
        async def flush_and_tell(items: Sequence[Item]) -> Sequence[Answer]:
            answers = await flush(items)
            self._on_commit()
            return answers

        async def read_back(items: Sequence[Item]) -> Sequence[Answer | NotApplied]:
            await self._is_back()
            return await look(items)

        return Batcher(
            flush_and_tell,
            max_batch=MAX_BATCH,
            max_queue=MAX_WAITING,
            is_item_error=is_item_error,
            is_unknown_outcome=lambda error: isinstance(error, LineBroken),
            read_back=read_back,
        )

    async def _open(self) -> Database:
        """The database, if need be after a restart of its server: callers wait a moment rather than fail."""
        if not self._database.is_open:
            await self._is_back()
        return self._database

    async def _is_back(self) -> None:
        deadline = time.monotonic() + RETURN_S
        while True:
            try:
                await check_writable(self._database, self._database.url)
                return
            except ServerDown as error:
                if time.monotonic() > deadline:
                    raise ServerDown(str(error)) from error  # nothing was sent, so there is no unknown outcome
                await anyio.sleep(RETRY_S)

    # -- flushes -----------------------------------------------------------------------------------------------

    async def _flush_enqueues(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
        return await enqueue(await self._open(), jobs, max_queued=self._config().limits.max_queued)

    async def _read_back_enqueues(self, jobs: Sequence[NewJob]) -> Sequence[Enqueued | NotApplied]:
        there = await read_back.jobs_that_stand(self._database, [job.id for job in jobs])
        return [Created(job.id) if job.id in there else NotApplied() for job in jobs]

    async def _flush_claims(self, asks: Sequence[tuple[Ask, Fresh]]) -> Sequence[ClaimAnswer]:
        database, config = await self._open(), self._config()
        return await claim(
            database,
            [ask for ask, _ in asks],
            ttl_s=config.leases.ttl_s,
            task_ttls=lease_ttls(config),
            fresh=[ids for _, ids in asks],
        )

    async def _read_back_claims(self, asks: Sequence[tuple[Ask, Fresh]]) -> Sequence[ClaimAnswer | NotApplied]:
        stand = await own_claims(self._database, [ask for ask, _ in asks], [ids for _, ids in asks])
        return [NotApplied() if job is None else job for job in stand]

    async def _flush_heartbeats(self, beats: Sequence[Beat]) -> Sequence[Renewal | LeaseLost]:
        return await heartbeat(await self._open(), beats, ttl_s=self._config().leases.ttl_s)

    async def _flush_completes(self, reports: Sequence[Completion]) -> Sequence[Completed | Refusal]:
        return await complete(await self._open(), reports)

    async def _flush_fails(self, reports: Sequence[Failure]) -> Sequence[Ended | Refusal]:
        database, config = await self._open(), self._config()
        return await fail(database, reports, policy=retry_policy(config), task_policies=retry_policies(config))

    async def _flush_tellings(self, tellings: Sequence[Telling]) -> Sequence[events.Answer]:
        return await events.append_events(await self._open(), tellings, limit=self.events_limit())

    async def _flush_releases(self, holders: Sequence[Held]) -> Sequence[Requeued | Canceled | Refusal]:
        return await release(await self._open(), holders)


async def _tell_again(tellings: Sequence[Telling]) -> Sequence[NotApplied]:
    if any(telling.told_n is None for telling in tellings):
        raise ServerDown("the connection broke while events were being kept")
    return [NotApplied() for _ in tellings]


async def _send_again(items: Sequence[_T]) -> Sequence[NotApplied]:
    return [NotApplied() for _ in items]


def is_item_error(error: Exception) -> bool:
    """About the data of some item: whoever sent it shall hear of it, and nobody else."""
    return isinstance(error, (asyncpg.exceptions.DataError, asyncpg.IntegrityConstraintViolationError, ValueError))
