"""The ticket tailer: one per node, for everyone who follows tickets here.

What readers get is read from the log of their ticket in Postgres, from their cursor on, in one statement for all of
them: it is complete, in order, and the same after any crash. A wakeup says that this node has changed something; what
other nodes did is found by looking, once a second, and only while somebody follows a ticket.

A reader holds about `ROOM` lines at most; one that does not fetch them is passed over until it does.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.errors import ServerDown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from jobd.supervise.service import Handle
    from jobd.tickets.service import Desk, Wakeups
    from jobd.wire.tickets import LogLine

log = logging.getLogger(__name__)

LOOK_S = 1.0
#: How often it shows that it is alive while nobody follows a ticket.
BEAT_S = 5.0
#: Shortest time between two looks. What comes in between is read together.
ROUND_S = 0.02
#: Lines that wait for one reader before it is passed over.
ROOM = 256


class Reader:
    """One who follows a ticket."""

    def __init__(self, ticket_id: UUID, after: int) -> None:
        self.ticket_id = ticket_id
        #: The version of the last line that was put into its hands.
        self.cursor = after
        #: Nobody will tell it more.
        self.is_over = False
        self._waiting: list[bytes] = []
        self._news = anyio.Event()

    @property
    def has_room(self) -> bool:
        return not self.is_over and len(self._waiting) < ROOM

    def give(self, lines: Sequence[LogLine]) -> None:
        """Lines of its ticket in order, of which it may know the first."""
        for line in lines:
            if line.version > self.cursor:
                self._waiting.append(written(line))
                self.cursor = line.version
                self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def next(self, timeout_s: float) -> bytes:
        """What has come since; nothing if that took too long, or if it is over."""
        if not self._waiting and not self.is_over:
            self._news = anyio.Event()
            with anyio.move_on_after(timeout_s):
                await self._news.wait()
        text = b"".join(self._waiting)
        self._waiting.clear()
        return text


def written(line: LogLine) -> bytes:
    """As a server-sent event: JSON has no line breaks of its own."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (line.version, line.type.encode(), msgspec.json.encode(line))


class TicketTailer:
    def __init__(self, desk: Desk, wakeups: Wakeups) -> None:
        self._desk = desk
        self._wakeup = wakeups.changed
        self._readers: dict[UUID, set[Reader]] = {}

    @contextlib.contextmanager
    def reading(self, ticket_id: UUID, after: int = 0) -> Iterator[Reader]:
        reader = Reader(ticket_id, after)
        self._readers.setdefault(ticket_id, set()).add(reader)
        self.look()
        try:
            yield reader
        finally:
            others = self._readers[ticket_id]
            others.discard(reader)
            if not others:
                del self._readers[ticket_id]

    def look(self) -> None:
        """To be called when there may be more for a reader that has fetched what waited."""
        self._wakeup.set()

    async def run(self, handle: Handle) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._wakeup.set_when, handle.stop)
                handle.ready()
                while not handle.stop.is_set():
                    await self._wakeup.wait(LOOK_S if self._readers else BEAT_S)
                    handle.beat()
                    if self._readers:
                        await self.run_once()
                        await anyio.sleep(ROUND_S)
                tasks.cancel_scope.cancel()
        finally:
            for reader in [one for readers in self._readers.values() for one in readers]:
                reader.end()

    async def run_once(self) -> int:
        """Look at the tickets of everyone who has room; how many lines there were."""
        places = {
            ticket_id: min(cursors)
            for ticket_id, readers in self._readers.items()
            if (cursors := [reader.cursor for reader in readers if reader.has_room])
        }
        try:
            found = await self._desk.log(places) if places else {}
        except ServerDown as error:
            log.debug("no look at tickets: %s", error)
            return 0
        for ticket_id, lines in found.items():
            for reader in self._readers.get(ticket_id, ()):
                if reader.has_room:
                    reader.give(lines)
        number = sum(map(len, found.values()))
        if number:
            self.look()  # a long log comes in pieces
        return number
