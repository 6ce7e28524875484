"""The verbs behind group commit: hand in one item, await your own answer, share a commit with those who came meanwhile.

A slot, an HTTP worker and the relay all call these same methods. Each verb has a batcher of its own; while a flush is
under way the next one gathers. `BatchedVerb` and the table under it say what flushes a batch, and what is made of it
when the connection broke in the middle: read back what came of each item, or send it again.

Until Postgres is back the items wait, for at most `RETURN_S`; then their callers get OutcomeUnknown.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict

import anyio
import asyncpg
import msgspec

from jobd.config.task_settings import lease_ttls, retry_policies, retry_policy
from jobd.engine.batch import Answer, Batcher, Item, NotApplied
from jobd.engine.demand import NoDemand
from jobd.engine.limits import with_turns
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
)
from jobd.lifecycle.complete import Completion, complete, complete_and_take
from jobd.lifecycle.enqueue import REFUSED, Created, Enqueued, KeyBusy, NewJob, QueueFull, enqueue, enqueue_and_take
from jobd.lifecycle.fail import Ended, Failure, fail
from jobd.lifecycle.groups import create_group, seal_group
from jobd.lifecycle.heartbeat import Renewal, heartbeat
from jobd.lifecycle.inputs import read_inputs
from jobd.lifecycle.notices import (
    CANCELED,
    CLAIMED,
    EMITTED,
    ENDED,
    ENQUEUED,
    GIVEN_UP,
    REDRIVEN,
    SEALED,
    TAKEN,
    ChangeKind,
    Changes,
)
from jobd.lifecycle.pause import pause_all, pause_task
from jobd.lifecycle.prune import Pruned, delete_jobs
from jobd.lifecycle.read import pause_queue
from jobd.lifecycle.read_back import jobs_that_stand
from jobd.lifecycle.redrive import redrive, redrive_once
from jobd.lifecycle.release import Release, release
from jobd.lifecycle.take import TakeTerms, take
from jobd.lifecycle.take_fitting import take_fitting
from jobd.lifecycle.take_resident import take_resident
from jobd.lifecycle.tally import Tally
from jobd.store.faults import LineBroken
from jobd.store.postgres import check_writable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.engine.demand import Demand, Reservation
    from jobd.job.inputs import Input
    from jobd.job.model import Canceled, Completed, LeaseLost, Requeued
    from jobd.lifecycle.events import EventBatch
    from jobd.lifecycle.groups import NewGroup
    from jobd.lifecycle.lease import LeaseProof
    from jobd.lifecycle.report import Held, Refusal
    from jobd.lifecycle.settle import SettledPage
    from jobd.lifecycle.take import Want
    from jobd.lifecycle.take_fitting import Fitting, FittingJobs
    from jobd.lifecycle.take_resident import PutBehind
    from jobd.store.postgres import Database
    from jobd.store.session import BeforeCommit
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

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
#: Seconds between two tries to book an idempotency key that another transaction holds.
KEY_RETRY_S = 0.25
#: Seconds after the last sign of jobs with limit keys for which commits are followed by an admission at once. Later
#: ones are noticed by the dispatcher's tick.
LIMITS_S = 30.0
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0

#: Of a new job, for the tally.
_names_of = attrgetter("queue", "task")


class LeaseTimes(TypedDict):
    """How long the leases of claimed jobs last, in seconds: of tasks that differ, and of all others."""

    ttl_s: float
    task_ttls: Mapping[str, float]


class BatchedVerb(Generic[Item, Answer]):
    """A verb behind group commit."""

    def __init__(
        self,
        flush: Callable[[Engine, Sequence[Item]], Awaitable[Sequence[Answer]]],
        resolve: Callable[[Engine, Sequence[Item]], Awaitable[Sequence[Answer | NotApplied]]],
        changes: ChangeKind | None = None,
        *,
        reserve: Callable[[Engine, Sequence[Item]], Reservation | None] = lambda engine, items: None,
        flush_and_take: Callable[..., Awaitable[tuple[Sequence[Answer], list[ClaimedJob]]]] | None = None,
        leaves_work: Callable[[Demand, Sequence[Item], Sequence[Answer], Sequence[ClaimedJob]], None] | None = None,
        count: Callable[[Tally, Sequence[Item], Sequence[Answer | NotApplied]], None] = lambda tally, items, answers: (
            None
        ),
    ) -> None:
        #: Runs a batch in one commit; an answer for each item.
        self.flush = flush
        #: After a broken connection: the answer to each item that was applied, NotApplied for one to be sent again.
        self.resolve = resolve
        #: How items and answers become notices; None: nothing that anybody waits for.
        self.changes = changes
        #: Jobs that are wanted in this process and can be taken by the same commit.
        self.reserve = reserve
        #: As `flush`, and takes what is wanted.
        self.flush_and_take = flush_and_take
        #: Says which queues may have waiting jobs after the commit.
        self.leaves_work = leaves_work
        #: Adds to the tally what the items and answers show; `flush` itself adds what only its statement knows.
        self.count = count


# -- how each verb flushes a batch -------------------------------------------------------------------------------------


async def _enqueue(engine: Engine, jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
    return await enqueue(engine.database, jobs, max_queued=engine.config().limits.max_queued)


def _reserve_for_new(engine: Engine, jobs: Sequence[NewJob]) -> Reservation | None:
    return engine.demand.reserve(Counter(job.queue for job in jobs if _is_due(job)))


async def _enqueue_and_take(
    engine: Engine, jobs: Sequence[NewJob], wants: Sequence[Want]
) -> tuple[Sequence[Enqueued], list[ClaimedJob]]:
    most = engine.config().limits.max_queued
    return await enqueue_and_take(engine.database, jobs, wants, max_queued=most, **engine.lease_times())


def _left_by_enqueue(
    demand: Demand, jobs: Sequence[NewJob], answers: Sequence[Enqueued], taken: Sequence[ClaimedJob]
) -> None:
    left = Counter(
        job.queue
        for job, answer in zip(jobs, answers, strict=True)
        if isinstance(answer, Created) and not job.depends_on
    )
    left.subtract(job.queue for job in taken)
    demand.note_work([queue for queue, number in left.items() if number > 0])
    if not all(map(_is_due, jobs)):
        demand.note_delayed()


def _count_created(tally: Tally, jobs: Sequence[NewJob], answers: Sequence[Enqueued | NotApplied]) -> None:
    created = (isinstance(answer, Created) for answer in answers)
    tally.submitted(map(_names_of, compress(jobs, created)))


def _is_due(job: NewJob) -> bool:
    """Whether its own commit can take it: one with a key has to be admitted first, one with dependencies is held."""
    return not job.delay_s and job.run_after is None and job.limit_key is None and not job.depends_on


async def _claim(engine: Engine, asks: Sequence[tuple[Ask, Fresh]]) -> Sequence[ClaimAnswer]:
    config = engine.config()
    return await claim(
        engine.database,
        [ask for ask, _ in asks],
        ttl_s=config.leases.ttl_s,
        task_ttls=lease_ttls(config),
        fresh=[ids for _, ids in asks],
        tally=engine.tally,
    )


def _count_claimed(tally: Tally, _: Sequence[object], answers: Sequence[ClaimAnswer | NotApplied]) -> None:
    tally.started(answer for answer in answers if isinstance(answer, ClaimedJob))


async def _heartbeat(engine: Engine, beats: Sequence[LeaseProof]) -> Sequence[Renewal | LeaseLost]:
    return await heartbeat(engine.database, beats, ttl_s=engine.config().leases.ttl_s)


async def _complete(engine: Engine, reports: Sequence[Completion]) -> Sequence[Completed | Refusal]:
    return await complete(engine.database, reports, tally=engine.tally)


def _reserve_for_free(engine: Engine, _: Sequence[Completion]) -> Reservation | None:
    return engine.demand.reserve()


async def _complete_and_take(
    engine: Engine, reports: Sequence[Completion], wants: Sequence[Want]
) -> tuple[Sequence[Completed | Refusal], list[ClaimedJob]]:
    return await complete_and_take(engine.database, reports, wants, tally=engine.tally, **engine.lease_times())


async def _fail(engine: Engine, reports: Sequence[Failure]) -> Sequence[Ended | Refusal]:
    config = engine.config()
    policies = retry_policies(config)
    return await fail(engine.database, reports, policy=retry_policy(config), task_policies=policies, tally=engine.tally)


def _left_by_fail(demand: Demand, *_: object) -> None:
    demand.note_delayed()  # a retry has its backoff


async def _release(engine: Engine, holders: Sequence[Held]) -> Sequence[Requeued | Canceled | Refusal]:
    return await release(engine.database, holders, tally=engine.tally)


def _left_by_release(demand: Demand, holders: Sequence[Held], *_: object) -> None:
    demand.note_work()
    if any(isinstance(holder, Release) and holder.delay_s for holder in holders):
        demand.note_delayed()


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

ENQUEUE: Final = BatchedVerb(
    _enqueue,
    resolve=_created,
    changes=ENQUEUED,
    reserve=_reserve_for_new,
    flush_and_take=_enqueue_and_take,
    leaves_work=_left_by_enqueue,
    count=_count_created,
)
CLAIM: Final = BatchedVerb(_claim, resolve=_own_claims, changes=CLAIMED, count=_count_claimed)
HEARTBEAT: Final = BatchedVerb(_heartbeat, resolve=_send_again)
COMPLETE: Final = BatchedVerb(
    _complete, resolve=_send_again, changes=ENDED, reserve=_reserve_for_free, flush_and_take=_complete_and_take
)
FAIL: Final = BatchedVerb(_fail, resolve=_send_again, changes=ENDED, leaves_work=_left_by_fail)
RELEASE: Final = BatchedVerb(_release, resolve=_send_again, changes=ENDED, leaves_work=_left_by_release)
EMIT: Final = BatchedVerb(_emit, resolve=_send_again_if_counted, changes=EMITTED)
VERBS: Final[tuple[BatchedVerb[Any, Any], ...]] = (ENQUEUE, CLAIM, HEARTBEAT, COMPLETE, FAIL, RELEASE, EMIT)


class Engine:
    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        on_commit: Callable[[], None] = lambda: None,
        *,
        on_changes: Callable[[Changes], None] = lambda _: None,
        on_cancel_requested: Callable[[UUID], None] = lambda _: None,
        is_disk_low: Callable[[], bool] = lambda: False,
    ) -> None:
        self.database = database
        self.config = config
        #: Called after every commit that wrote an outbox row, to wake the relay.
        self.wake_relay = on_commit
        #: Called with what a commit has changed, for those in this process who wait for it.
        self._on_changes = on_changes
        #: Called for every running job that is to be canceled: its holder may be in this very process.
        self._on_cancel_requested = on_cancel_requested
        #: Whether the disk has less free space than `limits.min_free_mb`.
        self._is_disk_low = is_disk_low
        #: Until when, by time.monotonic(), commits may concern jobs with limit keys.
        self._limited_until = 0.0
        #: Who wants jobs; the dispatcher puts itself here.
        self.demand: Demand = NoDemand()
        #: What the commits of this node did.
        self.tally = Tally(lambda name: name in config().queues, lambda name: name in config().tasks)
        #: Set, and replaced, when the resolver of this node has moved something.
        self._settled = anyio.Event()
        self._make_batchers()

    # -- verbs -------------------------------------------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueue one job; raises `batch.BatcherFull` when too many callers wait already."""
        (job,) = self._with_keys([job])
        answer = await self._batcher(ENQUEUE).submit_or_refuse(job)
        deadline = time.monotonic() + KEY_BUSY_S
        while isinstance(answer, KeyBusy) and time.monotonic() < deadline:
            await anyio.sleep(KEY_RETRY_S)
            answer = await self._batcher(ENQUEUE).submit_or_refuse(job)
        return answer

    def _with_keys(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        jobs = with_turns(jobs, self.config())
        if any(job.limit_key is not None for job in jobs):
            self.note_limits()
        return jobs

    def note_limits(self) -> None:
        """There are jobs with limit keys: for a while, each commit of this node is followed by an admission."""
        self._limited_until = time.monotonic() + LIMITS_S

    def limits_changed(self) -> None:
        """To be called after a commit that has set limits: what they hold back no more is admitted at once."""
        self.note_limits()
        self._on_commit()

    def _on_commit(self) -> None:
        self.wake_relay()
        if time.monotonic() < self._limited_until:
            self.demand.note_limited()

    async def enqueue_whole(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue all of them or none, in a commit of their own. After `ServerDown`, their ids say which it was."""
        database, limits = await self._open(), self.config().limits
        jobs = self._with_keys(jobs)
        answers = await enqueue(database, jobs, max_queued=limits.max_queued, whole=True)
        if not any(isinstance(answer, REFUSED) for answer in answers):  # else none of them is there
            self.enqueued(jobs, answers)
        return answers

    def enqueued(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        """To be called after a commit that enqueued jobs beside the batches, in the caller's own transaction."""
        self._on_commit()
        _count_created(self.tally, jobs, answers)
        self.notify(ENQUEUED, jobs, answers)
        _left_by_enqueue(self.demand, jobs, answers, ())

    async def claim(self, asks: Sequence[Ask]) -> list[ClaimAnswer | Exception]:
        """Claim what messages speak of. Its lease counts from here, however often the claim has to be sent."""
        sent_at = time.monotonic()
        answers = await self._batcher(CLAIM).submit_many(list(zip(asks, fresh_ids(len(asks)), strict=True)))
        return [
            msgspec.structs.replace(answer, sent_at=sent_at) if isinstance(answer, ClaimedJob) else answer
            for answer in answers
        ]

    async def take(self, wants: Sequence[Want], *, any_mode: bool = False) -> list[ClaimedJob]:
        """Take jobs without messages. After `ServerDown` a claim may stand that nobody knows of: see `stray_claims`."""
        database = await self._open()
        jobs = await take(database, wants, any_mode=any_mode, **self.lease_times())
        self._taken(jobs)
        return jobs

    async def take_fitting(self, wants: Sequence[Want], fitting: Fitting, *, any_mode: bool = False) -> FittingJobs:
        """As `take`, of queues in which some jobs need memory."""
        database = await self._open()
        taken = await take_fitting(database, TakeTerms(wants, any_mode=any_mode, **self.lease_times()), fitting)
        self._taken(taken.jobs)
        return taken

    async def take_resident(
        self, wants: Sequence[Want], behind: PutBehind, *, any_mode: bool = False
    ) -> list[ClaimedJob]:
        """As `take`, of queues with jobs of several models, of which one is loaded."""
        database = await self._open()
        jobs = await take_resident(database, TakeTerms(wants, any_mode=any_mode, **self.lease_times()), behind)
        self._taken(jobs)
        return jobs

    def _taken(self, jobs: Sequence[ClaimedJob]) -> None:
        if jobs:
            self.tally.started(jobs)
            self._on_commit()
            self.notify(TAKEN, jobs, jobs)

    def lease_times(self) -> LeaseTimes:
        config = self.config()
        return {"ttl_s": config.leases.ttl_s, "task_ttls": lease_ttls(config)}

    async def heartbeat(self, beats: Sequence[LeaseProof]) -> list[Renewal | LeaseLost | Exception]:
        return await self._batcher(HEARTBEAT).submit_many(beats)

    async def complete(self, report: Completion) -> Completed | Refusal:
        return await self._batcher(COMPLETE).submit(report)

    async def complete_many(self, reports: Sequence[Completion]) -> list[Completed | Refusal | Exception]:
        return await self._batcher(COMPLETE).submit_many(reports)

    async def fail(self, report: Failure) -> Ended | Refusal:
        return await self._batcher(FAIL).submit(report)

    async def fail_many(self, reports: Sequence[Failure]) -> list[Ended | Refusal | Exception]:
        return await self._batcher(FAIL).submit_many(reports)

    async def release(self, holder: Held) -> Requeued | Canceled | Refusal:
        return await self._batcher(RELEASE).submit(holder)

    async def release_many(self, holders: Sequence[Held]) -> list[Requeued | Canceled | Refusal | Exception]:
        return await self._batcher(RELEASE).submit_many(holders)

    async def emit(self, batch: EventBatch) -> events.Answer:
        """Keep events that a handler emitted. A holder that counts them (`emitted_n`) may send a batch again."""
        return await self._batcher(EMIT).submit(batch)

    async def emit_many(self, batches: Sequence[EventBatch]) -> list[events.Answer | Exception]:
        return await self._batcher(EMIT).submit_many(batches)

    async def inputs(self, job_id: UUID) -> dict[str, Input]:
        """What the jobs that a job waited for have ended with, by `ref` or id."""
        (inputs,) = await read_inputs(await self._open(), [job_id])
        return inputs

    def events_limit(self) -> events.Limit:
        return events.Limit(self.config().limits.job_events_mb << 20, self._is_disk_low())

    async def cancel(self, job_ids: Sequence[UUID], *, before_commit: BeforeCommit | None = None) -> list[CancelAnswer]:
        """Cancel, which may be asked for any number of times."""
        database = await self._open()
        answers = await cancel(database, job_ids, before_commit=before_commit, tally=self.tally)
        self._on_commit()
        self.notify(CANCELED, job_ids, answers)
        for job_id, answer in zip(job_ids, answers, strict=True):
            if isinstance(answer, CancelRequested):
                self._on_cancel_requested(job_id)
        return answers

    async def redrive(
        self,
        job_ids: Sequence[UUID],
        *,
        again: bool = True,
        group_id: UUID | None = None,
        before_commit: BeforeCommit | None = None,
    ) -> dict[UUID, UUID] | QueueFull:
        """Run dead letters again, the new job of each; with `again` also those that do so already, unrecorded.

        With `group_id` what was given up because these members failed is revived; not with `again`.
        """
        database, most = await self._open(), self.config().limits.max_queued
        if again:
            redriven = await redrive(database, job_ids, max_queued=most, tally=self.tally)
        else:
            redriven = await redrive_once(
                database, job_ids, max_queued=most, group_id=group_id, before_commit=before_commit, tally=self.tally
            )
        self._on_commit()
        if not isinstance(redriven, QueueFull):
            self.notify(REDRIVEN, list(redriven.values()), list(redriven))
            if group_id is not None:
                self.notify(SEALED, (), ())  # what was revived may wait for jobs that have ended
            self.demand.note_work()
        return redriven

    async def delete(self, job_ids: Sequence[UUID], *, before_commit: BeforeCommit | None = None) -> Pruned:
        """Delete final jobs; the files of their results are for the caller to remove."""
        pruned = await delete_jobs(await self._open(), job_ids, before_commit=before_commit)
        self._on_commit()
        return pruned

    async def create_group(self, group: NewGroup) -> bool:
        """Make a group with its callback; False: there is a group of this id, and nothing was done."""
        database = await self._open()
        callbacks = [] if group.callback is None else self._with_keys([group.callback])
        if callbacks:
            group = msgspec.structs.replace(group, callback=callbacks[0])
        async with database.connection() as connection:
            is_new = await create_group(connection, group)
        if is_new and callbacks:
            self.enqueued(callbacks, [Created(callback.id) for callback in callbacks])
        return is_new

    async def seal_group(self, group_id: UUID) -> None:
        """Let no more jobs enter the group, which may be asked for any number of times."""
        if await seal_group(await self._open(), group_id):
            self.notify(SEALED, (), ())

    async def wait_for_settled(self, most_s: float) -> None:
        """Wait until the resolver of this node has moved something, at most this number of seconds."""
        with anyio.move_on_after(most_s):
            await self._settled.wait()

    def let_go(self, settled: SettledPage) -> None:
        """To be called after a commit that has let jobs go which waited for others, or moved the counters of groups."""
        if settled.ends:
            self._settled.set()
            self._settled = anyio.Event()
        if not settled.freed:
            return
        if any(job.is_limited for job in settled.freed):
            self.note_limits()
        self._on_commit()
        if settled.canceled:
            self.tally.canceled((job.queue, job.task) for job in settled.freed if job.status == "canceled")
            self.notify(GIVEN_UP, settled.canceled, settled.canceled)
        self.demand.note_work({job.queue for job in settled.freed if job.in_line})
        if any(job.status == "queued" and not job.in_line and not job.is_limited for job in settled.freed):
            self.demand.note_delayed()

    async def pause_queue(self, queue: str, *, paused: bool) -> None:
        database = await self._open()
        await pause_queue(database, queue, paused=paused)
        self._on_commit()
        self.demand.note_pause(queue, paused=paused)

    async def pause_task(self, task: str, *, paused: bool) -> None:
        database = await self._open()
        await pause_task(database, task, paused=paused)
        self._on_commit()
        if not paused:
            self.demand.note_work()

    async def pause_all(self, *, paused: bool) -> None:
        database = await self._open()
        await pause_all(database, paused=paused)
        self._on_commit()
        self.demand.note_delayed()  # it reads the pauses, too

    def notify(self, kind: ChangeKind, items: Sequence[Any], answers: Sequence[Any]) -> None:
        """To be called after a commit: those who wait for these jobs are notified. What was committed stays so."""
        try:
            self._on_changes(Changes(kind, items, answers))
        except Exception:
            log.exception("who waits for %d jobs was not notified and finds out by polling", len(items))

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
        reservation = verb.reserve(self, items)
        jobs: list[ClaimedJob] = []
        if reservation is None or verb.flush_and_take is None:
            answers = await verb.flush(self, items)
        else:
            try:
                answers, jobs = await verb.flush_and_take(self, items, reservation.wants)
            except BaseException as error:
                self.demand.cancel(reservation, is_unknown=isinstance(error, LineBroken))
                raise
        self._on_commit()
        verb.count(self.tally, items, answers)
        if verb.changes is not None:
            self.notify(verb.changes, items, answers)
        if jobs:
            self.tally.started(jobs)
            self.notify(TAKEN, jobs, jobs)
        if reservation is not None:
            self.demand.deliver(reservation, jobs)
        if verb.leaves_work is not None:
            verb.leaves_work(self.demand, items, answers, jobs)
        return answers

    async def _resolve(self, verb: BatchedVerb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer | NotApplied]:
        await self._is_back()
        answers = await verb.resolve(self, items)
        verb.count(self.tally, items, answers)
        if verb.changes is not None:
            self.notify(verb.changes, items, answers)
        return answers

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
