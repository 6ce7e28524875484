"""The dispatcher: one reader per node brings jobs to whoever waits for them.

Callers (in-process slots, HTTP long polls) say which queues they serve, in order of preference, and wait. The reader
takes no more messages than there are callers, claims them in one batch, and hands each job to its caller. A message is
only a hint: what is stale, doubled or foreign claims nothing and is acknowledged away; only its id is believed.

While Redis is away the same callers are served from Postgres directly, at most `POLL_S` late; and while it is there
but brings nothing, Postgres is asked once in a while, and the rarer the longer there is nothing. A queue that raw
workers read is left out of both (see `poll_claim_jobs`): there, every job is taken through its message.
A job whose caller has gone when it arrives is handed back uncharged. Thousands may wait: they share the one reader and
its one connection, and none of them makes a job of another dearer (see `callers.py`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import asyncpg
import redis.asyncio
import redis.exceptions

from jobd.dispatch.waiting_line import Caller, Callers
from jobd.engine.engine import is_item_error
from jobd.errors import JobdError, ServerDown
from jobd.job.model import NotClaimable
from jobd.lifecycle.claim import Ask, ClaimedJob, Unknown
from jobd.lifecycle.messages import held_among, leased_messages, queued_among
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import note_raw_workers
from jobd.stream.consumers import forget_consumers, has_raw_workers, own_consumers
from jobd.stream.keys import CONSUMER_PREFIX, EPOCH, GROUP, stream_of
from jobd.stream.message import read_message
from jobd.stream.project import make_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.lifecycle.claim import ClaimAnswer
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds that a blocking read takes while a caller may leave before there is a message.
BLOCK_S = 1.0
#: Longest time that one blocking read of the streams takes, in seconds.
LONGEST_BLOCK_S = 5.0
#: Seconds that a busy dispatcher waits for callers to come back, so that all of them share one read and one commit.
GATHER_S = 0.001
#: Seconds between two polls of Postgres while Redis is away.
POLL_S = 0.25
#: Most messages of one read: as many as one batch of claims takes.
MOST_AT_ONCE = 500
#: Tries to claim for a message of an unknown job: after a failover its row may not be there yet.
UNKNOWN_TRIES = 3
#: Tries to claim for a message that fails though the servers are well; then it is left to the relay.
FAILED_TRIES = 5
#: Seconds between two tries to claim for the same message.
RETRY_S = 0.1
#: Seconds between two tries to interrupt a blocking read.
INTERRUPT_S = 0.005
#: Seconds between two searches for messages that a dead node or a lost read has left pending.
TAKEOVER_S = 10.0
#: Age in seconds from which a pending message that this node does not know counts as one whose read was lost.
LOST_S = 5.0
#: Searches for which a lost message of a job that is not queued is left to the relay.
LOST_TRIES = 10
#: Lease times of silence after which a consumer of jobd is removed from its group.
SILENT_LEASES = 10


class _Message:
    def __init__(self, queue: str, message_id: str, fields: dict[bytes, bytes]) -> None:
        self.queue = queue
        self.message_id = message_id
        read = read_message(fields)
        self.job_id: UUID | None = read[0] if read is not None else None
        self.enqueue_id = read[1] if read is not None else 0
        self.tries = 0


_Promise: TypeAlias = tuple[_Message, Caller]


class Dispatcher:
    def __init__(
        self, engine: Engine, database: Database, transport: Transport, incarnation: UUID, config: Callable[[], Config]
    ) -> None:
        self._engine = engine
        self._database = database
        self._transport = transport
        self._config = config
        self.consumer = f"{CONSUMER_PREFIX}{incarnation}"
        self._callers = Callers()
        self._called = anyio.Event()
        self._stopping = False
        #: Messages that were read and have no caller now, by queue.
        self._spare: dict[str, deque[_Message]] = {}
        #: Messages that were read and are being claimed.
        self._promised: Sequence[_Promise] = ()
        #: Messages to be acknowledged away.
        self._useless: list[_Message] = []
        #: A connection of its own for reads that wait, so that nothing else waits behind them.
        self._reader: redis.asyncio.Redis | None = None
        self._reader_id = 0
        #: When Postgres is asked next though Redis is there: a Redis that is full takes no messages, and who relays may
        #: be stuck. While that brings jobs, it goes on without a pause; the pauses after that become longer.
        self._next_look = 0.0
        self._look_s = BLOCK_S
        self._finds_unoffered = False
        #: When it is asked whatever the reads bring: a job whose message was lost must not wait for all others.
        self._look_by = 0.0
        #: The last read brought all that was asked for, so those who were served will be back for more.
        self._has_plenty = False
        #: The queues that a waiting read would hear of now.
        self._listening: frozenset[str] = frozenset()
        self._interrupting = False
        #: The epoch in which this node began to read, and the streams that it has read from since then.
        self._epoch: Any = None
        self._has_read: set[str] = set()

    # -- callers -----------------------------------------------------------------------------------------------

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
        self._called.set()
        try:
            # What arrives together with the end of the wait counts: the deadline ends in here, a cancellation does not.
            with anyio.move_on_after(wait_s):
                if self._listening and not self._listening.issuperset(caller.queues):
                    await self._interrupt_read()
                await caller.served.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._give_back(caller.jobs)
            raise
        finally:
            self._callers.leave(caller)
        return caller.jobs

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        try:
            await self._run(handle)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_reader()

    async def _run(self, handle: Handle) -> None:
        self._stopping = False
        self._look_s = BLOCK_S
        self._next_look = time.monotonic() + self._look_s
        self._look_by = time.monotonic() + LONGEST_BLOCK_S
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_over_pending)
            tasks.start_soon(self._stop_reading, handle)
            handle.ready()
            while not handle.stop.is_set():
                handle.beat()
                if not self._callers:
                    self._called = anyio.Event()
                    with anyio.move_on_after(BLOCK_S):
                        await self._called.wait()
                    continue
                try:
                    await self._serve_from_streams()
                except (ServerDown, redis.exceptions.RedisError, OSError) as error:
                    log.debug("serving from Postgres: %s", error)
                    await self._close_reader()
                    await self._serve_from_postgres()
            tasks.cancel_scope.cancel()

    async def _stop_reading(self, handle: Handle) -> None:
        await handle.stop.wait()
        self._stopping = True
        for caller in self._callers:
            if not caller.patient:
                caller.served.set()
        await self._interrupt_read()

    async def _serve_from_streams(self) -> None:
        if self._has_plenty:
            await anyio.sleep(GATHER_S)
        if time.monotonic() >= self._look_by:
            await self._look()
        promised = await self._read()
        await self._hand_out(promised)
        self._promised = ()
        await self._acknowledge_useless()
        if promised:
            self._next_look = time.monotonic() + self._look_s
        elif self._finds_unoffered or time.monotonic() >= self._next_look:
            self._finds_unoffered = await self._look()
            self._look_s = BLOCK_S if self._finds_unoffered else min(LONGEST_BLOCK_S, self._look_s * 2)
            self._next_look = time.monotonic() + self._look_s

    async def _look(self) -> bool:
        """Ask Postgres though Redis is there; first see which queues raw workers read."""
        self._look_by = time.monotonic() + LONGEST_BLOCK_S
        client = self._transport.client
        raw = [queue for queue in self._callers.all_queues() if await has_raw_workers(client, stream_of(queue))]
        return await self._poll_postgres(raw)

    async def _serve_from_postgres(self) -> None:
        await self._poll_postgres()
        if self._callers:
            await anyio.sleep(POLL_S)

    async def _poll_postgres(self, raw: Sequence[str] = ()) -> bool:
        """Each caller's queues in its order, straight from the table, but for those of raw workers; whether there was
        anything. `raw`: queues that were just seen to be theirs.
        """
        empty: set[tuple[str, ...]] = set()
        found = False
        try:
            await note_raw_workers(self._database, raw)
            await promote_due(self._database)
            for caller in list(self._callers):
                if caller.queues in empty or caller not in self._callers:
                    continue
                jobs = await self._engine.poll_claim(caller.queues, caller.owner_id, caller.most)
                if len(jobs) < caller.most:
                    empty.add(caller.queues)
                found = found or bool(jobs)
                await self._serve([(caller, jobs)])
        except JobdError as error:
            log.debug("Postgres is away too: %s", error)
        return found

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> list[_Promise]:
        """As many messages as callers want: what they like best first, and if there is none, whatever comes first."""
        promised: list[_Promise] = []
        self._promised = promised
        try:
            await self._read_and_promise(promised)
        except BaseException:
            self._undo(promised)
            raise
        return promised

    async def _read_and_promise(self, promised: list[_Promise]) -> None:
        self._promise_spare(promised)
        self._has_plenty = False
        empty: set[str] = set()
        for rank in self._callers.ranks():
            for queue in self._callers.queues(rank):
                number = min(self._callers.room(rank, queue), MOST_AT_ONCE)
                if number and queue not in empty:
                    some = await self._read_streams([queue], number, None)
                    if len(some) < number:
                        empty.add(queue)
                    self._has_plenty = self._has_plenty or len(some) == number
                    self._promise(promised, some, rank)
        if promised or self._useless or not self._callers or self._finds_unoffered:
            return
        self._listening = self._callers.all_queues()
        try:
            self._promise(promised, await self._read_streams(sorted(self._listening), 1, self._block_ms()))
        finally:
            self._listening = frozenset()

    def _block_ms(self) -> int:
        """Until Postgres is asked; shorter if somebody may leave, for whom a message would be read in vain."""
        most_s = LONGEST_BLOCK_S if self._callers.are_patient() else BLOCK_S
        return max(1, int(min(most_s, self._next_look - time.monotonic()) * 1000))

    def _promise_spare(self, promised: list[_Promise]) -> None:
        for queue in self._spare.keys() & self._callers.all_queues():
            messages = self._spare.pop(queue)
            while messages and (caller := self._callers.promise(queue)) is not None:
                promised.append((messages.popleft(), caller))
            if messages:
                self._spare[queue] = messages

    def _promise(self, promised: list[_Promise], messages: Iterable[_Message], rank: int | None = None) -> None:
        """Each to the caller that it was read for; should that one have left meanwhile, to whoever serves its queue."""
        for message in messages:
            if message.job_id is None:
                self._useless.append(message)
                continue
            caller = self._callers.promise(message.queue, rank) or self._callers.promise(message.queue)
            if caller is not None:
                promised.append((message, caller))
            else:
                self._keep(message)

    def _keep(self, message: _Message) -> None:
        """For the next caller that serves its queue."""
        self._spare.setdefault(message.queue, deque()).append(message)

    def _undo(self, promised: Sequence[_Promise]) -> None:
        for message, caller in reversed(promised):
            self._callers.take_back(caller)
            self._spare.setdefault(message.queue, deque()).appendleft(message)

    async def _read_streams(self, queues: Sequence[str], count: int, block_ms: int | None) -> list[_Message]:
        streams = {stream_of(queue): queue for queue in queues}
        try:
            answer: Any = await (await self._open_reader()).xreadgroup(
                GROUP, self.consumer, dict.fromkeys(streams, ">"), count=count, block=block_ms
            )
        except redis.exceptions.ResponseError as error:
            if not any(word in str(error) for word in ("NOGROUP", "UNBLOCKED", "WRONGTYPE")):
                raise
            await self._make_groups(list(streams))
            return []
        if self._epoch is None or not self._has_read.issuperset(streams):
            self._epoch = await self._transport.client.get(EPOCH)
            self._has_read.update(streams)
        return [
            _Message(streams[stream.decode()], message_id.decode(), fields or {})
            for stream, messages in answer or ()
            for message_id, fields in messages
        ]

    async def _make_groups(self, streams: Sequence[str]) -> None:
        """Make what a read found missing. Perhaps this node is the first to have the queue; but what it has read from
        before was lost, and unless the relay has seen that already, a missing epoch says so to it.
        """
        client = self._transport.client
        if not self._has_read.isdisjoint(streams) and await client.get(EPOCH) == self._epoch:
            await client.delete(EPOCH)
        self._epoch = None
        self._has_read.clear()
        for stream in streams:
            await make_group(client, stream)

    async def _open_reader(self) -> redis.asyncio.Redis:
        if self._reader is None:
            self._reader = self._transport.client.client()
            self._reader_id = await self._reader.client_id()
        return self._reader

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with anyio.move_on_after(1.0, shield=True), contextlib.suppress(redis.exceptions.RedisError, OSError):
                await reader.aclose()

    async def _interrupt_read(self) -> None:
        """Make a waiting read return at once, empty. One asks on behalf of all, or each would need a connection."""
        if self._interrupting:
            return
        self._interrupting, listening = True, self._listening
        try:
            # The read is announced before Redis knows of it: until it does, there is nothing to interrupt.
            while self._listening and self._listening is listening:
                if await self._transport.client.client_unblock(self._reader_id):
                    return
                await anyio.sleep(INTERRUPT_S)
        except (ServerDown, redis.exceptions.RedisError, OSError) as error:
            log.debug("a read goes on: %s", error)
        finally:
            self._interrupting = False

    # -- handing out -------------------------------------------------------------------------------------------

    async def _hand_out(self, promised: Sequence[_Promise]) -> None:
        """Claim what was promised; a caller whose promise comes to nothing is the next."""
        try:
            answers = await self._engine.claim([_ask(message, caller) for message, caller in promised])
        except BaseException:
            self._undo(promised)
            raise
        served: dict[Caller, list[ClaimedJob]] = {}
        for (message, caller), answer in zip(promised, answers, strict=True):
            if isinstance(answer, ClaimedJob):
                served.setdefault(caller, []).append(answer)
            else:
                self._settle(message, answer)
        for (_, caller), answer in zip(reversed(promised), reversed(answers), strict=True):
            if not isinstance(answer, ClaimedJob):
                self._callers.take_back(caller)
        await self._serve(served.items())
        if any(isinstance(answer, Exception) for answer in answers):
            await anyio.sleep(RETRY_S)

    def _settle(self, message: _Message, answer: ClaimAnswer | Exception) -> None:
        """Acknowledge what is of no use; what may still be of use, or whose fate is unknown, is tried again."""
        if isinstance(answer, Exception):
            log.debug("claim of %s failed: %s", message.job_id, answer)
            self._try_again(message, FAILED_TRIES if _is_about_the_message(answer) else None, "cannot be claimed")
        elif isinstance(answer, Unknown):
            self._try_again(message, UNKNOWN_TRIES, "is not here")
        elif isinstance(answer, NotClaimable) and answer.ack:
            self._useless.append(message)
        # A claim that ended the job has an outbox row; the relay acknowledges once that is published. A message that
        # came before its job is due stays pending.

    def _try_again(self, message: _Message, most: int | None, why: str) -> None:
        message.tries += most is not None
        if most is None or message.tries < most:
            self._keep(message)
            return
        stream = stream_of(message.queue)
        log.warning("message %s of %s is dropped: its job %s %s", message.message_id, stream, message.job_id, why)
        self._useless.append(message)

    async def _serve(self, served: Iterable[tuple[Caller, list[ClaimedJob]]]) -> None:
        unwanted: list[ClaimedJob] = []
        for caller, jobs in served:
            if caller not in self._callers or caller.served.is_set():
                unwanted += jobs
            elif jobs:
                caller.jobs = jobs
                self._callers.leave(caller)
                caller.served.set()
        await self._give_back(unwanted)

    async def _give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        if not jobs:
            return
        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(self._release, job)

    async def _release(self, job: ClaimedJob) -> None:
        try:
            await self._engine.release(job.held)
        except JobdError as error:
            log.debug("job %s was not handed back (%s); its lease will end", job.job_id, error)

    async def _acknowledge_useless(self) -> None:
        by_stream: dict[str, list[str]] = {}
        for message in self._useless:
            by_stream.setdefault(stream_of(message.queue), []).append(message.message_id)
        for stream, ids in by_stream.items():
            await self._transport.client.xack(stream, GROUP, *ids)
            await self._transport.client.xdel(stream, *ids)
        self._useless = []

    # -- messages that nobody works on ---------------------------------------------------------------------------

    async def _take_over_pending(self) -> None:
        """Look for messages that were read and never settled: by a dead node, or by a read whose answer was lost."""
        while True:
            await anyio.sleep(min(TAKEOVER_S, self._config().leases.ttl_s))
            try:
                for queue in self._config().queues:
                    await self._look_through(queue)
            except (ServerDown, redis.exceptions.RedisError, OSError) as error:
                log.debug("no look at pending messages: %s", error)
            if self._spare:
                self._called.set()
                await self._interrupt_read()

    async def _look_through(self, queue: str) -> None:
        """A raw worker's messages are its own, however long it takes; only jobd's consumers die with their process."""
        client, stream = self._transport.client, stream_of(queue)
        for consumer in await own_consumers(client, stream):
            for message in await self._left_pending(queue, consumer):
                self._keep(message)
        await forget_consumers(client, stream, SILENT_LEASES * self._config().leases.ttl_s)

    async def _left_pending(self, queue: str, consumer: bytes) -> list[_Message]:
        """Of what a consumer of jobd has in hand, what may be had."""
        if consumer == self.consumer.encode():
            return await self._lost_reads(queue)
        idle_ms = int(self._config().leases.ttl_s * 1500)
        left = [entry["message_id"] async for entry in self._pending(queue, consumer, idle_ms)]
        return await self._that_can_be_had(await self._claim_messages(queue, idle_ms, left))

    async def _lost_reads(self, queue: str) -> list[_Message]:
        """Messages of this node that it does not know of. One whose job is not queued is the relay's to settle; if it
        does not for long, its claim comes to nothing and it is acknowledged away.
        """
        idle_ms, stream = int(LOST_S * 1000), stream_of(queue)
        tries = {
            entry["message_id"]: entry["times_delivered"]
            async for entry in self._pending(queue, self.consumer.encode(), idle_ms)
        }
        known = (await leased_messages(self._database, stream)).union(
            *({message.message_id for message in messages} for messages in self._spare.values()),
            {message.message_id for message in self._useless},
            {message.message_id for message, _ in self._promised},
        )
        messages = await self._claim_messages(queue, idle_ms, [one for one in tries if one.decode() not in known])
        waiting = await queued_among(self._database, [message.job_id for message in messages])
        return [
            message
            for message in messages
            if message.job_id in waiting or tries[message.message_id.encode()] > LOST_TRIES
        ]

    async def _pending(self, queue: str, consumer: bytes, idle_ms: int) -> AsyncIterator[Any]:
        """All messages that the consumer has had pending for at least `idle_ms`."""
        after = "-"
        while True:
            page: Any = await self._transport.client.xpending_range(
                stream_of(queue), GROUP, min=after, max="+", count=MOST_AT_ONCE, consumername=consumer, idle=idle_ms
            )
            for entry in page:
                yield entry
            if len(page) < MOST_AT_ONCE:
                return
            after = f"({page[-1]['message_id'].decode()}"

    async def _claim_messages(self, queue: str, idle_ms: int, ids: Sequence[bytes]) -> list[_Message]:
        messages: list[_Message] = []
        for n in range(0, len(ids), MOST_AT_ONCE):
            entries: Any = await self._transport.client.xclaim(
                stream_of(queue), GROUP, self.consumer, idle_ms, list(ids[n : n + MOST_AT_ONCE])
            )
            messages += [_Message(queue, message_id.decode(), fields or {}) for message_id, fields in entries]
        return messages

    async def _that_can_be_had(self, messages: Sequence[_Message]) -> list[_Message]:
        """Without those whose job a live holder has: their message is settled when the job is."""
        ids = [message.job_id for message in messages if message.job_id is not None]
        leased = await held_among(self._database, ids)
        return [message for message in messages if message.job_id not in leased]


def _ask(message: _Message, caller: Caller) -> Ask:
    assert message.job_id is not None  # else it would not have been promised
    return Ask(
        job_id=message.job_id,
        enqueue_id=message.enqueue_id,
        owner_id=caller.owner_id,
        stream=stream_of(message.queue),
        message_id=message.message_id,
    )


def _is_about_the_message(error: Exception) -> bool:
    """Whether it would fail anywhere. A server that is away, full or confused says nothing about the message."""
    return is_item_error(error) or not isinstance(error, (JobdError, OSError, asyncpg.PostgresError))
