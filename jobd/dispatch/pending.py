"""Messages that were read and never settled: by a dead node, or by a read whose answer was lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import redis.exceptions

from jobd.dispatch.stream_reader import MOST_AT_ONCE, Message
from jobd.errors import ServerDown
from jobd.lifecycle.messages import held_among, leased_messages, queued_among
from jobd.stream.consumers import forget_consumers, own_consumers
from jobd.stream.keys import GROUP, stream_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from jobd.config.model import Config
    from jobd.dispatch.stream_reader import StreamReader
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: Seconds between two searches for messages that a dead node or a lost read has left pending.
TAKEOVER_S = 10.0
#: Idle time in seconds from which a pending message that this node does not know counts as one whose read was lost.
LOST_S = 5.0
#: Deliveries up to which a lost message of a job that is not queued is left to the relay to acknowledge.
LOST_TRIES = 10
#: Idle time, in multiples of `leases.ttl_s`, after which a consumer of jobd is removed from its group.
SILENT_LEASES = 10


class PendingMessages:
    def __init__(
        self,
        database: Database,
        transport: Transport,
        consumer: str,
        config: Callable[[], Config],
        reader: StreamReader,
    ) -> None:
        self._database = database
        self._transport = transport
        self._consumer = consumer
        self._config = config
        self._reader = reader

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            await anyio.sleep(min(TAKEOVER_S, self._config().leases.ttl_s))
            try:
                for queue in self._config().queues:
                    await self._search(queue)
            except (ServerDown, redis.exceptions.RedisError, OSError) as error:
                log.debug("pending messages were not searched: %s", error)

    async def _search(self, queue: str) -> None:
        """A raw worker's messages are its own, however long it takes; only jobd's consumers die with their process."""
        client, stream = self._transport.client, stream_of(queue)
        for consumer in await own_consumers(client, stream):
            await self._reader.take_up(await self._left_pending(queue, consumer))
        await forget_consumers(client, stream, SILENT_LEASES * self._config().leases.ttl_s)

    async def _left_pending(self, queue: str, consumer: bytes) -> list[Message]:
        """The messages that a consumer of jobd has pending and whose job may be claimed."""
        if consumer == self._consumer.encode():
            return await self._lost_reads(queue)
        idle_ms = int(self._config().leases.ttl_s * 1500)
        left = [entry["message_id"] async for entry in self._pending(queue, consumer, idle_ms)]
        return await self._that_can_be_had(await self._claim_messages(queue, idle_ms, left))

    async def _lost_reads(self, queue: str) -> list[Message]:
        """Messages pending for this node that it does not know of, since the answer to the read was lost.

        A message whose job is not queued is left to the relay; after LOST_TRIES it is claimed for all the same, and
        acknowledged when the claim is refused.
        """
        idle_ms, stream = int(LOST_S * 1000), stream_of(queue)
        tries = {
            entry["message_id"]: entry["times_delivered"]
            async for entry in self._pending(queue, self._consumer.encode(), idle_ms)
        }
        known = (await leased_messages(self._database, stream)) | self._reader.known_messages()
        lost = [message_id for message_id in tries if message_id.decode() not in known]
        messages = await self._claim_messages(queue, idle_ms, lost)
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

    async def _claim_messages(self, queue: str, idle_ms: int, ids: Sequence[bytes]) -> list[Message]:
        messages: list[Message] = []
        for n in range(0, len(ids), MOST_AT_ONCE):
            entries: Any = await self._transport.client.xclaim(
                stream_of(queue), GROUP, self._consumer, idle_ms, list(ids[n : n + MOST_AT_ONCE])
            )
            messages += [Message(queue, message_id.decode(), fields or {}) for message_id, fields in entries]
        return messages

    async def _that_can_be_had(self, messages: Sequence[Message]) -> list[Message]:
        """Without those whose job a live holder has: their message is settled when the job is."""
        ids = [message.job_id for message in messages if message.job_id is not None]
        leased = await held_among(self._database, ids)
        return [message for message in messages if message.job_id not in leased]
