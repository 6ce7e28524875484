"""The mode of each queue, `stream` or `direct`, and how it changes: the business of the node that relays.

    stream   every job is taken through its message, so that workers which speak only Redis may take it
    direct   nothing is offered in Redis; jobs are taken from the table

A raw worker cannot compare and swap, so no job may be to be had in both ways at a time:

    to stream   the row in Postgres is changed first, which waits for takes under way; what is offered carries the new
                number of the mode
    to direct   first the fence: from then on Redis refuses offers of the modes before, and messages that nobody has
                read are taken back. If no job that still waits has its message in foreign hands, the row is changed, in
                the epoch in which the fence was raised

Messages in the hands of jobd's own consumers are harmless there, since their claim is a compare-and-swap; but another
worker could take them over, so those of waiting jobs are taken back as well.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from jobd.lifecycle.messages import queued_among
from jobd.lifecycle.modes import QueueMode, change_mode, queue_modes
from jobd.lifecycle.outbox import hold_epoch
from jobd.lifecycle.read import note_raw_workers
from jobd.stream.consumers import is_own
from jobd.stream.keys import GROUP, MODES, stream_of
from jobd.stream.project import EpochChanged, Projector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from jobd.config.model import Config, Queue
    from jobd.lifecycle.modes import Mode
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: Seconds between two checks of who reads the streams.
CHECK_S = 1.0
#: Seconds since its last XREADGROUP for which a raw worker without pending messages counts as active.
SILENT_S = 600.0
#: Seconds between two checks (CLIENT LIST) whether a worker that is silent for SILENT_S is still blocked in its read.
WAITING_CHECK_S = 10.0
#: Seconds by which the idle time of a blocked consumer and that of its connection may differ to be taken for the same.
AGES_S = 2.0
#: Rounds of taking back messages that jobd's own consumers have read, for which they may claim meanwhile.
ROUNDS = 5
#: Versions from which on XINFO CONSUMERS shows a worker that waits for its first message; older ones show it later.
SHOWS_READERS = {"redis": (7, 2), "valkey": (7, 2)}


class _Readers(NamedTuple):
    """Raw workers that were seen on a stream."""

    #: One has messages in hand, or asked for some not long ago.
    is_active: bool = False
    #: For each of the others, the seconds since it last asked.
    silent_s: tuple[float, ...] = ()


class Modes:
    def __init__(
        self,
        database: Database,
        transport: Transport,
        config: Callable[[], Config],
        on_modes: Callable[[frozenset[str]], None] = lambda direct: None,
    ) -> None:
        self._database = database
        self._transport = transport
        self._config = config
        self._on_modes = on_modes
        self._known: dict[str, QueueMode] = {}
        #: Queues that are on their way to `direct`: Redis takes no offers of them any more.
        self._closing: set[str] = set()
        #: Queues in mode `direct`, as `on_modes` was last called with; None: not called yet.
        self._reported: frozenset[str] | None = None
        self._next_check = 0.0
        self._next_waiting_check = 0.0
        self._shows_readers: bool | None = None

    # -- what the modes are --------------------------------------------------------------------------------------

    def is_direct(self, queue: str) -> bool:
        return self.of(queue).mode == "direct"

    def may_offer(self, queue: str) -> bool:
        return queue not in self._closing and self.of(queue).mode == "stream"

    def of(self, queue: str) -> QueueMode:
        return self._known.get(queue) or QueueMode()

    async def load(self, session: Session) -> None:
        """Read them again: another node may have changed them."""
        self._known = await queue_modes(session)
        self._closing = set()
        self._next_check = 0.0
        self._report()

    async def begin(self, epoch: str) -> None:
        """Raise the mode number of every queue in mode `stream`; called in each epoch before anything is offered in it.

        What was read or offered before has a smaller number then, and a fence left by a change that failed is below it.
        Raises EpochChanged if Postgres has another epoch meanwhile.
        """
        async with self._database.transaction() as transaction:
            if await hold_epoch(transaction) != epoch:
                raise EpochChanged
            known = await queue_modes(transaction)
            for queue in sorted({*known, *self._config().queues}):  # one order of locks
                mode = known.get(queue) or QueueMode()
                if mode.mode == "stream" and await change_mode(transaction, queue, "stream", mode_no=mode.mode_no):
                    known[queue] = QueueMode("stream", mode.mode_no + 1, mode.paused)
        self._known, self._closing, self._next_check = known, set(), 0.0
        self._report()

    def fences(self) -> dict[str, int]:
        """The fence of each queue in mode `direct`, for a Redis that has lost them."""
        return {queue: mode.mode_no for queue, mode in self._known.items() if mode.mode == "direct"}

    def _report(self) -> None:
        direct = frozenset(queue for queue, mode in self._known.items() if mode.mode == "direct")
        if direct != self._reported:
            self._reported = direct
            self._on_modes(direct)

    # -- what they are to be -------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_check

    async def check(self, session: Session, epoch: str) -> set[str]:
        """Change the modes that are to change, once a second; the queues whose mode is another now.

        Raises EpochChanged. To be called while no offer is on its way to Redis.
        """
        if not self.is_due:
            return set()
        self._next_check = time.monotonic() + CHECK_S
        queues = self._config().queues
        undecided = [name for name, queue in queues.items() if self._forced(queue) is None]
        fences, readers = await self._fences_and_readers(undecided)
        changed = set()
        for name in {*queues, *self._known, *fences}:
            wanted = self._wanted(name, queues.get(name), readers.get(name))
            if await self._lead_to(session, epoch, name, wanted, fences.get(name, 0), readers.get(name)):
                changed.add(name)
        self._report()
        return changed

    def _forced(self, queue: Queue) -> Mode | None:
        """The mode that the configuration asks for; None: it depends on who reads the stream."""
        if queue.deliver == "auto":
            if not queue.mirror:
                return "direct"
            return None if queue.slots and self._shows_readers is not False else "stream"
        return queue.deliver

    def _wanted(self, name: str, queue: Queue | None, readers: _Readers | None) -> Mode:
        if queue is None:
            return self.of(name).mode
        if forced := self._forced(queue):
            return forced
        return "stream" if readers is None or readers.is_active else "direct"

    async def _fences_and_readers(self, queues: Collection[str]) -> tuple[dict[str, int], dict[str, _Readers]]:
        """The fences that stand, and who reads the streams of these queues, in one round trip."""
        client = self._transport.client
        if self._shows_readers is None:
            self._shows_readers = _shows_readers(await client.info("server"))
        pipeline: Any = client.pipeline(transaction=False)
        pipeline.hgetall(MODES)
        for queue in queues:
            pipeline.xinfo_consumers(stream_of(queue), GROUP)
        fences, *consumers = await pipeline.execute(raise_on_error=False)
        return _numbers(fences), dict(zip(queues, map(_readers, consumers), strict=True))

    async def _lead_to(
        self, session: Session, epoch: str, queue: str, wanted: Mode, fence: int, readers: _Readers | None
    ) -> bool:
        mode = self.of(queue)
        if wanted == "stream":
            # A fence above the number of mode `stream` is left from a change to `direct` that was not finished.
            is_closed = mode.mode == "direct" or fence > mode.mode_no
            return is_closed and await self._to_stream(session, queue, fence, readers)
        if mode.mode == "direct":
            if fence < mode.mode_no:  # somebody has deleted it from Redis
                await Projector(self._transport.client).fence(epoch, queue, mode.mode_no)
            return False
        if readers is not None and readers.silent_s and await self._still_waits(readers.silent_s):
            return False
        return await self._to_direct(session, epoch, queue, is_forced=readers is None)

    # -- changes -------------------------------------------------------------------------------------------------

    async def _to_stream(self, session: Session, queue: str, fence: int, readers: _Readers | None) -> bool:
        if readers is not None and readers.is_active:
            await note_raw_workers(session, [queue])  # before it is offered anything: while Redis is away, nobody polls
        has_changed = await self._change(session, queue, "stream")
        while has_changed and self.of(queue).mode_no < fence:  # Postgres has gone back in time
            has_changed = await self._change(session, queue, "stream")
        return has_changed

    async def _to_direct(self, session: Session, epoch: str, queue: str, *, is_forced: bool) -> bool:
        projector, useless = Projector(self._transport.client), list[str]()
        active_ms = None if is_forced else int(SILENT_S * 1000)
        for _ in range(ROUNDS):
            messages = await projector.fence(epoch, queue, self.of(queue).mode_no + 1, useless, active_ms)
            if messages is None:
                return False
            self._closing.add(queue)
            waiting = await queued_among(session, [message.job_id for message in messages])
            held = [message for message in messages if message.job_id in waiting]
            if not all(message.is_own for message in held):
                log.info("queue %s: raw workers have messages that are not claimed yet; asking again", queue)
                return False
            useless = [message.message_id for message in held]
            if not useless:
                break
        else:
            return False
        async with self._database.transaction() as transaction:
            if await hold_epoch(transaction) != epoch:
                raise EpochChanged
            return await self._change(transaction, queue, "direct")

    async def _change(self, session: Session, queue: str, mode: Mode) -> bool:
        before = self.of(queue)
        if not await change_mode(session, queue, mode, mode_no=before.mode_no):
            self._next_check = 0.0
            self._known = await queue_modes(session)  # another node has changed it
            return False
        self._known[queue] = QueueMode(mode, before.mode_no + 1, before.paused)
        self._closing.discard(queue)
        log.info("queue %s: jobs go %s now", queue, "through the stream" if mode == "stream" else "directly to slots")
        return True

    async def _still_waits(self, silent_s: Collection[float]) -> bool:
        """Whether one of these asked long ago and is still connected, waiting for its message."""
        if time.monotonic() < self._next_waiting_check:
            return True
        self._next_waiting_check = time.monotonic() + WAITING_CHECK_S
        try:
            clients: Any = await self._transport.client.client_list()
        except ResponseError as error:  # a user of Redis that may not see the others
            log.debug("who waits at the streams is not known: %s", error)
            return False
        blocked = [
            float(client["idle"]) for client in clients if "b" in client["flags"] and client["cmd"] == "xreadgroup"
        ]
        return any(abs(age - silent) <= AGES_S for age in blocked for silent in silent_s)


def _shows_readers(info: Mapping[str, Any]) -> bool:
    kind = "valkey" if "valkey_version" in info else "redis"
    version = tuple(int(part) for part in str(info[f"{kind}_version"]).split(".")[:2])
    return version >= SHOWS_READERS[kind]


def _readers(consumers: Any) -> _Readers:
    """From the answer to XINFO CONSUMERS; an error says that there is no stream or group."""
    if isinstance(consumers, Exception):
        return _Readers()
    raw = [consumer for consumer in consumers if not is_own(consumer["name"])]
    is_active = any(consumer["pending"] or consumer["idle"] <= SILENT_S * 1000 for consumer in raw)
    return _Readers(is_active, () if is_active else tuple(consumer["idle"] / 1000 for consumer in raw))


def _numbers(fences: Any) -> dict[str, int]:
    if isinstance(fences, ResponseError):
        raise EpochChanged from fences  # a key of another type has this name: Redis is filled again
    if isinstance(fences, Exception):
        raise fences
    return {queue.decode(): int(number) for queue, number in fences.items()}
