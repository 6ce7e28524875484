"""What people do to schedules: create, edit, delete, pause, resume. Each is one transaction, with its audit row.

A new or resumed schedule begins with the first occurrence after now; so does one whose expression was changed, unless
an occurrence is due that the new expression has, too. With a clock that cannot be right, nothing is planned yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.auth.table import audit
from jobd.errors import JobdError
from jobd.occurrences.walk import EPOCH
from jobd.schedules.decide import Handled, Standing, plan, replan
from jobd.schedules.fire import SANE, lock_schedule
from jobd.schedules.table import READ_CLOCK_FOR_SCHEDULES, definition_json, row_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from jobd.schedules.definition import Definition
    from jobd.schedules.table import Origin, ScheduleRow
    from jobd.store.postgres import Database
    from jobd.store.session import Connection

INSERT_SCHEDULE = statement("insert_schedule", __package__)
REDEFINE_SCHEDULE = statement("redefine_schedule", __package__)
PAUSE_SCHEDULE = statement("pause_schedule", __package__)
RESUME_SCHEDULE = statement("resume_schedule", __package__)
DELETE_SCHEDULES = statement("delete_schedules", __package__)


class ScheduleRefused(JobdError):
    """Nothing was changed; `code` is the problem code of the API."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def unknown(name: str) -> ScheduleRefused:
    return ScheduleRefused("unknown_schedule", f"there is no schedule {name[:64]!r}; `jobd schedule list` shows all")


def _planned(
    name: str, definition: Definition, handled: Handled, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """The next occurrence and when it is due; with a clock that cannot be right, it is to be planned later."""
    return plan(name, definition, handled, now) if now >= SANE else (None, EPOCH)


async def create(
    database: Database,
    name: str,
    definition: Definition,
    *,
    actor: str,
    created_by: str | None = None,
    is_paused: bool = False,
    now: datetime | None = None,
) -> ScheduleRow:
    async with database.transaction() as connection:
        row = await insert(connection, name, "api", definition, created_by=created_by, is_paused=is_paused, now=now)
        if row is None:
            raise ScheduleRefused("schedule_exists", f"there is a schedule {name} already; edit that, or delete it")
        await audit(connection, actor, "schedule.create", name)
        return row


async def insert(
    connection: Connection,
    name: str,
    origin: Origin,
    definition: Definition,
    *,
    created_by: str | None = None,
    is_paused: bool = False,
    now: datetime | None = None,
) -> ScheduleRow | None:
    """The new row; None: there is one of this name."""
    at: datetime = await connection.fetchval(READ_CLOCK_FOR_SCHEDULES, now)  # type: ignore[assignment]
    occurrence, next_at = _planned(name, definition, (), at)
    rows = await connection.fetch(
        INSERT_SCHEDULE, name, origin, definition_json(definition), created_by, is_paused, occurrence, next_at, at
    )
    return row_of(rows[0]) if rows else None


async def edit(
    database: Database,
    name: str,
    change: Callable[[Definition], Definition],
    *,
    actor: str,
    now: datetime | None = None,
) -> ScheduleRow:
    """Give it the definition that `change` makes of its own, and which is checked there."""
    async with database.transaction() as connection:
        row, at = await _locked(connection, name, now)
        _check_origin(row)
        edited = await redefine(connection, row, "api", change(row.definition), at)
        await audit(connection, actor, "schedule.edit", name)
        return edited


async def redefine(
    connection: Connection, row: ScheduleRow, origin: Origin, definition: Definition, now: datetime
) -> ScheduleRow:
    occurrence, next_at = _replanned(row.standing(), definition, now)
    (record,) = await connection.fetch(
        REDEFINE_SCHEDULE, row.name, origin, definition_json(definition), occurrence, next_at, now
    )
    return row_of(record)


def _replanned(standing: Standing, definition: Definition, now: datetime) -> tuple[datetime | None, datetime | None]:
    return replan(standing, definition, now) if now >= SANE else (None, EPOCH)


async def delete(database: Database, name: str, *, actor: str) -> None:
    async with database.transaction() as connection:
        row, _ = await _locked(connection, name, None)
        _check_origin(row)
        await connection.execute(DELETE_SCHEDULES, [name])
        await audit(connection, actor, "schedule.delete", name)


async def pause(database: Database, name: str, *, actor: str, now: datetime | None = None) -> ScheduleRow:
    """Nothing starts, not even what waits. Occurrences meanwhile are neither caught up nor recorded as missed."""
    async with database.transaction() as connection:
        row, at = await _locked(connection, name, now)
        if row.is_paused:
            return row
        (record,) = await connection.fetch(PAUSE_SCHEDULE, name, at)
        await audit(connection, actor, "schedule.pause", name)
        return row_of(record)


async def resume(database: Database, name: str, *, actor: str, now: datetime | None = None) -> ScheduleRow:
    async with database.transaction() as connection:
        row, at = await _locked(connection, name, now)
        if not row.is_paused:
            return row
        occurrence, next_at = _planned(name, row.definition, row.handled, at)
        (record,) = await connection.fetch(RESUME_SCHEDULE, name, occurrence, next_at, at)
        await audit(connection, actor, "schedule.resume", name)
        return row_of(record)


async def _locked(connection: Connection, name: str, now: datetime | None) -> tuple[ScheduleRow, datetime]:
    found = await lock_schedule(connection, name, now=now)
    if found is None:
        raise unknown(name)
    return found


def _check_origin(row: ScheduleRow) -> None:
    if row.origin == "config":
        raise ScheduleRefused(
            "schedule_configured",
            f"schedule {row.name} is in the configuration; change [schedules.{row.name}] there and reload"
            " (it can be paused, resumed and run here)",
        )
