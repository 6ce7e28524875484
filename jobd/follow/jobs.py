"""The tailer: one per node, for everyone who follows jobs here. Nobody has a connection of their own, to either server.

What readers get is read from Postgres, from their cursor on, in one statement for all of them: it is complete, in
order, and the same after any crash. Redis only says that there is something to read (the relay says so on one channel).
While Redis is away, and now and then in any case, everyone's place is looked at unasked.

A look brings about a megabyte at most. A reader holds at most `ROOM` events or `ROOM_BYTES`, and what one look brings
more than that; one that does not fetch them is passed over until it does, and costs nothing more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import anyio
import msgspec

from jobd.errors import ServerDown
from jobd.job.history import LAST_EVENTS, START, Cursor, Event, events_after
from jobd.lifecycle.events import Place, read_history
from jobd.stream import channel
from jobd.stream.keys import TOLD
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: How often all places are looked at unasked: while Redis says what is new, and while it does not.
HEARING_S = 2.0
DEAF_S = 0.25
#: How often it shows that it is alive while nobody follows anything.
BEAT_S = 5.0
#: The pause after a look, as many times as long as the look took, but at most so long. What comes in between is read
#: together: few readers wait for little, and many cost no more than a part of the time.
PAUSE = 2.0
LONGEST_PAUSE_S = 0.01
#: Places looked at in one statement.
PLACES = 100
#: Events and bytes that wait for one reader before it is passed over.
ROOM = 256
ROOM_BYTES = 256 * 1024

_encode = msgspec.json.Encoder().encode
_notes = msgspec.msgpack.Decoder(list[tuple[bytes, str, int, int, str, str]])


class Note(NamedTuple):
    """That something happened to a job: what the firehose tells."""

    job_id: UUID
    #: `gap`: something may have happened that is not told here
    type: str
    attempt: int
    ts: int
    task: str
    queue: str


class Reader:
    """One who follows a job."""

    def __init__(self, job_id: UUID, after: Cursor) -> None:
        self.job_id = job_id
        #: The last event that was put into its hands.
        self.cursor = after
        #: It has had the last event there is, or its job is gone.
        self.is_over = False
        #: There may be more than it had room for.
        self.was_passed_over = False
        #: Writes to its client right away, and says whether it could. Only used while `next` waits: who has something
        #: in hand may be writing it.
        self.write_at_once: Callable[[bytes], bool] | None = None
        self._is_listening = False
        self._waiting: list[bytes] = []
        self._count = 0
        self._size = 0
        self._news = anyio.Event()

    def has_room(self) -> bool:
        if self.is_over:
            return False
        self.was_passed_over = self._count >= ROOM or self._size >= ROOM_BYTES
        return not self.was_passed_over

    def give(self, events: Sequence[Event], text: bytes) -> None:
        """More events, and how they are written: the same for all readers who stand in the same place."""
        if not events:
            return
        self.cursor = events[-1].cursor
        self.is_over = events[-1].type in LAST_EVENTS
        is_first = self._is_listening and not self._waiting and not self.is_over
        if is_first and self.write_at_once is not None and self.write_at_once(text):
            return
        self._waiting.append(text)
        self._count += len(events)
        self._size += len(text)
        self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def next(self, timeout_s: float) -> bytes:
        """What has come since; nothing if that took too long, or if it is over."""
        if not self._waiting and not self.is_over:
            self._news, self._is_listening = anyio.Event(), True
            with anyio.move_on_after(timeout_s):
                await self._news.wait()
            self._is_listening = False
        text = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._count = self._size = 0
        return text


class Listener:
    """One who hears of everything that happens, from now on."""

    def __init__(self) -> None:
        self._waiting: list[Note] = []
        self._lost = False
        self._news = anyio.Event()
        self.is_over = False

    def give(self, notes: Iterable[Note]) -> None:
        self._waiting.extend(notes)
        if len(self._waiting) > ROOM * 4:
            self._waiting.clear()
            self._lost = True
        self._news.set()

    def lose(self) -> None:
        self._lost = True
        self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def next(self, timeout_s: float) -> list[Note]:
        if not self._waiting and not self._lost and not self.is_over:
            self._news = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._news.wait()
        notes, self._waiting = self._waiting, []
        if self._lost:
            self._lost = False
            notes.insert(0, Note(UUID(int=0), "gap", 0, int(time.time() * 1000), "", ""))
        return notes


def written(event: Event) -> bytes:
    """As a server-sent event. JSON has no line breaks of its own, and a type has none: nothing can pass for another."""
    data = _encode({"type": event.type, "ts": event.ts, "step": event.step, "data": event.data})
    return b"id: %d-%d\nevent: %s\ndata: %s\n\n" % (*event.cursor, event.type.encode(), data)


class Tailer:
    def __init__(self, database: Database, transport: Transport) -> None:
        self._database = database
        self._transport = transport
        self._readers: dict[UUID, set[Reader]] = {}
        self._listeners: set[Listener] = set()
        #: Jobs of which something new was heard.
        self._moved: set[UUID] = set()
        self._wakeup = Wakeup()
        self._wanted = anyio.Event()
        self._hears = False

    # -- for the routes ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self, job_id: UUID, after: Cursor = START) -> Iterator[Reader]:
        reader = Reader(job_id, after)
        self._readers.setdefault(job_id, set()).add(reader)
        self._wanted.set()
        self._note_moved([job_id])
        try:
            yield reader
        finally:
            others = self._readers[job_id]
            others.discard(reader)
            if not others:
                del self._readers[job_id]

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        listener = Listener()
        self._listeners.add(listener)
        self._wanted.set()
        if not self._hears:
            listener.lose()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def has_room_again(self, reader: Reader) -> None:
        """To be called when a reader has fetched what waited: there may be more."""
        self._note_moved([reader.job_id])

    # -- running -------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._hear)
                tasks.start_soon(self._wakeup.set_when, handle.stop)
                handle.ready()
                while not handle.stop.is_set():
                    if not await self._wakeup.wait(self._pause_s()):
                        self._moved.update(self._readers)
                    handle.beat()
                    moved, self._moved = self._moved, set()
                    if moved:
                        started_at = time.monotonic()
                        await self.run_once(moved)
                        await anyio.sleep(min(LONGEST_PAUSE_S, PAUSE * (time.monotonic() - started_at)))
                tasks.cancel_scope.cancel()
        finally:
            self._end_all()

    def _pause_s(self) -> float:
        if not self._readers:
            return BEAT_S
        return HEARING_S if self._hears else DEAF_S

    async def run_once(self, jobs: Iterable[UUID]) -> int:
        """Look at the places of everyone who follows one of these jobs; how many places there were."""
        places: dict[tuple[UUID, Cursor], list[Reader]] = {}
        for job_id in jobs:
            for reader in self._readers.get(job_id, ()):
                if reader.has_room():
                    places.setdefault((job_id, reader.cursor), []).append(reader)
        keys = list(places)
        for start in range(0, len(keys), PLACES):
            await self._look(keys[start : start + PLACES], places)
        return len(keys)

    async def _look(self, keys: Sequence[tuple[UUID, Cursor]], places: dict[tuple[UUID, Cursor], list[Reader]]) -> None:
        try:
            records = await read_history(self._database, [Place(*key) for key in keys])
        except ServerDown as error:
            log.debug("no look at events: %s", error)
            self._moved.update(job_id for job_id, _ in keys)
            return
        for key, record in zip(keys, records, strict=True):
            if record is None:
                for reader in places[key]:
                    reader.end()
                continue
            events = events_after(record, key[1])
            is_over = record.finished_ts is not None and not events
            text = b"".join(map(written, events))
            for reader in places[key]:
                reader.end() if is_over else reader.give(events, text)
            if record.is_cut:
                self._note_moved([key[0]])

    def _note_moved(self, jobs: Iterable[UUID]) -> None:
        self._moved.update(jobs)
        self._wakeup.set()

    def _end_all(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.end()
        for listener in self._listeners:
            listener.end()

    # -- hearing -------------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Listen on the channel, from the first reader on."""
        await self._wanted.wait()
        await channel.hear(self._transport, TOLD, self._heard, opened=self._hears_now, closed=self._is_deaf)

    def _hears_now(self) -> None:
        self._hears = True
        for listener in self._listeners:
            listener.lose()
        self._note_moved(self._readers)  # what was said before was not heard

    def _is_deaf(self) -> None:
        self._hears = False

    def _heard(self, data: bytes) -> None:
        try:
            said = _notes.decode(data)
        except msgspec.DecodeError:
            log.warning("something else than news was said on %s", TOLD)
            return
        notes = [Note(UUID(bytes=note[0]), *note[1:]) for note in said]
        followed = [note.job_id for note in notes if note.job_id in self._readers]
        if followed:
            self._note_moved(followed)
        if self._listeners:
            told = [note for note in notes if note.type != "events" and note.type != "seen"]
            for listener in self._listeners:
                listener.give(told)
