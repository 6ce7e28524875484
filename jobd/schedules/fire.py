"""Fire: in one transaction, occurrences become jobs and their schedules advance.

The rows of a page are locked, passing by those that another node has; then everything is decided at once, the jobs are
enqueued and the rows written, each only if its version is the one that was read. What cannot be enqueued, because its
queue is full or its task is not configured, waits among the buffered occurrences and is tried again.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import msgspec
from anyio.lowlevel import checkpoint

from jobd.job.status import FINAL_STATUSES, JobStatus
from jobd.lifecycle.enqueue import Created, Enqueued, Existing, KeyMismatch, NewJob, QueueFull, enqueue_within
from jobd.schedules.decide import MOST_BUFFERED, Advance, decide
from jobd.schedules.job import CannotStart, job_for
from jobd.schedules.table import ScheduleNote, ScheduleRow, append_events, flat, row_of
from jobd.store.clock_eras import EARLIEST, STEP_S
from jobd.store.postgres import DEADLOCK_TRIES
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.store.session import Connection, Session

LOOK_AT_SCHEDULES = statement("look_at_schedules", __package__)
LOCK_DUE_SCHEDULES = statement("lock_due_schedules", __package__)
LOCK_BUFFERED_SCHEDULES = statement("lock_buffered_schedules", __package__)
LOCK_OPEN_SCHEDULES = statement("lock_open_schedules", __package__)
LOCK_SCHEDULE = statement("lock_schedule", __package__)
READ_STATUSES = statement("read_statuses", __package__)
SAVE_SCHEDULES = statement("save_schedules", __package__)
PLAN_AGAIN_AFTER_STEP_BACK = statement("plan_again_after_step_back", __package__)

#: Schedules that are decided about in one transaction.
PAGE = 100
#: Jobs of a schedule that are remembered until they have ended.
MOST_OPEN = 100
#: Earlier than this no clock that is right can be.
SANE = datetime.fromtimestamp(EARLIEST, timezone.utc)


class Look(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    #: When the next schedule is due; None: never.
    next_at: datetime | None
    has_buffered: bool
    has_open: bool


class Fired(msgspec.Struct, kw_only=True):
    """What one transaction did."""

    jobs: list[NewJob] = []
    answers: list[Enqueued] = []
    #: Jobs that are to be canceled: an occurrence waits for their end.
    cancels: list[UUID] = []
    #: Jobs for whose end an occurrence waits.
    awaited: list[UUID] = []
    events: list[ScheduleNote] = []
    #: Schedules that were decided about.
    number: int = 0
    #: Name of the last of them.
    last: str = ""


class Decided(msgspec.Struct, kw_only=True):
    """A schedule on its way through the transaction."""

    row: ScheduleRow
    step: Advance
    #: Its jobs that have not ended.
    open_jobs: list[UUID]
    failures: int
    paused_why: str | None
    started: int = 0
    #: Occurrences that could not start, and why.
    blocked: list[datetime] = []
    why: str = ""


class MovedOn(Exception):
    """Somebody has changed a schedule without its lock, which no statement of jobd does."""


async def look(session: Session, *, now: datetime | None = None) -> Look:
    (row,) = await session.fetch(LOOK_AT_SCHEDULES, now)
    return Look(**dict(row))


async def fire_due(database: Database, config: Config, *, now: datetime | None = None) -> Fired:
    """Decide about one page of schedules whose time has come."""
    return await _advance_locked(database, (LOCK_DUE_SCHEDULES, now, SANE, PAGE), config, now)


async def start_buffered(database: Database, config: Config, *, after: str = "", now: datetime | None = None) -> Fired:
    """Start what waits for the end of others, of one page of schedules."""
    return await _advance_locked(database, (LOCK_BUFFERED_SCHEDULES, now, after, PAGE), config, now)


async def settle_open(database: Database, config: Config, *, after: str = "", now: datetime | None = None) -> Fired:
    """See which jobs have ended, and how, of one page of schedules."""
    return await _advance_locked(database, (LOCK_OPEN_SCHEDULES, now, after, PAGE), config, now)


async def _advance_locked(database: Database, lock: tuple[Any, ...], config: Config, now: datetime | None) -> Fired:
    """One transaction over what `lock`, a statement and its parameters, locks; again if a deadlock has undone it."""
    async with database.connection() as connection:
        for _ in range(DEADLOCK_TRIES - 1):
            with contextlib.suppress(asyncpg.DeadlockDetectedError):
                async with connection.transaction():
                    return await _advance(connection, await connection.fetch(*lock), config, now)
        async with connection.transaction():
            return await _advance(connection, await connection.fetch(*lock), config, now)


async def plan_again_after_step_back(session: Session, *, now: datetime | None = None) -> int:
    """How many schedules had been decided about at a time that has not come yet."""
    return len(await session.fetch(PLAN_AGAIN_AFTER_STEP_BACK, now, SANE, STEP_S))


async def lock_schedule(
    connection: Connection, name: str, *, now: datetime | None = None
) -> tuple[ScheduleRow, datetime] | None:
    """One schedule for the rest of the transaction, and the time; None: there is none."""
    rows = await connection.fetch(LOCK_SCHEDULE, now, name)
    return (row_of(rows[0]), rows[0]["now"]) if rows else None


# -- the transaction -----------------------------------------------------------------------------------------------


async def _advance(connection: Connection, records: Sequence[Any], config: Config, now: datetime | None) -> Fired:
    if not records:
        return Fired()
    at: datetime = records[0]["now"]
    rows = [row_of(record) for record in records]
    statuses = await read_statuses(connection, (job_id for row in rows for job_id in row.open_jobs))
    decided = []
    for row in rows:
        decided.append(_decided(row, statuses, at))
        await checkpoint()  # after an outage each takes milliseconds: others have the event loop between two
    jobs, answers = await _enqueue(connection, decided, config, now)
    events = [event for each in decided for event in _events(each, at)]
    await save(connection, [each for each in decided if _is_changed(each)], at)
    await append_events(connection, events)
    return Fired(
        jobs=jobs,
        answers=answers,
        cancels=[job_id for each in decided if each.step.cancels for job_id in each.open_jobs],
        awaited=[job_id for each in decided if each.step.buffered for job_id in each.open_jobs],
        events=events,
        number=len(rows),
        last=rows[-1].name,
    )


async def read_statuses(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, JobStatus]:
    rows = await session.fetch(READ_STATUSES, list(job_ids))
    return {row["id"]: JobStatus(row["status"]) for row in rows}


def _decided(row: ScheduleRow, statuses: dict[UUID, JobStatus], now: datetime) -> Decided:
    failures, open_jobs = row.failures, []
    for job_id in row.open_jobs:
        status = statuses.get(job_id)
        if status is JobStatus.DONE:
            failures = 0
        elif status is JobStatus.ERROR:
            failures += 1
        elif status is not None and status not in FINAL_STATUSES:
            open_jobs.append(job_id)
    most = row.definition.pause_after_failures
    paused_why = None
    if most and failures >= most and not row.is_paused:
        paused_why = f"{failures} jobs in a row ended in error (pause_after_failures = {most})"
    standing = row.standing(len(open_jobs))
    if row.is_paused or paused_why is not None:
        step = Advance(buffered=row.buffered, occurrence=row.occurrence, next_at=row.next_at, handled=row.handled)
    else:
        step = decide(standing, now, is_clock_right=now >= SANE)
    return Decided(row=row, step=step, open_jobs=open_jobs, failures=failures, paused_why=paused_why)


async def _enqueue(
    connection: Connection, decided: Sequence[Decided], config: Config, now: datetime | None
) -> tuple[list[NewJob], list[Enqueued]]:
    """Enqueue all that starts; what cannot be enqueued goes back among what waits."""
    sent: list[tuple[Decided, datetime, NewJob]] = []
    for each in decided:
        for occurrence in each.step.starts:
            job = job_for(each.row, occurrence, config)
            if isinstance(job, CannotStart):
                each.blocked.append(occurrence)
                each.why = job.why
            else:
                sent.append((each, occurrence, job))
    jobs = [job for _, _, job in sent]
    answers = await enqueue_within(connection, jobs, max_queued=config.limits.max_queued, now=now) if jobs else []
    for (each, occurrence, job), answer in zip(sent, answers, strict=True):
        if isinstance(answer, (Created, Existing, KeyMismatch)):
            each.started += isinstance(answer, Created)
            each.open_jobs.append(answer.job_id)
        else:
            each.blocked.append(occurrence)
            full = isinstance(answer, QueueFull)
            each.why = f"queue {job.queue} is full (limits.max_queued)" if full else "its key is busy"
    for each in decided:
        each.blocked.sort()
        each.open_jobs = each.open_jobs[-MOST_OPEN:]
    return jobs, answers


def _buffered(each: Decided) -> tuple[datetime, ...]:
    """What waits, the longest first; too many that cannot start push out the oldest, which `_events` says."""
    return (*each.blocked, *each.step.buffered)[-MOST_BUFFERED:]


def _pushed_out(each: Decided) -> tuple[datetime, ...]:
    return (*each.blocked, *each.step.buffered)[:-MOST_BUFFERED]


def _is_changed(each: Decided) -> bool:
    row, step = each.row, each.step
    return (
        (row.occurrence, row.next_at, row.handled, row.buffered, row.open_jobs, row.failures)
        != (step.occurrence, step.next_at, step.handled, _buffered(each), tuple(each.open_jobs), each.failures)
        or each.started > 0
        or bool(step.skipped)
        or step.missed is not None
        or each.paused_why is not None
    )


def _is_planned(each: Decided) -> bool:
    return (each.row.occurrence, each.row.next_at) != (each.step.occurrence, each.step.next_at)


def _events(each: Decided, now: datetime) -> list[ScheduleNote]:
    name, step, events = each.row.name, each.step, []
    if step.missed is not None:
        missed = step.missed
        detail = ("" if missed.is_exact else "at least as many; ") + f"catch_up = {each.row.definition.catch_up}"
        events.append(
            ScheduleNote(
                schedule=name,
                at=now,
                kind="missed",
                first_for=missed.first,
                last_for=missed.last,
                number=missed.number,
                detail=detail,
            )
        )
    if step.skipped:
        events.append(_several(name, now, "skipped", step.skipped, f"overlap = {each.row.definition.overlap}"))
    if pushed := _pushed_out(each):
        events.append(_several(name, now, "missed", pushed, f"{MOST_BUFFERED} others wait already: {each.why}"))
    fresh = [at for at in each.blocked if at not in each.row.buffered]
    if fresh:
        events.append(_several(name, now, "delayed", fresh, each.why))
    if each.paused_why is not None:
        events.append(ScheduleNote(schedule=name, at=now, kind="paused", detail=each.paused_why))
    return events


def _several(name: str, now: datetime, kind: Any, occurrences: Sequence[datetime], detail: str) -> ScheduleNote:
    return ScheduleNote(
        schedule=name,
        at=now,
        kind=kind,
        first_for=occurrences[0],
        last_for=occurrences[-1],
        number=len(occurrences),
        detail=detail,
    )


async def save(connection: Session, decided: Sequence[Decided], now: datetime) -> None:
    if not decided:
        return
    saved = await connection.fetch(
        SAVE_SCHEDULES,
        [each.row.name for each in decided],
        [each.row.version for each in decided],
        [each.step.occurrence for each in decided],
        [each.step.next_at for each in decided],
        [now if _is_planned(each) else each.row.decided_at for each in decided],
        [_array(flat(each.step.handled)) for each in decided],
        [_array(f'"{at.isoformat()}"' for at in _buffered(each)) for each in decided],
        [_array(each.open_jobs) for each in decided],
        [each.failures for each in decided],
        [each.started for each in decided],
        [len(each.step.skipped) for each in decided],
        [(each.step.missed.number if each.step.missed else 0) + len(_pushed_out(each)) for each in decided],
        [each.paused_why for each in decided],
    )
    if len(saved) != len(decided):
        raise MovedOn(f"{len(decided) - len(saved)} schedules were changed by somebody who had not locked them")


def _array(values: Iterable[object]) -> str:
    """An array as Postgres writes it; arrays of different lengths cannot be sent as one."""
    return "{" + ",".join(map(str, values)) + "}"
