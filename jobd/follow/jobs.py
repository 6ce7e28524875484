"""The tailer: one per node, for everyone who follows jobs here.

What followers get is the history of their job in Postgres; a read brings about a megabyte at most. Redis only says
that there is something to read (the relay says so on one channel). While Redis is away, and now and then in any case,
every cursor is polled.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import anyio
import msgspec

from jobd.follow.followers import ROOM, Batch, Followers, server_sent
from jobd.job.history import LAST_EVENTS, Cursor, Event, events_after
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.stream import channel
from jobd.stream.keys import TOLD
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jobd.job.history import Record
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: How often all cursors are polled: while Redis says what is new, and while it does not.
HEARING_S = 2.0
#: Seconds between two polls of all cursors while Redis is away and nothing announces events.
DEAF_S = 0.25
#: The pause after a read, as a multiple of the time that the read took, and at most `LONGEST_REST_S`: reading takes at
#: most a third of the time, and a few followers hardly wait.
REST = 2.0
#: Longest pause after a read in seconds.
LONGEST_REST_S = 0.01

_encode = msgspec.json.Encoder().encode
_notes = msgspec.msgpack.Decoder(list[tuple[bytes, str, int, int, str, str]])


class Note(NamedTuple):
    """That something happened to a job: what the firehose tells."""

    job_id: UUID
    #: `gap`: something may have happened that is not listed here
    type: str
    attempt: int
    ts: int
    task: str
    queue: str


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


class Tailer(Followers[Cursor]):
    def __init__(self, database: Database, transport: Transport) -> None:
        super().__init__(Wakeup())
        self._database = database
        self._transport = transport
        self._listeners: set[Listener] = set()
        #: Set by the first follower or listener: without one, no connection to Redis is needed.
        self._wanted = anyio.Event()
        #: The channel in Redis is subscribed.
        self._hears = False

    # -- for the routes ------------------------------------------------------------------------------------------

    def _note_moved(self, ids: Iterable[UUID]) -> None:
        self._wanted.set()
        super()._note_moved(ids)

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

    # -- reading -------------------------------------------------------------------------------------------------

    def _poll_s(self) -> float:
        return HEARING_S if self._hears else DEAF_S

    def _rest_s(self, took_s: float) -> float:
        return min(LONGEST_REST_S, REST * took_s)

    async def _read(self, places: Sequence[tuple[UUID, Cursor]]) -> list[Batch[Cursor] | None]:
        records = await read_history(self._database, [HistoryPlace(*place) for place in places])
        return [
            None if record is None else _batch(record, after)
            for (_, after), record in zip(places, records, strict=True)
        ]

    def _end_all(self) -> None:
        super()._end_all()
        for listener in self._listeners:
            listener.end()

    # -- hearing -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen on the channel, from the first reader on."""
        await self._wanted.wait()
        await channel.hear(self._transport, TOLD, self._heard, opened=self._hears_now, closed=self._is_deaf)

    def _hears_now(self) -> None:
        self._hears = True
        for listener in self._listeners:
            listener.lose()
        self._note_moved(self._followers)  # what was said before was not heard

    def _is_deaf(self) -> None:
        self._hears = False

    def _heard(self, data: bytes) -> None:
        try:
            said = _notes.decode(data)
        except msgspec.DecodeError:
            log.warning("something else than news was said on %s", TOLD)
            return
        notes = [Note(UUID(bytes=note[0]), *note[1:]) for note in said]
        followed = [note.job_id for note in notes if note.job_id in self._followers]
        if followed:
            self._note_moved(followed)
        if self._listeners:
            news = [note for note in notes if note.type != "events" and note.type != "seen"]
            for listener in self._listeners:
                listener.give(news)


def _batch(record: Record, after: Cursor) -> Batch[Cursor] | None:
    """None: the job is over, and its last event is not after the cursor."""
    events = events_after(record, after)
    if not events:
        return None if record.finished_ts is not None else Batch(b"", 0, after, is_cut=record.is_cut)
    text = b"".join(map(_written, events))
    last = events[-1]
    return Batch(text, len(events), last.cursor, is_last=last.type in LAST_EVENTS, is_cut=record.is_cut)


def _written(event: Event) -> bytes:
    data = _encode({"type": event.type, "ts": event.ts, "step": event.step, "data": event.data})
    return server_sent(event.cursor, event.type, data)
