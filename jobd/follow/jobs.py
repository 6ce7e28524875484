"""The tailer: one per node, for all followers of jobs here.

What followers get is the history of their job in Postgres; a read brings about a megabyte at most. What this node has
committed is read at once. Commits of other nodes are published by the relay on a channel in Redis. Every cursor is also
polled, more often while Redis is away.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
import msgspec

from jobd.follow.firehose import Firehose, Note
from jobd.follow.followers import Batch, EventFollower, Follower, Followers, server_sent
from jobd.job.history import BEYOND, LAST_EVENTS, START, Cursor, Event, events_after
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.stream import channel
from jobd.stream.keys import TOLD
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jobd.follow.firehose import Listener
    from jobd.follow.followers import WriteAtOnce
    from jobd.job.history import Record
    from jobd.lifecycle.notices import Changes
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: Seconds between two polls of all cursors while the channel in Redis is subscribed.
HEARING_S = 2.0
#: Seconds between two polls of all cursors while Redis is away and nothing publishes events.
DEAF_S = 0.25
#: The pause after a read, as a multiple of the time that the read took, and at most `LONGEST_REST_S`: reading takes at
#: most a third of the time, and a few followers hardly wait.
REST = 2.0
#: Longest pause after a read in seconds.
LONGEST_REST_S = 0.01
#: The event `running` of the first attempt of a job.
STARTED = Cursor(1, 0)

_encode = msgspec.json.Encoder().encode


class HeardNote(msgspec.Struct, array_like=True, frozen=True):
    """A change as the relay publishes it on its channel: `NoteArray` in stream/changes.py."""

    job_id: bytes
    type: str
    attempt: int
    ts: int
    task: str
    queue: str
    #: Number of its (first) event in the attempt; -1: not known, or the relay is of an earlier version.
    event_n: int = -1


_notes = msgspec.msgpack.Decoder(list[HeardNote])


class Tailer(Followers[Cursor]):
    def __init__(self, database: Database, transport: Transport) -> None:
        super().__init__(Wakeup())
        self._database = database
        self._transport = transport
        self._firehose = Firehose(database.clock.now_ms)
        #: The newest known event of each job that has changed; None: not known, or a follower may lack earlier events.
        self._newest: dict[UUID, Cursor | None] = {}
        #: Set by the first follower or listener: without one, no connection to Redis is needed.
        self._wanted = anyio.Event()
        #: The channel in Redis is subscribed.
        self._hears = False

    # -- for the routes ------------------------------------------------------------------------------------------

    def join(self, job_id: UUID, write_at_once: WriteAtOnce | None = None) -> Follower[Cursor]:
        """A follower whose first events its caller reads, and then calls `begin`; what happens meanwhile is not lost.

        The caller has to call `leave` in the end.
        """
        follower = Follower(job_id, START, write_at_once, has_begun=False)
        self._add(follower)
        return follower

    @contextlib.contextmanager
    def reading(self, job_id: UUID, after: Cursor = STARTED) -> Iterator[EventFollower[Cursor]]:
        """A follower that gets what handlers of a job emit, from the first event on, and its end.

        Nothing is read for it before its caller has called `made`, nor for the start of the job: a read is followed by
        a pause, in which the first event of the handler would wait. With `after` START it gets all events of the job.
        """
        follower = EventFollower(job_id, after)
        self._add(follower)
        try:
            yield follower
        finally:
            self.leave(follower)

    def begin(self, follower: Follower[Cursor], after: Cursor, record: Record) -> None:
        """Give a follower what its caller has read of the job; the rest is read for it as it comes."""
        follower.cursor, follower.has_begun = after, True
        batch = _batch(record, after)
        follower.end() if batch is None else follower.give(batch)
        if follower.was_passed_over or (batch is not None and batch.is_cut):
            self._note_moved([follower.followed_id])

    @contextlib.contextmanager
    def waiting(self, job_id: UUID, *, is_made: bool = True) -> Iterator[Follower[Cursor]]:
        """A follower that is over as soon as the job is; it gets no events, and nothing is read for it before a poll.

        Its caller reads the job after this, since it may be over already. Or it makes the job after this (`is_made`
        False) and then calls `made`; until then a poll that does not find the job means nothing.
        """
        follower = Follower(job_id, BEYOND, has_begun=is_made)
        self._add(follower)
        try:
            yield follower
        finally:
            self.leave(follower)

    def made(self, follower: Follower[Cursor]) -> None:
        """The job that the follower waits for is there from now on."""
        follower.has_begun = True
        if follower.was_passed_over:
            self._note_moved([follower.followed_id])

    def made_before(self, follower: Follower[Cursor]) -> None:
        """The job that the follower waits for was there already: all that has happened to it is to be read."""
        follower.has_begun = True
        self._note_moved([follower.followed_id])

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        with self._firehose.listening() as listener:
            self._wanted.set()
            if not self._hears:
                listener.lose()
            yield listener

    @property
    def listeners(self) -> int:
        """How many hear of everything."""
        return len(self._firehose)

    def _add(self, follower: Follower[Cursor]) -> None:
        self._wanted.set()
        super()._add(follower)

    def _note_moved(self, ids: Iterable[UUID]) -> None:
        ids = list(ids)
        self._newest.update(dict.fromkeys(ids))
        super()._note_moved(ids)

    # -- reading -------------------------------------------------------------------------------------------------

    def _poll_s(self) -> float:
        return HEARING_S if self._hears else DEAF_S

    def _rest_s(self, took_s: float) -> float:
        return min(LONGEST_REST_S, REST * took_s)

    def _due(self, *, is_poll: bool) -> set[UUID]:
        """Without jobs whose newest event all followers have: a read that was under way may have brought it."""
        due, newest = super()._due(is_poll=is_poll), self._newest
        self._newest = {}
        return due if is_poll else {job_id for job_id in due if self._lacks(job_id, newest.get(job_id))}

    def _lacks(self, job_id: UUID, newest: Cursor | None) -> bool:
        """Whether some follower of the job does not have its newest event yet."""
        return newest is None or any(follower.cursor < newest for follower in self._followers.get(job_id, ()))

    async def _read(self, places: Sequence[tuple[UUID, Cursor]]) -> list[Batch[Cursor] | None]:
        records = await read_history(self._database, [HistoryPlace(*place) for place in places])
        return [
            None if record is None else _batch(record, after)
            for (_, after), record in zip(places, records, strict=True)
        ]

    def _end_all(self) -> None:
        super()._end_all()
        self._firehose.end()

    # -- what this node has committed ----------------------------------------------------------------------------

    def committed(self, changes: Changes) -> None:
        """To be called after a commit of this node: its followers need not wait for the relay and the channel."""
        if self._followers:
            for notice in changes.of(self._followers):
                newest = None if notice.attempt is None else Cursor(notice.attempt, notice.event_n or 0)
                self._happened(notice.job_id, notice.type, newest)
        self._firehose.committed(changes)

    def _happened(self, job_id: UUID, kind: str, cursor: Cursor | None) -> None:
        """Read for the followers that do not have the event yet; `cursor` None: its number is not known."""
        if kind in LAST_EVENTS:
            cursor = None  # a follower from `STARTED` on is beyond the cancel of a job that never started
        is_new = False
        for follower in self._followers[job_id]:
            if follower.cursor == BEYOND:
                if kind in LAST_EVENTS:
                    follower.end()
            elif not follower.is_over and (cursor is None or follower.cursor < cursor):
                is_new = True
        if is_new:
            newest = self._newest.get(job_id, cursor)
            self._note_moved([job_id])
            self._newest[job_id] = None if newest is None or cursor is None else max(newest, cursor)

    # -- hearing -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen on the channel, from the first reader on."""
        await self._wanted.wait()
        await channel.hear(self._transport, TOLD, self._heard, opened=self._hears_now, closed=self._is_deaf)

    def _hears_now(self) -> None:
        self._hears = True
        self._firehose.lose()
        self._note_moved(self._followers)  # what was published before the subscription was missed

    def _is_deaf(self) -> None:
        self._hears = False

    def _heard(self, data: bytes) -> None:
        try:
            heard_notes = _notes.decode(data)
        except msgspec.DecodeError:
            log.warning("something else than news was said on %s", TOLD)
            return
        notes = [
            Note(UUID(bytes=heard.job_id), heard.type, heard.attempt, heard.ts, heard.task, heard.queue)
            for heard in heard_notes
        ]
        for note, heard in zip(notes, heard_notes, strict=True):
            if note.job_id in self._followers:
                cursor = None if heard.event_n < 0 else Cursor(heard.attempt, heard.event_n)
                self._happened(note.job_id, note.type, cursor)
        self._firehose.heard(notes)


def _batch(record: Record, after: Cursor) -> Batch[Cursor] | None:
    """None: the job is over, and its last event is not after the cursor."""
    events = events_after(record, after)
    if not events:
        return None if record.finished_ts is not None else Batch(b"", 0, after, is_cut=record.is_cut)
    text = b"".join(map(_written, events))
    last = events[-1]
    return Batch(text, len(events), last.cursor, is_last=last.type in LAST_EVENTS, is_cut=record.is_cut, events=events)


def _written(event: Event) -> bytes:
    data = _encode({"type": event.type, "ts": event.ts, "step": event.step, "data": event.data})
    return server_sent(event.cursor, event.type, data)
