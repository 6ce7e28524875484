"""Who waits for jobs, and who is next.

A caller stands in a line of every queue that it serves, at the rank that the queue has in its order of preference.
Lines are first in, first out. A job is promised before it is claimed; a caller whose promise is not kept goes to the
front. Every step takes constant time, however many callers wait.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd.dispatch.slots import JobSink
    from jobd.lifecycle.claim import ClaimedJob


class Caller:
    """An HTTP worker that waits for jobs: it leaves the line with the first that it gets."""

    __slots__ = ("jobs", "most", "number", "owner_id", "patient", "promised", "queues", "room", "served")

    def __init__(self, queues: Sequence[str], owner_id: str, most: int, *, patient: bool) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self.owner_id = owner_id
        #: Jobs that it wants, those that are promised included.
        self.most = most
        #: Whether it waits without a time limit, also while jobd stops.
        self.patient = patient
        #: Jobs that are being claimed for it.
        self.promised = 0
        #: How many more jobs can be promised to it; it stands in line while there is room.
        self.room = most
        #: Its place in line: the lowest number is next.
        self.number = 0
        self.jobs: list[ClaimedJob] = []
        self.served = anyio.Event()

    @property
    def stays(self) -> bool:
        """Whether it waits for more after it was served."""
        return False

    @property
    def is_served(self) -> bool:
        return self.served.is_set()

    def deliver(self, jobs: list[ClaimedJob]) -> None:
        self.jobs = jobs
        self.served.set()


class SlotCaller(Caller):
    """All slots of one queue: they stay in line and say how many jobs they want at the moment."""

    __slots__ = ("sink",)

    def __init__(self, queue: str, owner_id: str, sink: JobSink) -> None:
        super().__init__((queue,), owner_id, 0, patient=True)
        self.sink = sink

    @property
    def stays(self) -> bool:
        return True

    def deliver(self, jobs: list[ClaimedJob]) -> None:
        self.sink.take_over(jobs)


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
        if caller.room:
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
        """The queues that some caller has at this rank."""
        return list(self._lines.get(rank, ()))

    def are_patient(self) -> bool:
        """Whether each of them stays until it is served."""
        return not self._impatient

    def all_queues(self) -> frozenset[str]:
        return frozenset(queue for lines in self._lines.values() for queue in lines)

    def wants(self, queue: str) -> bool:
        """Whether anybody wants a job of the queue."""
        return any(queue in lines for lines in self._lines.values())

    def room(self, rank: int, queue: str) -> int:
        """How many jobs of the queue the callers want that have it at this rank."""
        line = self._lines.get(rank, {}).get(queue)
        return line.room if line is not None else 0

    def want(self, caller: Caller, most: int) -> None:
        """From now on the caller wants this number of jobs, those that are promised included."""
        caller.most = most
        self._resize(caller)

    # -- promises ----------------------------------------------------------------------------------------------

    def promise(self, queue: str, rank: int | None = None) -> Caller | None:
        """Promise a job of the queue to the first caller that has it at this rank; None: to the first of all."""
        caller = self._first(queue, rank)
        if caller is not None:
            self._promise(caller, 1)
        return caller

    def promise_many(
        self, queue: str, rank: int, most: int, *, without: Caller | None = None
    ) -> list[tuple[Caller, int]]:
        """Promise up to `most` jobs of the queue to the callers that have it at this rank; how many to each.

        `without`: this one gets nothing.
        """
        promises: list[tuple[Caller, int]] = []
        while most > 0 and (caller := self._first(queue, rank, without)) is not None:
            promises.append((caller, self.promise_to(caller, most)))
            most -= promises[-1][1]
        return promises

    def promise_to(self, caller: Caller, most: int) -> int:
        """Promise the caller as many jobs as it wants, up to `most`; how many that are."""
        number = min(most, caller.room)
        self._promise(caller, number)
        return number

    def _promise(self, caller: Caller, number: int) -> None:
        caller.promised += number
        self._resize(caller)

    def take_back(self, caller: Caller, number: int = 1) -> None:
        """Promised jobs could not be claimed. Of several promises the last is taken back first, to keep the order."""
        caller.promised -= number
        if caller in self._waiting:
            self._resize(caller, in_front=True)

    def keep(self, caller: Caller, number: int) -> None:
        """Promises are kept: the caller gets the jobs. One that stays in line says then how many it still wants."""
        caller.promised -= number
        caller.most = max(0, caller.most - number)
        if caller.stays and caller in self._waiting:
            self._resize(caller)

    def _resize(self, caller: Caller, *, in_front: bool = False) -> None:
        """Let its room follow from what it wants and what is promised to it."""
        before, caller.room = caller.room, max(0, caller.most - caller.promised)
        if before == caller.room or caller not in self._waiting:
            return
        if before and caller.room:
            self._add_room(caller, caller.room - before)
        elif before:
            self._step_out_of_lines(caller, before)
        else:
            caller.number = -next(self._numbers) if in_front else next(self._numbers)
            self._step_into_lines(caller, in_front=in_front)

    def _first(self, queue: str, rank: int | None, without: Caller | None = None) -> Caller | None:
        lines = self._lines.values() if rank is None else [self._lines.get(rank, {})]
        heads = [_head(line[queue], without) for line in lines if queue in line]
        return min((head for head in heads if head is not None), key=lambda caller: caller.number, default=None)

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


def _head(line: _Line, without: Caller | None) -> Caller | None:
    """The first in line, or the second if the first is the one to be left out."""
    return next((caller for caller in line.callers if caller is not without), None)
