"""Serves callers through messages in Redis: the jobs of queues in mode `stream`.

One reader per node takes no more messages than callers want jobs, claims them in one batch, and hands each job to its
caller. A message is only a hint: a stale, repeated or foreign one claims nothing and is acknowledged; only its id is
used.

While Redis is away the same callers are served from Postgres, at most `POLL_S` late; and while it is there but brings
nothing, Postgres is polled, with pauses that double up to LONGEST_BLOCK_S. A queue that raw workers read is left out of
both for one lease time (see `take_jobs`): there, every job is taken through its message.
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

from jobd.dispatch.waiting_line import Caller
from jobd.engine.engine import is_item_error
from jobd.errors import JobdError, ServerDown
from jobd.host.logs import job_fields
from jobd.job.model import NotClaimable
from jobd.lifecycle.claim import Ask, ClaimedJob, Unknown
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import note_raw_workers
from jobd.stream.consumers import has_raw_workers
from jobd.stream.keys import EPOCH, GROUP, stream_of
from jobd.stream.message import read_message
from jobd.stream.project import make_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from jobd.dispatch.direct import DirectTaker
    from jobd.dispatch.waiting_line import Callers
    from jobd.engine.engine import Engine
    from jobd.lifecycle.claim import ClaimAnswer
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Longest blocking read (XREADGROUP BLOCK) in seconds while a caller may leave before there is a message; also the
#: first pause between two polls of Postgres.
BLOCK_S = 1.0
#: Longest blocking read in seconds, and longest time between two polls of Postgres.
LONGEST_BLOCK_S = 5.0
#: Seconds that a busy reader waits for callers to come back, so that all of them share one read and one commit.
GATHER_S = 0.001
#: Seconds between two polls of Postgres while Redis is away.
POLL_S = 0.25
#: Most messages of one read: as many as one batch of claims takes.
MOST_AT_ONCE = 500
#: Tries to claim for a message of an unknown job: after a failover its row may not be there yet.
UNKNOWN_TRIES = 3
#: Tries to claim for a message whose claim fails though the servers are well; then the message is dropped.
FAILED_TRIES = 5
#: Seconds between two tries to claim for the same message.
RETRY_S = 0.1
#: Seconds between two tries to interrupt a blocking read.
INTERRUPT_S = 0.005


class Message:
    def __init__(self, queue: str, message_id: str, fields: dict[bytes, bytes]) -> None:
        self.queue = queue
        self.message_id = message_id
        read = read_message(fields)
        self.job_id: UUID | None = read[0] if read is not None else None
        self.enqueue_id = read[1] if read is not None else 0
        self.tries = 0


Promise: TypeAlias = tuple[Message, Caller]


class StreamReader:
    def __init__(
        self,
        engine: Engine,
        database: Database,
        transport: Transport,
        consumer: str,
        callers: Callers,
        direct: DirectTaker,
        serve: Callable[[Iterable[tuple[Caller, list[ClaimedJob]]]], None],
    ) -> None:
        self._engine = engine
        self._database = database
        self._transport = transport
        self._consumer = consumer
        self._callers = callers
        self._direct = direct
        #: Brings jobs to callers; those of one that has left go back.
        self._serve = serve
        self._called = anyio.Event()
        #: Messages that were read and have no caller now, by queue.
        self._spare: dict[str, deque[Message]] = {}
        #: Messages that were read and are being claimed.
        self._promised: Sequence[Promise] = ()
        #: Messages to be acknowledged away.
        self._useless: list[Message] = []
        #: A connection of its own for reads that wait, so that nothing else waits behind them.
        self._reader: redis.asyncio.Redis | None = None
        self._reader_id = 0
        #: When Postgres is next polled though Redis is there: a full Redis takes no messages, and the node that relays
        #: may be stuck. While polls bring jobs they follow each other at once; after that their pauses double.
        self._next_poll = 0.0
        self._poll_s = BLOCK_S
        self._finds_unoffered = False
        #: When Postgres is polled at the latest, though reads bring jobs: one whose message was lost must not starve.
        self._poll_by = 0.0
        #: The last read brought all that was asked for, so those who were served will be back for more.
        self._has_plenty = False
        #: The queues whose streams the blocking read waits for now; empty: there is none.
        self._listening: frozenset[str] = frozenset()
        self._interrupting = False
        #: The epoch in which this node began to read, and the streams that it has read from since then.
        self._epoch: Any = None
        self._has_read: set[str] = set()

    # -- callers ---------------------------------------------------------------------------------------------------

    async def call(self, queues: Iterable[str]) -> None:
        """Somebody waits for jobs of these queues."""
        self._called.set()
        if self._listening and not self._listening.issuperset(queue for queue in queues if self._is_read(queue)):
            await self.interrupt()

    def hears(self, queue: str) -> bool:
        """Whether a message of this queue would be read as soon as it comes."""
        return queue in self._listening

    async def read_again(self) -> None:
        """Interrupt the blocking read, since the set of streams to read has changed."""
        self._called.set()
        await self.interrupt()

    def _is_read(self, queue: str) -> bool:
        return not self._direct.is_direct(queue)

    def _queues(self) -> frozenset[str]:
        """What is to be read: queues that somebody wants jobs of, and that are in mode `stream`."""
        return frozenset(queue for queue in self._callers.all_queues() if self._is_read(queue))

    def known_messages(self) -> set[str]:
        """The ids of all messages that this node has in hand."""
        return {message.message_id for messages in self._spare.values() for message in messages}.union(
            (message.message_id for message in self._useless), (message.message_id for message, _ in self._promised)
        )

    async def take_up(self, messages: Sequence[Message]) -> None:
        """Messages that were found pending: for the next callers that serve their queues."""
        for message in messages:
            self._keep(message)
        if messages:
            self._called.set()
            await self.interrupt()

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        self._poll_s = BLOCK_S
        self._next_poll = time.monotonic() + self._poll_s
        self._poll_by = time.monotonic() + LONGEST_BLOCK_S
        try:
            while not handle.stop.is_set():
                handle.beat()
                if not self._queues():
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
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_reader()

    async def _serve_from_streams(self) -> None:
        if self._has_plenty:
            await anyio.sleep(GATHER_S)
        if time.monotonic() >= self._poll_by:
            await self._poll()
        promised = await self._read()
        await self._hand_out(promised)
        self._promised = ()
        await self._acknowledge_useless()
        if promised:
            self._next_poll = time.monotonic() + self._poll_s
        elif self._finds_unoffered or time.monotonic() >= self._next_poll:
            self._finds_unoffered = await self._poll()
            self._poll_s = BLOCK_S if self._finds_unoffered else min(LONGEST_BLOCK_S, self._poll_s * 2)
            self._next_poll = time.monotonic() + self._poll_s

    async def _poll(self) -> bool:
        """Poll Postgres though Redis is there; first check which queues raw workers read."""
        self._poll_by = time.monotonic() + LONGEST_BLOCK_S
        client = self._transport.client
        raw = [queue for queue in self._queues() if await has_raw_workers(client, stream_of(queue))]
        return await self._poll_postgres(raw)

    async def _serve_from_postgres(self) -> None:
        await self._poll_postgres()
        if self._queues():
            await anyio.sleep(POLL_S)

    async def _poll_postgres(self, raw: Sequence[str] = ()) -> bool:
        """Take straight from the table, but not from queues of raw workers; whether there was anything. `raw`: queues
        that were just seen to be theirs.
        """
        has_taken = False
        try:
            await note_raw_workers(self._database, raw)
            await promote_due(self._database)
            for queue in [queue for rank in self._callers.ranks() for queue in self._callers.queues(rank)]:
                if self._is_read(queue) and (taking := self._direct.reserve_all(queue)) is not None:
                    has_taken = await self._direct.take(taking, any_mode=True) or has_taken
        except JobdError as error:
            log.debug("Postgres is away too: %s", error)
        return has_taken

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> list[Promise]:
        """As many messages as callers want: what they like best first, and if there is none, whatever comes first."""
        promised: list[Promise] = []
        self._promised = promised
        try:
            await self._read_and_promise(promised)
        except BaseException:
            self._undo(promised)
            raise
        return promised

    async def _read_and_promise(self, promised: list[Promise]) -> None:
        self._promise_spare(promised)
        self._has_plenty = False
        empty: set[str] = set()
        for rank in self._callers.ranks():
            for queue in self._callers.queues(rank):
                number = min(self._callers.room(rank, queue), MOST_AT_ONCE)
                if number and queue not in empty and self._is_read(queue):
                    messages = await self._read_streams([queue], number, None)
                    if len(messages) < number:
                        empty.add(queue)
                    self._has_plenty = self._has_plenty or len(messages) == number
                    self._promise(promised, messages, rank)
        if promised or self._useless or self._finds_unoffered or not (queues := self._queues()):
            return
        self._listening = queues
        try:
            self._promise(promised, await self._read_streams(sorted(self._listening), 1, self._block_ms()))
        finally:
            self._listening = frozenset()

    def _block_ms(self) -> int:
        """Until the next poll of Postgres; shorter if a caller may leave, for which a message would be read in vain."""
        most_s = LONGEST_BLOCK_S if self._callers.are_patient() else BLOCK_S
        return max(1, int(min(most_s, self._next_poll - time.monotonic()) * 1000))

    def _promise_spare(self, promised: list[Promise]) -> None:
        for queue in self._spare.keys() & self._callers.all_queues():
            messages = self._spare.pop(queue)
            while messages and (caller := self._callers.promise(queue)) is not None:
                promised.append((messages.popleft(), caller))
            if messages:
                self._spare[queue] = messages

    def _promise(self, promised: list[Promise], messages: Iterable[Message], rank: int | None = None) -> None:
        """Each to the caller that it was read for; if that one has left, to the next that serves its queue."""
        for message in messages:
            if message.job_id is None:
                self._useless.append(message)
                continue
            caller = self._callers.promise(message.queue, rank) or self._callers.promise(message.queue)
            if caller is not None:
                promised.append((message, caller))
            else:
                self._keep(message)

    def _keep(self, message: Message) -> None:
        """For the next caller that serves its queue."""
        self._spare.setdefault(message.queue, deque()).append(message)

    def _undo(self, promised: Sequence[Promise]) -> None:
        for message, caller in reversed(promised):
            self._callers.take_back(caller)
            self._spare.setdefault(message.queue, deque()).appendleft(message)

    async def _read_streams(self, queues: Sequence[str], count: int, block_ms: int | None) -> list[Message]:
        streams = {stream_of(queue): queue for queue in queues}
        try:
            answer: Any = await (await self._open_reader()).xreadgroup(
                GROUP, self._consumer, dict.fromkeys(streams, ">"), count=count, block=block_ms
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
            Message(streams[stream.decode()], message_id.decode(), fields or {})
            for stream, messages in answer or ()
            for message_id, fields in messages
        ]

    async def _make_groups(self, streams: Sequence[str]) -> None:
        """Make the streams and groups that a read found missing.

        Either this node is the first to have the queue, or a stream that it has read from was lost. Then the epoch is
        deleted, unless the relay has raised it already, and the relay publishes everything again.
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

    async def interrupt(self) -> None:
        """Make the blocking read return at once, empty. One call at a time, or each would need a connection."""
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

    async def _hand_out(self, promised: Sequence[Promise]) -> None:
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
                self._callers.keep(caller, 1)
            else:
                self._settle(message, answer)
        for (_, caller), answer in zip(reversed(promised), reversed(answers), strict=True):
            if not isinstance(answer, ClaimedJob):
                self._callers.take_back(caller)
        self._serve(served.items())
        if any(isinstance(answer, Exception) for answer in answers):
            await anyio.sleep(RETRY_S)

    def _settle(self, message: Message, answer: ClaimAnswer | Exception) -> None:
        """Acknowledge a message that can never be claimed for; try again if it may be, or the answer is unknown."""
        if isinstance(answer, Exception):
            log.debug("a claim failed: %s", answer, extra=job_fields(message.job_id))
            self._try_again(message, FAILED_TRIES if _is_about_the_message(answer) else None, "cannot be claimed")
        elif isinstance(answer, Unknown):
            self._try_again(message, UNKNOWN_TRIES, "is not here")
        elif isinstance(answer, NotClaimable) and answer.ack:
            self._useless.append(message)
        # A claim that ended the job has an outbox row; the relay acknowledges once that is published. A message that
        # came before its job is due stays pending.

    def _try_again(self, message: Message, most: int | None, why: str) -> None:
        message.tries += most is not None
        if most is None or message.tries < most:
            self._keep(message)
            return
        stream = stream_of(message.queue)
        fields = job_fields(message.job_id)
        log.warning("message %s of %s is dropped: its job %s", message.message_id, stream, why, extra=fields)
        self._useless.append(message)

    async def _acknowledge_useless(self) -> None:
        by_stream: dict[str, list[str]] = {}
        for message in self._useless:
            by_stream.setdefault(stream_of(message.queue), []).append(message.message_id)
        for stream, ids in by_stream.items():
            await self._transport.client.xack(stream, GROUP, *ids)
            await self._transport.client.xdel(stream, *ids)
        self._useless = []


def _ask(message: Message, caller: Caller) -> Ask:
    assert message.job_id is not None  # else it would not have been promised
    return Ask(
        job_id=message.job_id,
        enqueue_id=message.enqueue_id,
        owner_id=caller.owner_id,
        stream=stream_of(message.queue),
        message_id=message.message_id,
    )


def _is_about_the_message(error: Exception) -> bool:
    """Whether the claim fails because of the message, not because a server is away, full or broken."""
    return is_item_error(error) or not isinstance(error, (JobdError, OSError, asyncpg.PostgresError))
