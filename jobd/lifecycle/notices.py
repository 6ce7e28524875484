"""What a commit of this process has changed, for those in it who wait for that: followers, waits, the ticket runner.

A notice holds what the verb had at hand, and nothing is read for it. Most commits concern nobody who waits, so a batch
is handed over as `Changes`, which makes notices only when it is asked, and only of the jobs that it is asked about.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobd.job.model import AlreadyFinished, Canceled, CancelRequested, Completed, DeadLettered, Requeued
from jobd.lifecycle.claim import ClaimedJob
from jobd.lifecycle.enqueue import Created
from jobd.lifecycle.events import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.job.history import Cursor
    from jobd.lifecycle.cancel import CancelAnswer
    from jobd.lifecycle.claim import ClaimAnswer
    from jobd.lifecycle.enqueue import Enqueued, NewJob


class Notice(NamedTuple):
    """A change of a job. What the verb did not have at hand is None or empty."""

    job_id: UUID
    #: Type of the event: queued (again), running, events, cancel_requested, done, error or canceled.
    type: str
    attempt: int | None = None
    #: Number of the newest event of that attempt.
    event_n: int | None = None
    #: By the clock of the database.
    at: datetime | None = None
    task: str = ""
    queue: str = ""
    attempt_id: UUID | None = None


class ChangeKind:
    """How the items of one verb and their answers become notices."""

    def __init__(self, job_id_of: Callable[[Any], UUID], notice_of: Callable[[Any, Any], Notice | None]) -> None:
        self.job_id_of = job_id_of
        #: None: the item changed nothing.
        self.notice_of = notice_of


class Changes:
    """What one commit changed."""

    __slots__ = ("_answers", "items", "kind")

    def __init__(self, kind: ChangeKind, items: Sequence[Any], answers: Sequence[Any]) -> None:
        self.kind = kind
        self.items = items
        self._answers = answers

    def all(self) -> list[Notice]:
        return list(filter(None, map(self.kind.notice_of, self.items, self._answers)))

    def of(self, job_ids: Container[UUID]) -> list[Notice]:
        """The notices of these jobs alone."""
        return list(filter(None, self._notices_of(job_ids)))

    def _notices_of(self, job_ids: Container[UUID]) -> Iterator[Notice | None]:
        for place, job_id in enumerate(map(self.kind.job_id_of, self.items)):
            if job_id in job_ids:
                yield self.kind.notice_of(self.items[place], self._answers[place])


# -- what the answers of each verb mean ----------------------------------------------------------------------------


def _created(job: NewJob, answer: Enqueued) -> Notice | None:
    if not isinstance(answer, Created):
        return None
    return Notice(job.id, "queued", 0, 1, answer.created_at, job.task, job.queue)


def _claimed(ask: Any, answer: ClaimAnswer) -> Notice | None:
    if isinstance(answer, ClaimedJob):
        return _taken(answer, answer)
    kind = _type_of(answer)  # a job that has ended because an expired lease was to be taken over, or None
    return None if kind is None else Notice(ask[0].job_id, kind)


def _taken(job: ClaimedJob, _: object) -> Notice:
    return Notice(job.job_id, "running", job.attempt_no, 0, None, job.task, job.queue, job.attempt_id)


def _ended(held: Any, answer: object) -> Notice | None:
    kind = _type_of(answer)
    return None if kind is None else Notice(held.job_id, kind, attempt_id=held.attempt_id)


def _type_of(answer: object) -> str | None:
    if isinstance(answer, AlreadyFinished):  # perhaps by this very report, whose first answer was lost
        if answer.requeued:
            return "queued"
        return "error" if answer.dead_lettered else _FINAL.get(answer.outcome.value)
    return _TYPES.get(type(answer))


_TYPES: Final[dict[type, str]] = {Completed: "done", Requeued: "queued", DeadLettered: "error", Canceled: "canceled"}
_FINAL: Final = {"done": "done", "canceled": "canceled"}


def _emitted(batch: Any, answer: object) -> Notice | None:
    if not isinstance(answer, Kept):
        return None
    last: Cursor = answer.last
    return Notice(batch.job_id, "events", last.attempt, last.n)


def _canceled(job_id: UUID, answer: CancelAnswer) -> Notice | None:
    if isinstance(answer, CancelRequested):
        return Notice(job_id, "cancel_requested")
    return Notice(job_id, "canceled") if isinstance(answer, Canceled) else None


#: Items are NewJob, answers Enqueued.
ENQUEUED: Final = ChangeKind(attrgetter("id"), _created)
#: Items are pairs of which the first is an Ask, answers ClaimAnswer.
CLAIMED: Final = ChangeKind(lambda item: item[0].job_id, _claimed)
#: Items are ClaimedJob, answers the same.
TAKEN: Final = ChangeKind(attrgetter("job_id"), _taken)
#: Items are reports with a `job_id`, answers those of complete, fail and release.
ENDED: Final = ChangeKind(attrgetter("job_id"), _ended)
#: Items are EventBatch, answers those of `append_events`.
EMITTED: Final = ChangeKind(attrgetter("job_id"), _emitted)
#: Items are ids of jobs, answers CancelAnswer.
CANCELED: Final = ChangeKind(lambda job_id: job_id, _canceled)
#: Items are ids of jobs that had not started in time; their answers do not matter.
EXPIRED: Final = ChangeKind(lambda job_id: job_id, lambda job_id, _: Notice(job_id, "canceled"))
#: Items are ids of new jobs; their answers do not matter.
REDRIVEN: Final = ChangeKind(lambda job_id: job_id, lambda job_id, _: Notice(job_id, "queued", 0, 1))
#: Items are ReapedJob, with the status after the attempt has expired; their answers do not matter.
REAPED: Final = ChangeKind(attrgetter("job_id"), lambda job, _: Notice(job.job_id, job.status))
#: A group was sealed, which may have finished it; there are no items.
SEALED: Final = ChangeKind(lambda job_id: job_id, lambda job_id, _: None)
#: Items are ids of jobs that were canceled because what they waited for has failed; their answers do not matter.
GIVEN_UP: Final = ChangeKind(lambda job_id: job_id, lambda job_id, _: Notice(job_id, "canceled", 0, 2))
