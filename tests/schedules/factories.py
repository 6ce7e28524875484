"""Schedules, and the questions that tests ask about them and their jobs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.config.model import Config, Limits
from jobd.lifecycle.search import JobFilter, search_jobs
from jobd.schedules.change import create
from jobd.schedules.definition import Definition
from jobd.schedules.fire import Fired, fire_due
from jobd.schedules.table import ScheduleRow, read_events, read_schedule
from jobd.wire.schedules import SCHEDULE_LABEL, SCHEDULED_FOR_LABEL

if TYPE_CHECKING:
    from jobd.store.postgres import Database

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=timezone.utc)
CONFIG = Config()
FULL = Config(limits=Limits(max_queued=1))


def at(seconds: float) -> datetime:
    """So many seconds after NOW."""
    return NOW + timedelta(seconds=seconds)


def definition(**fields: Any) -> Definition:
    timing = {} if "cron" in fields else {"every": "1m"}
    return Definition(**{**timing, "task": "chat", **fields})


async def make(db: Database, name: str = "tick", *, now: datetime = NOW, **fields: Any) -> ScheduleRow:
    return await create(db, name, definition(**fields), actor="test", now=now)


async def fire(db: Database, now: datetime, config: Config = CONFIG) -> Fired:
    return await fire_due(db, config, now=now)


async def row(db: Database, name: str = "tick") -> ScheduleRow:
    found = await read_schedule(db, name)
    assert found is not None
    return found


async def occurrences_of(db: Database, name: str = "tick") -> list[datetime]:
    """For when the jobs of a schedule are, in that order."""
    found: list[datetime] = []
    before = None
    while True:
        page = await search_jobs(db, JobFilter(labels=((SCHEDULE_LABEL, name),)), before=before)
        for job in page.jobs:
            labels = msgspec.json.decode(job.labels or "")
            found.append(datetime.fromtimestamp(int(labels[SCHEDULED_FOR_LABEL]) / 1000, timezone.utc))
        before = page.next_before
        if before is None:
            return sorted(found)


async def seconds_of(db: Database, name: str = "tick") -> list[float]:
    """The same in seconds after NOW."""
    return [(occurrence - NOW).total_seconds() for occurrence in await occurrences_of(db, name)]


async def events_of(db: Database, name: str = "tick") -> list[tuple[str, int]]:
    """Kinds and numbers, oldest first."""
    return [(event.kind, event.number) for event in reversed(await read_events(db, name, most=100))]
