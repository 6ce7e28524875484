"""Schedules as they are kept: one row each, read whole, and what happened to them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from jobd.schedules.decide import Handled, Standing
from jobd.schedules.definition import Definition
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Session

READ_SCHEDULE = statement("read_schedule", __package__)
LIST_SCHEDULES = statement("list_schedules", __package__)
READ_SCHEDULE_EVENTS = statement("read_schedule_events", __package__)
APPEND_SCHEDULE_EVENTS = statement("append_schedule_events", __package__)
READ_CLOCK_FOR_SCHEDULES = statement("read_clock_for_schedules", __package__)

Origin: TypeAlias = Literal["config", "api"]
EventKind: TypeAlias = Literal["missed", "skipped", "delayed", "paused"]

_decode = msgspec.json.Decoder(Definition).decode
_encode = msgspec.json.Encoder().encode


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table; the migration says what each column means."""

    name: str
    origin: Origin
    definition: Definition
    created_by: str | None
    version: int
    is_paused: bool
    paused_why: str | None
    occurrence: datetime | None
    next_at: datetime | None
    decided_at: datetime
    handled: Handled
    buffered: tuple[datetime, ...]
    open_jobs: tuple[UUID, ...]
    failures: int
    started: int
    skipped: int
    missed: int
    created_at: datetime
    updated_at: datetime

    def standing(self, active: int = 0) -> Standing:
        """What decisions are made from; `active`: how many of its jobs have not ended."""
        return Standing(
            name=self.name,
            definition=self.definition,
            occurrence=self.occurrence,
            next_at=self.next_at,
            handled=self.handled,
            buffered=self.buffered,
            active=active,
        )


class ScheduleNote(msgspec.Struct, frozen=True, kw_only=True):
    schedule: str
    at: datetime
    kind: EventKind
    #: The occurrence, or the first and the last of several.
    first_for: datetime | None = None
    last_for: datetime | None = None
    number: int = 1
    #: For people.
    detail: str = ""


async def read_schedule(session: Session, name: str) -> ScheduleRow | None:
    rows = await session.fetch(READ_SCHEDULE, name)
    return row_of(rows[0]) if rows else None


async def list_schedules(session: Session, *, most: int, after: str = "") -> list[ScheduleRow]:
    """By name, those after this one."""
    return [row_of(row) for row in await session.fetch(LIST_SCHEDULES, after, most)]


async def read_events(session: Session, name: str, *, most: int) -> list[ScheduleNote]:
    """Newest first."""
    return [ScheduleNote(**dict(row)) for row in await session.fetch(READ_SCHEDULE_EVENTS, name, most)]


async def append_events(session: Session, events: Sequence[ScheduleNote]) -> None:
    if events:
        await session.execute(
            APPEND_SCHEDULE_EVENTS,
            [event.schedule for event in events],
            [event.at for event in events],
            [event.kind for event in events],
            [event.first_for for event in events],
            [event.last_for for event in events],
            [event.number for event in events],
            [event.detail for event in events],
        )


def row_of(record: Any) -> ScheduleRow:
    values = {name: record[name] for name in ScheduleRow.__struct_fields__}
    handled = values["handled"]
    values["definition"] = _decode(values["definition"])
    values["handled"] = tuple(zip(handled[::2], handled[1::2], strict=True))
    values["buffered"] = tuple(values["buffered"])
    values["open_jobs"] = tuple(values["open_jobs"])
    return ScheduleRow(**values)


def definition_json(definition: Definition) -> str:
    return _encode(definition).decode()


def flat(handled: Handled) -> list[int]:
    return [end for stretch in handled for end in stretch]
