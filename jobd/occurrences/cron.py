"""The instants of a cron expression in a time zone, as Debian's cron would run them.

When the clock goes forward, a job at a fixed hour that does not exist that day runs right after the gap; when it goes
back, a job at a fixed hour runs the first time only. An expression whose minute or hour begins with `*` follows real
time: it runs at every minute that matches, so also in both of two equal hours.

Only the first kind is left to cronsim's own handling of zones. The second kind is simulated without a zone, and each
local time turned into the instants that have it: cronsim walks in whole hours there and so loses hours where the clock
changes by half an hour (Australia/Lord_Howe).
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cronsim import CronSim

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Names that stand for an expression.
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: No zone sets its clock back by more than this for daylight saving.
LONGEST_FOLD = timedelta(hours=3)


def expanded(expression: str) -> str:
    """The five fields of an expression or of its name."""
    return ALIASES.get(expression.strip().lower(), expression)


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def next_instant(expression: str, zone_name: str, after: datetime) -> datetime | None:
    """The first instant after `after`, in UTC; None: there is none within 50 years."""
    fields, where = expanded(expression), zone(zone_name)
    walk = _at_fixed_hours if _has_fixed_hours(fields) else _in_real_time
    try:
        return next((at for at in walk(fields, where, after) if at > after), None)
    except (OverflowError, ValueError):  # past the year 9999
        return None


def _has_fixed_hours(fields: str) -> bool:
    minute, hour, *_ = fields.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _at_fixed_hours(fields: str, where: ZoneInfo, after: datetime) -> Iterator[datetime]:
    for at in CronSim(fields, after.astimezone(where)):
        yield at.astimezone(timezone.utc)


def _in_real_time(fields: str, where: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """The first instant after `after`, or several of which it is the first."""
    later = []
    for local in CronSim(fields, _before(after, where)):
        first, second = (_instant(local, where, fold) for fold in (0, 1))
        later += [at for at in (first, second) if at is not None and at > after]
        if first is not None and first > after:
            break
    yield from sorted(later)


def _before(after: datetime, where: ZoneInfo) -> datetime:
    """A local time, without its zone, that comes before all local times of instants after `after`."""
    local = after.astimezone(where).replace(tzinfo=None, fold=0)
    around = {at.astimezone(where).utcoffset() for at in (after - LONGEST_FOLD, after, after + LONGEST_FOLD)}
    return local if len(around) == 1 else local - LONGEST_FOLD


def _instant(local: datetime, where: ZoneInfo, fold: int) -> datetime | None:
    """The instant that has this local time; None: there is none, or with `fold`, no second one."""
    at = local.replace(tzinfo=where, fold=fold).astimezone(timezone.utc)
    back = at.astimezone(where)
    return at if back.replace(tzinfo=None, fold=0) == local and back.fold == fold else None
