"""Followers of events, of jobs or of tickets: one registry and one reading task per node for each of the two.

What followers get is read from Postgres, from their cursor on, and together for all of them: it is complete, in order,
and the same after any crash. No follower has a connection of its own. A wakeup says that there is something to read;
since wakeups may be lost, every cursor is also polled, however many wakeups come meanwhile.

A follower holds at most `ROOM` events or `ROOM_BYTES`, plus what one read brings beyond that. A follower that does not
fetch its events is passed over until it does, and costs nothing more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import anyio
import msgspec

from jobd.errors import ServerDown
from jobd.job.history import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from jobd.supervise.service import Handle
    from jobd.supervise.wakeup import Wakeup

log = logging.getLogger(__name__)

#: The cursor of a job's events, or the version of a ticket.
C = TypeVar("C")
#: Writes text to the client's socket past the queues of the ASGI server, and says whether it could. The HTTP/1.1
#: connection puts it into the ASGI scope (`scope["state"]["write_at_once"]` in http/http1.py), and the route that
#: streams events hands it to its follower (http/events.py).
WriteAtOnce: TypeAlias = "Callable[[bytes], bool]"

#: Events that may wait for one follower before it is passed over.
ROOM = 256
#: Bytes of events that may wait for one follower before it is passed over.
ROOM_BYTES = 256 * 1024
#: Seconds between two signs of life to the supervisor while nobody follows anything.
BEAT_S = 5.0


class Batch(msgspec.Struct, Generic[C], frozen=True):
    """What one read found after a cursor."""

    #: The events as server-sent events, and how many they are.
    text: bytes
    count: int
    #: The cursor of the last of them.
    cursor: C
    #: There will be no more events after these.
    is_last: bool = False
    #: There may be more to read at once.
    is_cut: bool = False
    #: The events themselves, for followers that make something else of them.
    events: list[Event] = []


class Follower(Generic[C]):
    """A client that follows the events of one job or ticket."""

    def __init__(
        self, followed_id: UUID, after: C, write_at_once: WriteAtOnce | None = None, *, has_begun: bool = True
    ) -> None:
        self.followed_id = followed_id
        #: The cursor of the last event that it was given.
        self.cursor = after
        #: It will be given nothing more: it has had the last event, or the job is gone, or jobd stops.
        self.is_over = False
        #: False while its first events are read by its own request: until then nothing is read for it.
        self.has_begun = has_begun
        #: At the last read it had no room, so there may be more for it.
        self.was_passed_over = False
        #: Used only while `next` waits: a follower that has text in hand may be writing it.
        self._write_at_once = write_at_once
        self._is_listening = False
        self._waiting: list[bytes] = []
        self._count = 0
        self._size = 0
        self._news = anyio.Event()

    def has_room(self) -> bool:
        if self.is_over:
            return False
        self.was_passed_over = not self.has_begun or self._count >= ROOM or self._size >= ROOM_BYTES
        return not self.was_passed_over

    def give(self, batch: Batch[C]) -> None:
        if not batch.count:
            return
        self.cursor = batch.cursor
        self.is_over = batch.is_last
        is_first = self._is_listening and not self._waiting and not self.is_over
        if is_first and self._write_at_once is not None and self._write_at_once(batch.text):
            return
        self._waiting.append(batch.text)
        self._count += batch.count
        self._size += len(batch.text)
        self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def next(self, timeout_s: float) -> bytes:
        """The events that have come since the last call; nothing after `timeout_s`, or if it is over."""
        if not self._waiting and not self.is_over:
            self._news, self._is_listening = anyio.Event(), True
            with anyio.move_on_after(timeout_s):
                await self._news.wait()
            self._is_listening = False
        text = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._count = self._size = 0
        return text


class EventFollower(Follower[C]):
    """A follower that gets events as they are, not as text."""

    def __init__(self, followed_id: UUID, after: C) -> None:
        super().__init__(followed_id, after, has_begun=False)
        self._events: list[Event] = []

    def give(self, batch: Batch[C]) -> None:
        if not batch.count:
            return
        self.cursor = batch.cursor
        self.is_over = batch.is_last
        self._events += batch.events
        self._count += batch.count
        self._size += len(batch.text)
        self._news.set()

    async def next_events(self, timeout_s: float) -> list[Event]:
        """The events that have come since the last call; none after `timeout_s`, or if it is over."""
        if not self._events and not self.is_over:
            self._news = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._news.wait()
        events, self._events = self._events, []
        self._count = self._size = 0
        return events


class Followers(Generic[C]):
    """A service that reads for all followers of one kind. Subclasses say how to read, and how often."""

    #: Cursors read in one statement.
    places_per_read = 100

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._followers: dict[UUID, set[Follower[C]]] = {}
        #: Jobs or tickets that are known to have changed since they were last read.
        self._moved: set[UUID] = set()
        #: When every cursor was last read, or the first follower came, by time.monotonic().
        self._polled_at = 0.0

    @contextlib.contextmanager
    def following(self, followed_id: UUID, after: C, write_at_once: WriteAtOnce | None = None) -> Iterator[Follower[C]]:
        """A follower for whom the reading task reads all that comes after the cursor."""
        follower = Follower(followed_id, after, write_at_once)
        self._add(follower)
        self._note_moved([followed_id])
        try:
            yield follower
        finally:
            self.leave(follower)

    def _add(self, follower: Follower[C]) -> None:
        if not self._followers:
            self._polled_at = time.monotonic()
            self._wakeup.set()  # the reading task may be waiting longer than until the next poll
        self._followers.setdefault(follower.followed_id, set()).add(follower)

    def leave(self, follower: Follower[C]) -> None:
        """The follower wants nothing more; may be called twice."""
        others = self._followers.get(follower.followed_id, set())
        others.discard(follower)
        if not others:
            self._followers.pop(follower.followed_id, None)

    async def parts(self, follower: Follower[C], heartbeat_s: float) -> AsyncIterator[bytes]:
        """What a follower gets, as it comes; a comment as heartbeat after `heartbeat_s` without anything."""
        while True:
            text = await follower.next(heartbeat_s)
            if text:
                yield text
                if follower.was_passed_over:
                    self.has_room_again(follower)
            elif follower.is_over:
                return
            else:
                yield b": \n\n"

    def has_room_again(self, follower: Follower[C]) -> None:
        """To be called when a follower that was passed over has fetched its events: there may be more."""
        self._note_moved([follower.followed_id])

    def _note_moved(self, ids: Iterable[UUID]) -> None:
        self._moved.update(ids)
        self._wakeup.set()

    # -- what subclasses say -------------------------------------------------------------------------------------

    async def _read(self, places: Sequence[tuple[UUID, C]]) -> Sequence[Batch[C] | None]:
        """The events after each cursor; None: what was followed is over or gone."""
        raise NotImplementedError

    async def _listen(self) -> None:
        """Runs beside the reading task, to receive wakeups from elsewhere."""

    def _poll_s(self) -> float:
        """Seconds between two polls, which read after every cursor without a wakeup."""
        raise NotImplementedError

    def _rest_s(self, took_s: float) -> float:
        """The pause after a read that took this long. What happens meanwhile is read together."""
        raise NotImplementedError

    def _due(self, *, is_poll: bool) -> set[UUID]:
        """The jobs or tickets to read now: those that have changed, or at a poll all that are followed."""
        moved, self._moved = self._moved, set()
        return set(self._followers) if is_poll else moved

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen)
                tasks.start_soon(self._wakeup.set_when, handle.stop)
                handle.ready()
                while not handle.stop.is_set():
                    await self._wakeup.wait(min(BEAT_S, self._until_poll_s()))
                    handle.beat()
                    started_at = time.monotonic()
                    is_poll = self._until_poll_s() <= 0
                    if is_poll:
                        self._polled_at = started_at
                    if due := self._due(is_poll=is_poll):
                        await self.run_once(due)
                        await anyio.sleep(self._rest_s(time.monotonic() - started_at))
                tasks.cancel_scope.cancel()
        finally:
            self._end_all()

    def _until_poll_s(self) -> float:
        return self._polled_at + self._poll_s() - time.monotonic() if self._followers else BEAT_S

    async def run_once(self, ids: Iterable[UUID]) -> int:
        """Read for every follower of these that has room; how many cursors there were."""
        places: dict[tuple[UUID, C], list[Follower[C]]] = {}
        for followed_id in ids:
            for follower in self._followers.get(followed_id, ()):
                if follower.has_room():
                    places.setdefault((followed_id, follower.cursor), []).append(follower)
        keys = list(places)
        for start in range(0, len(keys), self.places_per_read):
            await self._read_for(keys[start : start + self.places_per_read], places)
        return len(keys)

    async def _read_for(self, keys: Sequence[tuple[UUID, C]], places: dict[tuple[UUID, C], list[Follower[C]]]) -> None:
        try:
            batches = await self._read(keys)
        except ServerDown as error:
            log.debug("events were not read: %s", error)
            self._moved.update(followed_id for followed_id, _ in keys)
            return
        for key, batch in zip(keys, batches, strict=True):
            for follower in places[key]:
                follower.end() if batch is None else follower.give(batch)
            if batch is not None and batch.is_cut:
                self._note_moved([key[0]])

    def _end_all(self) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.end()


def server_sent(event_id: object, kind: str, data: bytes) -> bytes:
    """As a server-sent event. JSON has no line breaks, and a type has none: nothing can pass for another event."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(event_id).encode(), kind.encode(), data)
