"""When a schedule is due: a cron expression in a time zone or an interval, between a start and an end."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from jobd.occurrences.cron import expanded, next_instant

UTC = timezone.utc
#: Longest interval in seconds: 366 days.
LONGEST_EVERY_S = 366 * 86_400
#: Any instant: an expression that has no occurrence in the 50 years after it has none at all.
SOME_TIME = datetime(2024, 1, 1, tzinfo=UTC)

_EVERY = re.compile(r"(?=\d)(?:(\d{1,3})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?", re.ASCII)


class BadTiming(ValueError):
    """A field of a timing that cannot be; the message names the value and what would do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    #: Five fields, or a name such as @daily; None: `every_s`.
    cron: str | None = None
    #: Seconds between two occurrences, counted from `start` or from 1970; None: `cron`.
    every_s: int | None = None
    #: In which `cron` is read.
    timezone: str = "UTC"
    #: No occurrence is earlier.
    start: datetime | None = None
    #: No occurrence is later.
    end: datetime | None = None


def timing_of(
    *, cron: str, every: str, timezone: str, start: datetime | None = None, end: datetime | None = None
) -> Timing:
    """The timing that these texts describe, an empty one being absent; raises BadTiming."""
    if bool(cron) == bool(every):
        raise BadTiming("cron", "a schedule has either cron or every (got " + ("both)" if cron else "neither)"))
    check_zone(timezone)
    if start is not None and end is not None and end <= start:
        raise BadTiming("end", f"must be later than start (got {end.isoformat()} and {start.isoformat()})")
    every_s = parse_every(every) if every else None
    if cron:
        check_cron(cron)
    return Timing(cron=cron or None, every_s=every_s, timezone=timezone, start=start, end=end)


def parse_every(text: str) -> int:
    """Seconds in an interval such as 90s, 15m, 6h, 1d or 1h30m."""
    match = _EVERY.fullmatch(text)
    if match is None:
        raise BadTiming("every", f"must be an interval such as 30s, 15m, 6h, 1d or 1h30m (got {text[:40]!r})")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    every_s = days * 86_400 + hours * 3600 + minutes * 60 + seconds
    if not 1 <= every_s <= LONGEST_EVERY_S:
        raise BadTiming("every", f"must be from 1s to 366d (got {text[:40]!r})")
    return every_s


def check_zone(name: str) -> None:
    """Names that lead out of the database, such as ../x, raise ValueError; what is missing raises KeyError."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = sorted(zone for zone in available_timezones() if name and name.lower() in zone.lower())[:3]
        hint = f"; did you mean {' or '.join(near)}?" if near else ", such as Europe/Berlin or UTC"
        raise BadTiming(
            "timezone", f"must be a name of the IANA time zone database{hint} (got {name[:64]!r})"
        ) from None


def check_cron(text: str) -> None:
    fields = expanded(text)
    if fields.startswith("@"):
        raise BadTiming(
            "cron", f"has no such name (got {text[:64]!r}); use @hourly, @daily, @weekly, @monthly, @yearly"
        )
    if len(fields.split()) != 5:
        raise BadTiming(
            "cron", f"must have five fields: minute, hour, day of month, month, day of week (got {text[:64]!r})"
        )
    try:
        CronSim(fields, SOME_TIME)
    except (CronSimError, ValueError, AssertionError) as error:
        raise BadTiming("cron", f"{str(error) or 'cannot be read'} (got {text[:64]!r})") from None
    if next_instant(text, "UTC", SOME_TIME) is None:
        raise BadTiming("cron", f"never comes (got {text[:64]!r}): no month has such a day")
