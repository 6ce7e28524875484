"""The firehose: what happens to all jobs, from now on, for the listeners of `GET /v1/events`.

A change that this node has committed is passed on at once, if all fields of its note are known here; the relay's
channel brings it again, and the repetition is dropped. All other changes, and those of other nodes, come by the channel
alone.

A job's changes keep their order: one of this node is passed on at once only if the change before it was passed on too;
otherwise it is left to the channel, which has them in order.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import anyio

from jobd.follow.followers import ROOM
from jobd.job.history import LAST_EVENTS
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jobd.lifecycle.notices import Changes, Notice

#: Changes that are remembered as passed on, to drop them when the channel repeats them: those of about a second at
#: 15 000 jobs/s. One that the channel brings later than that is passed on twice.
REMEMBERED = 50_000


class Note(NamedTuple):
    """That something happened to a job: one event of the firehose."""

    job_id: UUID
    #: `gap`: something may have happened that is not listed here
    type: str
    attempt: int
    ts: int
    task: str
    queue: str


def gap_note() -> Note:
    return Note(UUID(int=0), "gap", 0, int(time.time() * 1000), "", "")


class Listener:
    """A client that gets the changes of all jobs, from now on."""

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
            notes.insert(0, gap_note())
        return notes


class _Last(NamedTuple):
    """The last change of a job that was passed on."""

    type: str
    attempt: int
    task: str
    queue: str
    #: None: the channel brought it.
    attempt_id: UUID | None


class Firehose:
    """All listeners of this node."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        #: The clock of the database, as far as it is known here, in ms since 1970.
        self._now_ms = now_ms
        self._listeners: set[Listener] = set()
        #: Job, type and attempt of changes that were passed on; oldest first.
        self._passed_on: dict[tuple[UUID, str, int], None] = {}
        #: Of each job that is not final, as long as it is remembered; oldest first.
        self._last: dict[UUID, _Last] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._passed_on.clear()
                self._last.clear()

    def __len__(self) -> int:
        return len(self._listeners)

    def lose(self) -> None:
        """Changes of other nodes may have been missed: every listener gets a `gap`."""
        for listener in self._listeners:
            listener.lose()

    def end(self) -> None:
        for listener in self._listeners:
            listener.end()

    # -- what was committed here ---------------------------------------------------------------------------------

    def committed(self, changes: Changes) -> None:
        """Pass on what a commit of this node has changed. Costs nothing while nobody listens."""
        if self._listeners:
            self._give(
                [
                    note
                    for notice in changes.all()
                    if (note := self._note_of(notice)) and self._is_first(note, notice.attempt_id)
                ]
            )

    def _note_of(self, notice: Notice) -> Note | None:
        """None: it is left to the channel, and so are those that follow it until the channel has brought one."""
        last = self._last.get(notice.job_id)
        attempt = _attempt_after(last, notice)
        if attempt is None:
            if notice.type != "events":
                self._last.pop(notice.job_id, None)
            return None
        ts = self._now_ms() if notice.at is None else ms(notice.at)
        task, queue = (notice.task, notice.queue) if last is None else (last.task, last.queue)
        return Note(notice.job_id, notice.type, attempt, ts, task, queue)

    # -- what the channel brings ---------------------------------------------------------------------------------

    def heard(self, notes: Iterable[Note]) -> None:
        """Pass on what was not passed on before. Events of handlers are for the followers of their job alone."""
        if self._listeners:
            news = [note for note in notes if note.type != "events" and note.type != "seen"]
            self._give([note for note in news if self._is_first(note, None)])

    # -- both ----------------------------------------------------------------------------------------------------

    def _is_first(self, note: Note, attempt_id: UUID | None) -> bool:
        """Whether it was not passed on before; from now on it was."""
        key = note.job_id, note.type, note.attempt
        if key in self._passed_on:
            return False
        self._passed_on[key] = None
        if len(self._passed_on) > REMEMBERED:
            del self._passed_on[next(iter(self._passed_on))]
        self._last.pop(note.job_id, None)
        if note.type not in LAST_EVENTS:
            self._last[note.job_id] = _Last(note.type, note.attempt, note.task, note.queue, attempt_id)
            if len(self._last) > REMEMBERED:
                del self._last[next(iter(self._last))]
        return True

    def _give(self, notes: Sequence[Note]) -> None:
        if notes:
            for listener in self._listeners:
                listener.give(notes)


def _attempt_after(last: _Last | None, notice: Notice) -> int | None:
    """The attempt of a change, if it is known and the change before it was passed on."""
    if notice.type == "queued" and notice.attempt == 0:
        return 0 if notice.task else None
    if last is None:
        return None
    if notice.type == "running":
        return notice.attempt if (last.type, last.attempt + 1) == ("queued", notice.attempt) else None
    is_its_end = last.type == "running" and notice.attempt_id is not None and notice.attempt_id == last.attempt_id
    return last.attempt if is_its_end else None
