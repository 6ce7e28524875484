"""Who waits for jobs, and who is next.

A caller stands in a line of every queue that it serves, at the rank at which it likes that queue. Within a line, and
for a job that anyone may have, who came first is first. A job is promised before it is claimed; a caller whose promise
comes to nothing goes to the front. Every step costs the same whether two wait or two thousand.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd.lifecycle.claim import ClaimedJob


class Caller:
    __slots__ = ("jobs", "most", "number", "owner_id", "patient", "queues", "room", "served")

    def __init__(self, queues: Sequence[str], owner_id: str, most: int, *, patient: bool) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self.owner_id = owner_id
        self.most = most
        #: Whether it waits for as long as it takes, a stop of jobd included.
        self.patient = patient
        #: How many more jobs can be promised to it; it stands in line while there is room.
        self.room = most
        #: Its place: whoever has the lowest is next.
        self.number = 0
        self.jobs: list[ClaimedJob] = []
        self.served = anyio.Event()


class _Line:
    __slots__ = ("callers", "room")

    def __init__(self) -> None:
        self.callers: OrderedDict[Caller, None] = OrderedDict()
        self.room = 0


class Callers:
    def __init__(self) -> None:
        self._waiting: dict[Caller, None] = {}
        self._lines: dict[int, dict[str, _Line]] = {}
        self._numbers = count()
        self._impatient = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Caller]:
        """In the order in which they came."""
        return iter(self._waiting)

    def __contains__(self, caller: Caller) -> bool:
        return caller in self._waiting

    # -- coming and going --------------------------------------------------------------------------------------

    def join(self, caller: Caller) -> None:
        caller.number = next(self._numbers)
        self._waiting[caller] = None
        self._impatient += not caller.patient
        self._step_into_lines(caller)

    def leave(self, caller: Caller) -> None:
        if caller in self._waiting:
            del self._waiting[caller]
            self._impatient -= not caller.patient
            if caller.room:
                self._step_out_of_lines(caller, caller.room)

    # -- what they want ----------------------------------------------------------------------------------------

    def ranks(self) -> list[int]:
        return sorted(self._lines)

    def queues(self, rank: int) -> list[str]:
        """The queues that somebody likes at this rank."""
        return list(self._lines.get(rank, ()))

    def are_patient(self) -> bool:
        """Whether each of them stays until it is served."""
        return not self._impatient

    def all_queues(self) -> frozenset[str]:
        return frozenset(queue for lines in self._lines.values() for queue in lines)

    def room(self, rank: int, queue: str) -> int:
        """How many jobs of the queue those want who like it at this rank."""
        line = self._lines.get(rank, {}).get(queue)
        return line.room if line is not None else 0

    # -- promises ----------------------------------------------------------------------------------------------

    def promise(self, queue: str, rank: int | None = None) -> Caller | None:
        """Promise a job of the queue to the first of those who like it at this rank; None: to the first of all."""
        caller = self._first(queue, rank)
        if caller is None:
            return None
        caller.room -= 1
        if caller.room:
            self._add_room(caller, -1)
        else:
            self._step_out_of_lines(caller, 1)
        return caller

    def take_back(self, caller: Caller) -> None:
        """The promised job is not to be had. Of several promises, the last is taken back first, to keep their order."""
        caller.room += 1
        if caller not in self._waiting:
            return
        if caller.room > 1:
            self._add_room(caller, 1)
        else:
            caller.number = -next(self._numbers)
            self._step_into_lines(caller, in_front=True)

    def _first(self, queue: str, rank: int | None) -> Caller | None:
        lines = self._lines.values() if rank is None else [self._lines.get(rank, {})]
        heads = [next(iter(line[queue].callers)) for line in lines if queue in line]
        return min(heads, key=lambda caller: caller.number, default=None)

    # -- lines -------------------------------------------------------------------------------------------------

    def _step_into_lines(self, caller: Caller, *, in_front: bool = False) -> None:
        for rank, queue in enumerate(caller.queues):
            line = self._lines.setdefault(rank, {}).setdefault(queue, _Line())
            line.callers[caller] = None
            line.room += caller.room
            if in_front:
                line.callers.move_to_end(caller, last=False)

    def _step_out_of_lines(self, caller: Caller, room: int) -> None:
        for rank, queue in enumerate(caller.queues):
            line = self._lines[rank][queue]
            del line.callers[caller]
            line.room -= room
            if not line.callers:
                del self._lines[rank][queue]
        for rank in range(len(caller.queues)):
            if not self._lines[rank]:
                del self._lines[rank]

    def _add_room(self, caller: Caller, room: int) -> None:
        for rank, queue in enumerate(caller.queues):
            self._lines[rank][queue].room += room
