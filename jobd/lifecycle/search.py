"""Search: pages of jobs that fit a filter, newest first, and their number; none costs more in a larger table.

Pages use keyset pagination by job id. Jobs in error, running and waiting are searched where they are few: among the
dead letters, by the leases, by the index of the queue; jobs with a label or of an owner in the table of labels. All
others are searched in a stretch of the table.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from jobd.job.status import JobStatus
from jobd.lifecycle.read import STRETCH, queue_stats
from jobd.store.ids import first_id_at
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.lifecycle.read import QueueStats
    from jobd.store.session import Session

SEARCH_JOBS = statement("search_jobs")
SEARCH_DEAD_JOBS = statement("search_dead_jobs")
SEARCH_RUNNING_JOBS = statement("search_running_jobs")
SEARCH_WAITING_JOBS = statement("search_waiting_jobs")
SEARCH_LABELLED_JOBS = statement("search_labelled_jobs")
SEARCH_LIVE_JOBS = statement("search_live_jobs")
COUNT_JOBS = statement("count_jobs")
COUNT_DEAD_JOBS = statement("count_dead_jobs")
COUNT_RUNNING_JOBS = statement("count_running_jobs")
COUNT_WAITING_JOBS = statement("count_waiting_jobs")
COUNT_LIVE_JOBS = statement("count_live_jobs")
COUNT_LABELLED_JOBS = statement("count_labelled_jobs")
WAITING_NUMBER = statement("waiting_number")
LIST_BY_SPEC = statement("list_by_spec")

#: Rows that a search with a filter reads first: many of the newest jobs fit a common filter.
SHORT_STRETCH = 500
#: Rows that one count may read, in stretches: some tenths of a second on a small board. Beyond it is not exact.
MOST_COUNTED = 100_000
#: The same for jobs that are found one by one, from a label or a dead letter.
MOST_COUNTED_APART = 20_000
#: Every status, as the counters of a queue name them.
STATUSES = tuple(status.value for status in JobStatus)
#: Below and above every id.
LOWEST, HIGHEST = UUID(int=0), UUID(int=2**128 - 1)

_encode = msgspec.json.Encoder().encode


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are meant; None: any."""

    status: str | None = None
    #: Only these statuses, for a verb that changes no others; `status` is one of them, if it is set.
    among: tuple[str, ...] | None = None
    task: str | None = None
    queue: str | None = None
    #: The code of the error of a job that ended in one.
    error: str | None = None
    #: A part of the message of that error, in any case of letters.
    text: str | None = None
    #: Made at this time or later, and before that one.
    since: datetime | None = None
    until: datetime | None = None
    #: Names and values, all of which the job has.
    labels: tuple[tuple[str, str], ...] = ()
    #: Name of the token that sent the job.
    owner: str | None = None
    #: The caller may see none of the jobs that it asks for.
    fits_none: bool = False
    #: The group that the job is a member of.
    group: UUID | None = None

    @property
    def statuses(self) -> tuple[str, ...] | None:
        return self.among if self.status is None else (self.status,)

    @property
    def is_about_errors(self) -> bool:
        return self.error is not None or self.text is not None

    @property
    def has_terms(self) -> bool:
        """Whether more than the time decides."""
        return self.has_plain_terms or self.entry is not None

    @property
    def has_plain_terms(self) -> bool:
        """Whether more than the time, labels and owner decides."""
        return self.is_about_errors or any(term is not None for term in (self.statuses, self.task, self.queue))

    @property
    def entry(self) -> tuple[str, str] | None:
        """Name and value in the table of labels under which all these jobs stand; the owner has the name ''."""
        if self.group is not None:
            return "@group", str(self.group)
        if self.labels:
            return self.labels[0]
        return None if self.owner is None else ("", self.owner)

    @property
    def is_entry_alone(self) -> bool:
        """Every job that stands there fits."""
        entries = len(self.labels) + (self.owner is not None) + (self.group is not None)
        return not self.has_plain_terms and entries == 1

    @property
    def is_empty(self) -> bool:
        """No job can fit: a job has one value for a label."""
        return self.fits_none or len(dict(self.labels)) < len(set(self.labels))


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    task: str
    queue: str
    status: str
    priority: int
    run_after: datetime
    attempt_count: int
    max_attempts: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    #: A JSON object of strings.
    labels: str | None
    owner: str | None


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    #: False: there are at least as many.
    is_exact: bool


class Page(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]
    #: Where the next page begins; None at the end.
    next_before: UUID | None


EVERY_JOB = JobFilter()


async def search_jobs(
    session: Session,
    wanted: JobFilter = EVERY_JOB,
    *,
    most: int = 100,
    before: UUID | None = None,
    stretch: int = STRETCH,
) -> Page:
    """A page of jobs, newest first. It may be short, even empty, and still not the last: `next_before` says."""
    if wanted.is_empty:
        return Page(jobs=[], next_before=None)
    place = await _place_of(session, wanted, stretch)
    limits = [most]
    if wanted.has_terms and not wanted.is_entry_alone:
        limits = [SHORT_STRETCH, stretch] if stretch > SHORT_STRETCH else [stretch]
    rows, fitting = [], []
    for limit in limits:  # what many jobs fit is found among the newest, rarer jobs in all of the stretch
        rows = await session.fetch(place.search, *_parameters(place, wanted, before, limit))
        fitting = [row for row in rows if row["fits"]][:most]
        if len(fitting) == most:
            break
    end = fitting[-1]["id"] if len(fitting) == most else rows[-1]["id"] if rows else None
    return Page(jobs=[_summary(row) for row in fitting], next_before=end)


async def count_jobs(
    session: Session, wanted: JobFilter = EVERY_JOB, *, most: int | None = None, stretch: int = STRETCH
) -> JobCount:
    """How many jobs fit: by the counters of the queues if these suffice, else among the newest `most` rows."""
    if wanted.is_empty:
        return JobCount(count=0, is_exact=True)
    if msgspec.structs.replace(wanted, status=None, among=None, queue=None) == EVERY_JOB:
        return JobCount(count=_by_counters(await queue_stats(session), wanted), is_exact=True)
    place = await _place_of(session, wanted, stretch)
    count, before = 0, None
    for _ in range(0, most or place.most_counted, stretch):
        (row,) = await session.fetch(place.count, *_parameters(place, wanted, before, stretch))
        count += row["fitting"]
        before = row["next_before"]
        if before is None:
            return JobCount(count=count, is_exact=True)
    return JobCount(count=count, is_exact=False)


def _by_counters(queues: Sequence[QueueStats], wanted: JobFilter) -> int:
    statuses = wanted.statuses or STATUSES
    fitting = [stats for stats in queues if wanted.queue in (None, stats.queue)]
    return sum(getattr(stats, status) for stats in fitting for status in statuses)


def _parameters(place: _Place, wanted: JobFilter, before: UUID | None, limit: int) -> tuple[object, ...]:
    since = LOWEST if wanted.since is None else first_id_at(wanted.since)
    until = HIGHEST if wanted.until is None else first_id_at(wanted.until)
    statuses = None if wanted.statuses is None else list(wanted.statuses)
    labels = _encode(dict(wanted.labels)).decode() if wanted.labels else None
    terms = statuses, wanted.task, wanted.queue, wanted.error, wanted.text, labels, wanted.owner
    entry = wanted.entry or () if place is _LABELLED else ()
    return min(until, before or HIGHEST), since, limit, *terms, *entry


async def list_by_spec(
    session: Session, spec_hash: bytes, *, most: int = 100, before: UUID | None = None, owner: str | None = None
) -> Page:
    """Jobs that do exactly this, newest first; `owner`: only those of this one, so that a page may be short."""
    rows = await session.fetch(LIST_BY_SPEC, spec_hash, before or HIGHEST, most, owner)
    fitting = [_summary(row) for row in rows if row["fits"]]
    return Page(jobs=fitting, next_before=rows[-1]["id"] if rows else None)


class _Place(msgspec.Struct, frozen=True):
    """Where jobs are searched: the statements that read a stretch of it."""

    search: str
    count: str
    #: Rows that one count may look at.
    most_counted: int = MOST_COUNTED_APART


_ALL = _Place(SEARCH_JOBS, COUNT_JOBS, MOST_COUNTED)
_DEAD = _Place(SEARCH_DEAD_JOBS, COUNT_DEAD_JOBS)
_RUNNING = _Place(SEARCH_RUNNING_JOBS, COUNT_RUNNING_JOBS)
_LABELLED = _Place(SEARCH_LABELLED_JOBS, COUNT_LABELLED_JOBS)
#: Where waiting jobs are searched, by the statuses that are wanted.
_WAITING = {
    frozenset({"queued"}): _Place(SEARCH_WAITING_JOBS, COUNT_WAITING_JOBS),
    frozenset({"queued", "running"}): _Place(SEARCH_LIVE_JOBS, COUNT_LIVE_JOBS),
}


async def _place_of(session: Session, wanted: JobFilter, stretch: int) -> _Place:
    statuses = frozenset(wanted.statuses or ())
    if statuses == {"running"} and not wanted.is_about_errors and wanted.group is None:
        return _RUNNING
    if wanted.entry is not None:
        return _LABELLED
    if wanted.is_about_errors or statuses == {"error"}:
        return _DEAD
    if statuses in _WAITING:
        (row,) = await session.fetch(WAITING_NUMBER)
        if row["number"] <= stretch:  # else they are many among the newest jobs
            return _WAITING[statuses]
    return _ALL


def _summary(row: Any) -> JobSummary:
    return JobSummary(**{name: row[name] for name in JobSummary.__struct_fields__})
