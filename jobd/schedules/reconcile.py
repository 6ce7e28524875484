"""The schedules of the configuration, taken over into the table at the start and at a reload.

A new one is inserted, a changed one changed as an edit would, one that is gone deleted; whether it is paused stays as
it is. One that was made over the API under the same name becomes the configuration's. All nodes on one Postgres have
to have the same schedules in their configurations: the one that starts or reloads last decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from jobd.schedules.change import DELETE_SCHEDULES, insert, redefine
from jobd.schedules.definition import definition_of
from jobd.schedules.fire import lock_schedule
from jobd.schedules.table import row_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from jobd.config.model import ScheduleConfig
    from jobd.schedules.definition import Definition
    from jobd.schedules.table import ScheduleRow
    from jobd.store.postgres import Database
    from jobd.store.session import Session

log = logging.getLogger(__name__)

LIST_CONFIGURED = statement("list_configured", __package__)

#: Schedules that are read at once.
PAGE = 1000


class Reconciled(msgspec.Struct):
    added: int = 0
    changed: int = 0
    removed: int = 0


async def reconcile(
    database: Database, schedules: Mapping[str, ScheduleConfig], *, now: datetime | None = None
) -> Reconciled:
    """Make the table what the configuration says; each schedule in a transaction of its own."""
    there = {row.name: row for row in await _configured(database)}
    done = Reconciled()
    for name, section in schedules.items():
        definition = definition_of(section)
        if name not in there or there[name].definition != definition:
            await _take_over(database, name, definition, done, now)
    gone = sorted(there.keys() - schedules.keys())
    if gone:
        await database.execute(DELETE_SCHEDULES, gone)
        done.removed = len(gone)
    if done != Reconciled():
        log.info(
            "schedules of the configuration: %d added, %d changed, %d removed", done.added, done.changed, done.removed
        )
    return done


async def _configured(session: Session) -> list[ScheduleRow]:
    found: list[ScheduleRow] = []
    while True:
        page = await session.fetch(LIST_CONFIGURED, found[-1].name if found else "", PAGE)
        found += map(row_of, page)
        if len(page) < PAGE:
            return found


async def _take_over(
    database: Database, name: str, definition: Definition, done: Reconciled, now: datetime | None
) -> None:
    async with database.transaction() as connection:
        if await insert(connection, name, "config", definition, now=now) is not None:
            done.added += 1
            return
        found = await lock_schedule(connection, name, now=now)
        if found is None:
            return  # deleted meanwhile; the next start or reload inserts it
        row, at = found
        if row.origin == "api":
            log.warning("schedule %s was made over the API; from now on the configuration has it", name)
        if row.origin == "api" or row.definition != definition:
            await redefine(connection, row, "config", definition, at)
            done.changed += 1
