"""Jobs of a schedule beside its time: run now, and backfill."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from jobd.auth.table import audit
from jobd.lifecycle.enqueue import Created, Enqueued, Existing, NewJob, enqueue_within
from jobd.occurrences.walk import A_MOMENT, occurrences_after, to_ms
from jobd.schedules.change import ScheduleRefused, unknown
from jobd.schedules.decide import MOST_BUFFERED, Advance
from jobd.schedules.fire import Decided, lock_schedule, save
from jobd.schedules.job import CannotStart, job_for
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.config.model import Config
    from jobd.lifecycle.enqueue import IdempotencyKey
    from jobd.schedules.table import ScheduleRow
    from jobd.store.postgres import Database
    from jobd.store.session import Connection, Session

STARTED_AMONG = statement("started_among", __package__)

#: Occurrences that one backfill may name.
MOST_BACKFILLED = 100


class Started(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[NewJob]
    answers: list[Enqueued]


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    started: Started
    #: Occurrences that wait for the end of others.
    buffered: int
    #: Occurrences that had a job already.
    existing: int


async def run_now(
    database: Database,
    name: str,
    config: Config,
    *,
    actor: str,
    key: IdempotencyKey | None = None,
    now: datetime | None = None,
) -> Started:
    """A job at once, whatever `overlap` says and also while the schedule is paused; its next occurrence stays."""
    async with database.transaction() as connection:
        row, at = await _locked(connection, name, now)
        job = job_for(row, at, config)
        if isinstance(job, CannotStart):
            raise ScheduleRefused("schedule_blocked", f"schedule {name} cannot make a job: {job.why}")
        job = msgspec.structs.replace(job, key=key)
        started = await _start(connection, row, [job], row.buffered, config, at, now)
        if any(isinstance(answer, Created) for answer in started.answers):
            await audit(connection, actor, "schedule.run", f"{name} {job.id}")
        return started


async def backfill(
    database: Database,
    name: str,
    config: Config,
    *,
    since: datetime,
    until: datetime,
    actor: str,
    now: datetime | None = None,
) -> Backfilled:
    """Jobs of the occurrences from `since` to `until`, both included, that have none.

    With `overlap` allow_all or cancel_other they start at once; else they wait for the end of others, one by one.
    """
    async with database.transaction() as connection:
        row, at = await _locked(connection, name, now)
        until = min(until, at)
        wanted = list(
            islice(occurrences_after(row.definition.timing(), since - A_MOMENT, until=until), MOST_BACKFILLED + 1)
        )
        if len(wanted) > MOST_BACKFILLED:
            raise ScheduleRefused(
                "backfill_too_large",
                f"schedule {name} has more than {MOST_BACKFILLED} occurrences in that time;"
                f" the first {MOST_BACKFILLED} end at {wanted[MOST_BACKFILLED - 1].isoformat()}: do it in parts",
            )
        there = await _started_among(connection, name, wanted)
        missing = [occurrence for occurrence in wanted if to_ms(occurrence) not in there]
        missing = [occurrence for occurrence in missing if occurrence not in row.buffered]
        await audit(connection, actor, "schedule.backfill", f"{name} {len(missing)} of {len(wanted)} occurrences")
        at_once = missing if row.definition.overlap in ("allow_all", "cancel_other") else []
        waiting = [] if at_once else missing
        if len(row.buffered) + len(waiting) > MOST_BUFFERED:
            raise ScheduleRefused(
                "backfill_too_large",
                f"schedule {name} has {len(row.buffered)} occurrences waiting, and {MOST_BUFFERED} at most may wait",
            )
        jobs = [job_for(row, occurrence, config) for occurrence in at_once]
        for job in jobs:
            if isinstance(job, CannotStart):
                raise ScheduleRefused("schedule_blocked", f"schedule {name} cannot make a job: {job.why}")
        made = [job for job in jobs if isinstance(job, NewJob)]
        buffered = tuple(sorted((*row.buffered, *waiting)))
        started = await _start(connection, row, made, buffered, config, at, now)
        return Backfilled(started=started, buffered=len(waiting), existing=len(wanted) - len(missing))


async def _locked(connection: Connection, name: str, now: datetime | None) -> tuple[ScheduleRow, datetime]:
    found = await lock_schedule(connection, name, now=now)
    if found is None:
        raise unknown(name)
    return found


async def _started_among(session: Session, name: str, occurrences: Sequence[datetime]) -> set[int]:
    """Those of these occurrences, in ms, that have a job which retention has not deleted yet."""
    rows = await session.fetch(STARTED_AMONG, name, [str(to_ms(at)) for at in occurrences])
    return {int(row["at_ms"]) for row in rows}


async def _start(
    connection: Connection,
    row: ScheduleRow,
    jobs: list[NewJob],
    buffered: tuple[datetime, ...],
    config: Config,
    at: datetime,
    now: datetime | None,
) -> Started:
    """Enqueue the jobs, and write down what the schedule now has; refused if a job was."""
    answers = await enqueue_within(connection, jobs, max_queued=config.limits.max_queued, now=now) if jobs else []
    for job, answer in zip(jobs, answers, strict=True):
        if not isinstance(answer, (Created, Existing)):
            raise NotStarted(job, answer)
    made = [answer.job_id for answer in answers if isinstance(answer, Created)]
    step = Advance(buffered=buffered, occurrence=row.occurrence, next_at=row.next_at, handled=row.handled)
    decided = Decided(
        row=row,
        step=step,
        open_jobs=[*row.open_jobs, *made][-MOST_BUFFERED:],
        failures=row.failures,
        paused_why=None,
        started=len(made),
    )
    await save(connection, [decided], at)
    return Started(jobs=jobs, answers=answers)


class NotStarted(Exception):
    """A job was refused, so nothing was done."""

    def __init__(self, job: NewJob, answer: Enqueued) -> None:
        super().__init__(f"the job for queue {job.queue} was refused")
        self.answer = answer
