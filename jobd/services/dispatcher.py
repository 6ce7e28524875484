"""The dispatcher: one reader per node brings jobs to whoever waits for them.

Callers (in-process slots, HTTP long polls) say which queues they serve, in order of preference, and wait. The reader
takes no more messages than there are callers, claims them in one batch, and hands each job to its caller. A message is
only a hint: what is stale, doubled or foreign claims nothing and is acknowledged away; only its id is believed.

While Redis is away the same callers are served from Postgres directly, at most `POLL_S` late.
A job whose caller has gone when it arrives is handed back uncharged.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import anyio
import redis.asyncio
import redis.exceptions

from jobd.errors import JobdError, ServerDown
from jobd.job.model import NotClaimable
from jobd.lifecycle.claim import Ask, ClaimedJob, Unknown
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.report import Held
from jobd.stream.keys import CONSUMER_PREFIX, EPOCH, GROUP, stream_of
from jobd.stream.message import read_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from jobd.config import Config
    from jobd.engine import Engine
    from jobd.lifecycle.claim import ClaimAnswer
    from jobd.service import Handle
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: How long one read waits for a message, and how often Postgres is asked while Redis is away.
BLOCK_S = 1.0
POLL_S = 0.25
MOST_AT_ONCE = 500
#: A message of an unknown job may be ahead of a standby that became the primary: it gets so many chances.
UNKNOWN_TRIES = 3
#: How often messages are looked for that a dead node has left pending.
TAKEOVER_S = 10.0


class _Caller:
    def __init__(self, queues: tuple[str, ...], owner_id: str, most: int) -> None:
        self.queues = queues
        self.owner_id = owner_id
        self.most = most
        self.jobs: list[ClaimedJob] = []
        self.served = anyio.Event()
        self.gone = False


class _Message:
    def __init__(self, queue: str, message_id: str, fields: dict[bytes, bytes]) -> None:
        self.queue = queue
        self.message_id = message_id
        read = read_message(fields)
        self.job_id: UUID | None = read[0] if read is not None else None
        self.enqueue_id = read[1] if read is not None else 0
        self.tries = 0


class Dispatcher:
    def __init__(
        self, engine: Engine, database: Database, transport: Transport, incarnation: UUID, config: Callable[[], Config]
    ) -> None:
        self._engine = engine
        self._database = database
        self._transport = transport
        self._config = config
        self.consumer = f"{CONSUMER_PREFIX}{incarnation}"
        self._callers: list[_Caller] = []
        self._called = anyio.Event()
        #: Messages that were read and have no caller now.
        self._spare: list[_Message] = []
        #: A connection of its own for reads that wait, so that nothing else waits behind them.
        self._reader: redis.asyncio.Redis | None = None
        self._reader_id = 0
        #: The queues that a waiting read would hear of now.
        self._listening: frozenset[str] = frozenset()

    # -- callers -----------------------------------------------------------------------------------------------

    async def take(self, queues: Sequence[str], owner_id: str, most: int = 1) -> list[ClaimedJob]:
        """Wait for jobs of these queues, the first queue first; at least one and at most `most`."""
        caller = _Caller(tuple(queues), owner_id, most)
        self._callers.append(caller)
        self._called.set()
        try:
            if self._listening and not self._listening.issuperset(queues):
                await self._interrupt_read()
            await caller.served.wait()
        except anyio.get_cancelled_exc_class():
            caller.gone = True
            with anyio.CancelScope(shield=True):
                await self._give_back(caller.jobs)
            raise
        finally:
            if caller in self._callers:
                self._callers.remove(caller)
        return caller.jobs

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        try:
            await self._run(handle)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close_reader()

    async def _run(self, handle: Handle) -> None:
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
        await self._interrupt_read()

    async def _serve_from_streams(self) -> None:
        messages = await self._read()
        if messages:
            await self._hand_out(messages)

    async def _serve_from_postgres(self) -> None:
        """Without Redis: each caller's queues in its order, straight from the table."""
        try:
            await promote_due(self._database.pool)
            for caller in list(self._callers):
                jobs = await self._engine.poll_claim(caller.queues, caller.owner_id, caller.most)
                await self._serve(caller, jobs)
        except JobdError as error:
            log.debug("Postgres is away too: %s", error)
        if self._callers:
            await anyio.sleep(POLL_S)

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self) -> list[_Message]:
        """As many messages as callers want: what they like best first, and if there is none, whatever comes first."""
        found, self._spare = self._spare, []
        try:
            return await self._read_for_callers(found)
        except BaseException:
            self._spare = found
            raise

    async def _read_for_callers(self, found: list[_Message]) -> list[_Message]:
        ranks = max(len(caller.queues) for caller in self._callers)
        unserved = list(self._callers)
        for message in found:
            unserved = _without_one_that_serves(unserved, message.queue)
        for rank in range(ranks):
            wanted: dict[str, int] = {}
            for caller in unserved:
                if rank < len(caller.queues):
                    wanted[caller.queues[rank]] = wanted.get(caller.queues[rank], 0) + caller.most
            for queue, number in wanted.items():
                some = await self._read_streams([queue], min(number, MOST_AT_ONCE), None)
                found += some
                for message in some:
                    unserved = _without_one_that_serves(unserved, message.queue)
        if found:
            return found
        self._listening = frozenset(queue for caller in self._callers for queue in caller.queues)
        try:
            return await self._read_streams(sorted(self._listening), 1, int(BLOCK_S * 1000))
        finally:
            self._listening = frozenset()

    async def _read_streams(self, queues: Sequence[str], count: int, block_ms: int | None) -> list[_Message]:
        streams = {stream_of(queue): queue for queue in queues}
        try:
            answer: Any = await (await self._open_reader()).xreadgroup(
                GROUP, self.consumer, dict.fromkeys(streams, ">"), count=count, block=block_ms
            )
        except redis.exceptions.ResponseError as error:
            if "NOGROUP" in str(error) or "UNBLOCKED" in str(error) or "WRONGTYPE" in str(error):
                await self._transport.client.delete(EPOCH)  # something was lost: the relay tells everything anew
            raise
        return [
            _Message(streams[stream.decode()], message_id.decode(), fields or {})
            for stream, messages in answer or ()
            for message_id, fields in messages
        ]

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
        """Make a waiting read return at once, empty."""
        if self._listening:
            with contextlib.suppress(ServerDown, redis.exceptions.RedisError, OSError):
                await self._transport.client.client_unblock(self._reader_id)

    # -- handing out -------------------------------------------------------------------------------------------

    async def _hand_out(self, messages: Sequence[_Message]) -> None:
        """Claim for callers that are still there; what finds no caller waits for the next."""
        asks: list[tuple[_Message, _Caller]] = []
        room = {id(caller): caller.most for caller in self._callers}
        for message in messages:
            if message.job_id is None:
                await self._acknowledge([message])
                continue
            caller = next((one for one in self._callers if message.queue in one.queues and room[id(one)] > 0), None)
            if caller is None:
                self._spare.append(message)
            else:
                room[id(caller)] -= 1
                asks.append((message, caller))
        answers = await self._engine.claim(
            [
                Ask(
                    job_id=message.job_id,
                    enqueue_id=message.enqueue_id,
                    owner_id=caller.owner_id,
                    stream=stream_of(message.queue),
                    message_id=message.message_id,
                )
                for message, caller in asks
                if message.job_id is not None
            ]
        )
        served: dict[int, list[ClaimedJob]] = {}
        useless: list[_Message] = []
        for (message, caller), answer in zip(asks, answers, strict=True):
            if isinstance(answer, ClaimedJob):
                served.setdefault(id(caller), []).append(answer)
            elif self._is_useless(message, answer):
                useless.append(message)
        callers = {id(caller): caller for _, caller in asks}
        for key, jobs in served.items():
            await self._serve(callers[key], jobs)
        await self._acknowledge(useless)

    def _is_useless(self, message: _Message, answer: ClaimAnswer | Exception) -> bool:
        """Whether the message can go; one that may still be of use, or whose fate is unknown, is tried again."""
        if isinstance(answer, Exception):
            log.debug("claim of %s failed: %s", message.job_id, answer)
            self._spare.append(message)
            return False
        if isinstance(answer, Unknown):
            message.tries += 1
            if message.tries < UNKNOWN_TRIES:
                self._spare.append(message)
                return False
            log.warning("message %s speaks of job %s, which is not here", message.message_id, message.job_id)
        # Too early means that someone moved the job's time; the relay offers it again when it is due.
        return isinstance(answer, (NotClaimable, Unknown))

    async def _serve(self, caller: _Caller, jobs: list[ClaimedJob]) -> None:
        if not jobs:
            return
        if caller.gone or caller.served.is_set():
            await self._give_back(jobs)
            return
        caller.jobs = jobs
        if caller in self._callers:
            self._callers.remove(caller)
        caller.served.set()

    async def _give_back(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            held = Held(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token)
            try:
                await self._engine.release(held)
            except JobdError as error:
                log.debug("job %s was not handed back (%s); its lease will end", job.job_id, error)

    async def _acknowledge(self, messages: Sequence[_Message]) -> None:
        by_stream: dict[str, list[str]] = {}
        for message in messages:
            by_stream.setdefault(stream_of(message.queue), []).append(message.message_id)
        for stream, ids in by_stream.items():
            await self._transport.client.xack(stream, GROUP, *ids)
            await self._transport.client.xdel(stream, *ids)

    # -- what dead nodes left ------------------------------------------------------------------------------------

    async def _take_over_pending(self) -> None:
        """Messages that a dead node read and never settled: claimed if their job can be had, else left alone."""
        while True:
            await anyio.sleep(min(TAKEOVER_S, self._config().leases.ttl_s))
            try:
                for queue in self._config().queues:
                    self._spare += await self._left_pending(queue)
            except (ServerDown, redis.exceptions.RedisError, OSError) as error:
                log.debug("no look at pending messages: %s", error)
            if self._spare:
                self._called.set()

    async def _left_pending(self, queue: str) -> list[_Message]:
        stream, idle_ms = stream_of(queue), int(self._config().leases.ttl_s * 1500)
        pending: Any = await self._transport.client.xpending_range(
            stream, GROUP, min="-", max="+", count=MOST_AT_ONCE, idle=idle_ms
        )
        # A raw worker's messages are its own, however long it takes; only jobd's consumers die with their process.
        left = [
            entry["message_id"]
            for entry in pending
            if entry["consumer"].startswith(CONSUMER_PREFIX.encode()) and entry["consumer"] != self.consumer.encode()
        ]
        if not left:
            return []
        entries: Any = await self._transport.client.xclaim(stream, GROUP, self.consumer, idle_ms, left)
        messages = [_Message(queue, message_id.decode(), fields or {}) for message_id, fields in entries]
        return await self._that_can_be_had(messages)

    async def _that_can_be_had(self, messages: Sequence[_Message]) -> list[_Message]:
        """Without those whose job a live holder has: their message is settled when the job is."""
        ids = [message.job_id for message in messages if message.job_id is not None]
        rows = await self._database.pool.fetch(
            "SELECT resource_id FROM leases WHERE resource_id = ANY($1) AND lease_expires_at >= clock_timestamp()", ids
        )
        leased = {row["resource_id"] for row in rows}
        return [message for message in messages if message.job_id not in leased]


def _without_one_that_serves(callers: list[_Caller], queue: str) -> list[_Caller]:
    for n, caller in enumerate(callers):
        if queue in caller.queues:
            return callers[:n] + callers[n + 1 :]
    return callers
