"""What the commits of this process did, in numbers that only grow: for `/metrics`.

A verb adds what its statement answers, a batch at a time. Numbers stand by queue and task; a name that is not
configured counts as `other`, so that memory and labels are bounded. They begin at zero with the process. A commit whose
answer was lost with the connection is counted if it is read back (enqueue, claim), and else left out.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from jobd.lifecycle.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import asyncpg

    from jobd.lifecycle.claim import ClaimedJob

#: Stands for every name of a queue or task that is not configured.
OTHER: Final = "other"
#: Outcomes of attempts that ran: others were given back or fell silent, and their time says nothing about the task.
RAN: Final = frozenset({"done", "failed", "canceled"})

_queue_of = attrgetter("queue")


class TaskCounts:
    """The numbers of one task in one queue."""

    __slots__ = ("attempts", "finished", "run", "submitted")

    def __init__(self) -> None:
        #: Jobs that were made.
        self.submitted = 0
        #: Jobs that are final, by their status.
        self.finished: dict[str, int] = {}
        #: Attempts that ended, by their outcome.
        self.attempts: dict[str, int] = {}
        #: Seconds from the claim to the end of attempts that ran.
        self.run = Histogram()


class Tally:
    def __init__(
        self, is_queue: Callable[[str], bool] = lambda _: True, is_task: Callable[[str], bool] = lambda _: True
    ) -> None:
        #: Whether a queue, or a task, of this name is configured.
        self._is_queue = is_queue
        self._is_task = is_task
        self.tasks: dict[tuple[str, str], TaskCounts] = {}
        #: By queue: seconds from when a job was due to when it was claimed.
        self.waits: dict[str, Histogram] = {}
        #: Attempts that ended because their holder fell silent.
        self.leases_expired = 0

    # -- what verbs add --------------------------------------------------------------------------------------------

    def submitted(self, names: Iterable[tuple[str, str]]) -> None:
        """New jobs, by queue and task."""
        for (queue, task), number in Counter(names).items():
            self._of(queue, task).submitted += number

    def started(self, jobs: Iterable[ClaimedJob]) -> None:
        """Jobs that were claimed; those of one queue mostly come together."""
        for queue, claimed in groupby(jobs, _queue_of):
            waits = [job.waited_s for job in claimed if job.waited_s is not None]
            if waits:
                self._waits_of(queue).add_all(waits)

    def done(self, queue: str, task: str, run_s: Sequence[float]) -> None:
        """Jobs of one task that are done, each with the seconds that its last attempt took."""
        counts = self._of(queue, task)
        _grow(counts.attempts, "done", len(run_s))
        _grow(counts.finished, "done", len(run_s))
        counts.run.add_all(run_s)

    def ended(self, rows: Iterable[asyncpg.Record]) -> None:
        """Attempts that ended otherwise, by the columns queue, task, outcome, run_s, and the job's status after it."""
        for row in rows:
            counts, outcome = self._of(row["queue"], row["task"]), row["outcome"]
            _grow(counts.attempts, outcome, 1)
            if outcome in RAN:
                counts.run.add(row["run_s"])
            if outcome == "expired":
                self.leases_expired += 1
            if row["status"] in ("error", "canceled"):
                _grow(counts.finished, row["status"], 1)

    def canceled(self, names: Iterable[tuple[str, str]]) -> None:
        """Jobs that were canceled while they waited, by queue and task."""
        for (queue, task), number in Counter(names).items():
            _grow(self._of(queue, task).finished, "canceled", number)

    # -- names -----------------------------------------------------------------------------------------------------

    def _of(self, queue: str, task: str) -> TaskCounts:
        counts = self.tasks.get((queue, task))
        if counts is None:
            queue = queue if self._is_queue(queue) else OTHER
            task = task if self._is_task(task) else OTHER
            counts = self.tasks.setdefault((queue, task), TaskCounts())
        return counts

    def _waits_of(self, queue: str) -> Histogram:
        waits = self.waits.get(queue)
        if waits is None:
            waits = self.waits.setdefault(queue if self._is_queue(queue) else OTHER, Histogram())
        return waits


def _grow(numbers: dict[str, int], name: str, by: int) -> None:
    numbers[name] = numbers.get(name, 0) + by
