"""The occurrences of a timing, forwards and backwards, and the jitter of each."""

from __future__ import annotations

import hashlib
from collections import deque
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from jobd.occurrences.cron import next_instant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.occurrences.timing import Timing

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
A_MOMENT = timedelta(microseconds=1)
#: How far back the latest occurrence is searched, nearest first; the last one covers every 29 February.
LOOK_BACK = tuple(timedelta(hours=hours) for hours in (1, 24, 8 * 24, 35 * 24, 370 * 24, 9 * 366 * 24))


def occurrence_after(timing: Timing, after: datetime) -> datetime | None:
    """The first occurrence after this instant, in UTC; None: there is none any more."""
    if timing.start is not None:
        after = max(after, timing.start - A_MOMENT)
    if timing.cron is not None:
        at = next_instant(timing.cron, timing.timezone, after)
    else:
        at = _next_of_interval(timing, after)
    return None if at is None or (timing.end is not None and at > timing.end) else at


def occurrences_after(timing: Timing, after: datetime, *, until: datetime | None = None) -> Iterator[datetime]:
    """All of them, in order; `until` included."""
    at = occurrence_after(timing, after)
    while at is not None and (until is None or at <= until):
        yield at
        at = occurrence_after(timing, at)


def latest_occurrence(timing: Timing, *, first: datetime, until: datetime) -> datetime | None:
    """The latest occurrence from `first` to `until`, both included; few steps, however far they are apart."""
    if until < first:
        return None
    if timing.every_s is not None:
        return _latest_of_interval(timing, first, until)
    for back in LOOK_BACK:
        low = max(first, until - back) - A_MOMENT
        latest = next(iter(deque(occurrences_after(timing, low, until=until), maxlen=1)), None)
        if latest is not None or low <= first - A_MOMENT:
            return latest
    return None


def number_of_occurrences(timing: Timing, *, first: datetime, until: datetime, most: int) -> int:
    """How many there are from `first` to `until`, both included; at most `most`."""
    if timing.every_s is not None:
        latest = _latest_of_interval(timing, first, until)
        start = occurrence_after(timing, first - A_MOMENT)
        if latest is None or start is None:
            return 0
        return min(most, int((latest - start).total_seconds()) // timing.every_s + 1)
    number = 0
    for _ in occurrences_after(timing, first - A_MOMENT, until=until):
        number += 1
        if number >= most:
            break
    return number


def jitter_of(name: str, occurrence: datetime, jitter_s: float) -> timedelta:
    """How much later than its time an occurrence is due: from 0 to `jitter_s`, and always the same for the same one."""
    digest = hashlib.sha256(f"{name}:{to_ms(occurrence)}".encode()).digest()
    return timedelta(seconds=jitter_s * int.from_bytes(digest[:6], "big") / 2**48)


def to_ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def _next_of_interval(timing: Timing, after: datetime) -> datetime | None:
    assert timing.every_s is not None
    anchor, every = timing.start or EPOCH, timedelta(seconds=timing.every_s)
    try:
        return anchor.astimezone(timezone.utc) + ((after - anchor) // every + 1) * every
    except OverflowError:  # past the year 9999
        return None


def _latest_of_interval(timing: Timing, first: datetime, until: datetime) -> datetime | None:
    assert timing.every_s is not None
    anchor, every = timing.start or EPOCH, timedelta(seconds=timing.every_s)
    until = until if timing.end is None else min(until, timing.end)
    latest = anchor.astimezone(timezone.utc) + (until - anchor) // every * every
    return latest if latest >= max(first, timing.start or first) else None
