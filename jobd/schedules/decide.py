"""What becomes of a schedule at a moment: which occurrences start jobs, wait, are skipped or missed, and which is next.

PURE: the clock, the jobs and the table are the caller's.

Occurrences are decided about in their order. One that comes at most `ON_TIME_S` late is on time. Those that come later,
after an outage, a sleep of the machine or a step of the clock, are subject to `catch_up`: `one` starts the latest of
them unless one is on time, `all` the newest 100, both within the window, and `none` starts none. All others are missed.
An occurrence that starts meets `overlap`, if jobs of its schedule have not ended.

`Handled` are the stretches of occurrences that were decided about. When the clock was set back, the next occurrence is
the first one ahead that is in none of them: so none starts twice, and a schedule that ran ahead with a wrong clock does
not wait for that clock to come true.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from jobd.occurrences.walk import (
    A_MOMENT,
    EPOCH,
    latest_occurrence,
    number_of_occurrences,
    occurrence_after,
    occurrences_after,
    to_ms,
)
from jobd.schedules.definition import Definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.occurrences.timing import Timing

#: Seconds after its time for which an occurrence is on time: a restart or a busy moment is no outage.
ON_TIME_S = 10.0
#: Most late occurrences that `catch_up = "all"` starts.
MOST_CAUGHT_UP = 100
#: Most occurrences of a schedule that wait for the end of others.
MOST_BUFFERED = 100
#: Missed occurrences of a cron expression are counted up to this number: counting means walking through them.
MOST_COUNTED = 200
#: Stretches that are remembered; each step of the clock, outage and change of the expression begins one.
MOST_STRETCHES = 16
#: The first look back for the newest occurrences; each further one goes back four times as far.
LOOK_BACK = timedelta(hours=2)

#: Pairs of milliseconds since 1970, both included, the newest last.
Handled: TypeAlias = tuple[tuple[int, int], ...]


class Missed(msgspec.Struct, frozen=True):
    first: datetime
    last: datetime
    number: int
    #: False: there were at least as many.
    is_exact: bool


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it was read."""

    name: str
    definition: Definition
    #: None: to be planned, or there is none any more.
    occurrence: datetime | None
    next_at: datetime | None
    handled: Handled = ()
    buffered: tuple[datetime, ...] = ()
    #: Jobs that have not ended.
    active: int = 0


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and how the schedule stands afterwards."""

    starts: tuple[datetime, ...] = ()
    skipped: tuple[datetime, ...] = ()
    missed: Missed | None = None
    buffered: tuple[datetime, ...] = ()
    #: The jobs that have not ended are to be canceled: an occurrence waits for their end.
    cancels: bool = False
    occurrence: datetime | None
    next_at: datetime | None
    handled: Handled


def decide(standing: Standing, now: datetime, *, is_clock_right: bool = True) -> Advance:
    """With a clock that cannot be right nothing is due; what waits for the end of others may start all the same."""
    due = _due(standing, now) if is_clock_right else _not_due(standing)
    started, skipped, buffered = _overlapped(standing, due.starts)
    waits_for_cancel = standing.definition.overlap == "cancel_other" and standing.active and buffered
    return Advance(
        starts=started,
        skipped=skipped,
        missed=due.missed,
        buffered=buffered,
        cancels=bool(waits_for_cancel),
        occurrence=due.occurrence,
        next_at=due.next_at,
        handled=due.handled,
    )


# -- the next occurrence -------------------------------------------------------------------------------------------


def plan(name: str, definition: Definition, handled: Handled, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The next occurrence after `now` that was not handled before, and when it is due; None: there is none any more."""
    at = _unhandled(definition.timing(), occurrence_after(definition.timing(), now), handled)
    return at, None if at is None else definition.due_at(name, at)


def _unhandled(timing: Timing, at: datetime | None, handled: Handled) -> datetime | None:
    """This occurrence, or the first after it that was not handled."""
    for low, high in sorted(handled):
        if at is not None and low <= to_ms(at) <= high:
            at = occurrence_after(timing, _instant(high))
    return at


def _is_handled(at: datetime, handled: Handled) -> bool:
    return any(low <= to_ms(at) <= high for low, high in handled)


def replan(standing: Standing, definition: Definition, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The same after a change of the definition. One that is due, and still an occurrence, is kept."""
    at = standing.occurrence
    if at is not None and at <= now and occurrence_after(definition.timing(), at - A_MOMENT) == at:
        return at, definition.due_at(standing.name, at)
    if at is not None and definition.timing() == standing.definition.timing():
        return at, definition.due_at(standing.name, at)
    return plan(standing.name, definition, standing.handled, now)


def with_stretch(handled: Handled, timing: Timing, first: datetime, last: datetime) -> Handled:
    """The stretches with another one, joined to the newest if no occurrence is between them."""
    stretch = to_ms(first), to_ms(last)
    if handled and occurrence_after(timing, _instant(handled[-1][1])) == first:
        return (*handled[:-1], (handled[-1][0], stretch[1]))
    return (*handled, stretch)[-MOST_STRETCHES:]


def _instant(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


# -- what is due ---------------------------------------------------------------------------------------------------


class _Due(msgspec.Struct, frozen=True, kw_only=True):
    starts: tuple[datetime, ...] = ()
    missed: Missed | None = None
    occurrence: datetime | None
    next_at: datetime | None
    handled: Handled


def _not_due(standing: Standing) -> _Due:
    return _Due(occurrence=standing.occurrence, next_at=standing.next_at, handled=standing.handled)


def _due(standing: Standing, now: datetime) -> _Due:
    name, definition, first = standing.name, standing.definition, standing.occurrence
    if first is None and standing.next_at is not None:
        occurrence, next_at = plan(name, definition, standing.handled, now)
        return _Due(occurrence=occurrence, next_at=next_at, handled=standing.handled)
    if first is None or definition.due_at(name, first) > now:
        return _not_due(standing)
    timing = definition.timing()
    # From here on an occurrence may be on time.
    low = max(first, now - timedelta(seconds=definition.jitter_s + ON_TIME_S))
    late: list[datetime] = []
    on_time: list[datetime] = []
    occurrence = None
    for at in occurrences_after(timing, low - A_MOMENT):
        due_at = definition.due_at(name, at)
        if due_at > now:
            occurrence = _unhandled(timing, at, standing.handled)
            break
        (on_time if due_at >= now - timedelta(seconds=ON_TIME_S) else late).append(at)
    wanted = (*_caught_up(definition, timing, first, low, late, now, is_any_on_time=bool(on_time)), *on_time)
    starts = tuple(at for at in wanted if not _is_handled(at, standing.handled))
    until = wanted[0] - A_MOMENT if wanted else now if occurrence is None else min(now, occurrence - A_MOMENT)
    missed = _missed(timing, _gaps(first, until, standing.handled))
    handled = with_stretch(standing.handled, timing, starts[0], starts[-1]) if starts else standing.handled
    next_at = None if occurrence is None else definition.due_at(name, occurrence)
    return _Due(starts=starts, missed=missed, occurrence=occurrence, next_at=next_at, handled=handled)


def _caught_up(
    definition: Definition,
    timing: Timing,
    first: datetime,
    low: datetime,
    late: Sequence[datetime],
    now: datetime,
    *,
    is_any_on_time: bool,
) -> list[datetime]:
    """The late occurrences that start: from `first` to before `low`, and those in `late`, which come after these."""
    earliest = max(first, now - timedelta(seconds=definition.catch_up_window_s))
    if definition.catch_up == "none" or (definition.catch_up == "one" and is_any_on_time):
        return []
    most = 1 if definition.catch_up == "one" else MOST_CAUGHT_UP
    newest = list(late[-most:])
    if len(newest) < most:
        newest = [*newest_occurrences(timing, earliest, low - A_MOMENT, most - len(newest)), *newest]
    return [at for at in newest if at >= earliest]


def newest_occurrences(timing: Timing, first: datetime, until: datetime, most: int) -> list[datetime]:
    """The newest ones from `first` to `until`, both included, in their order; few steps, however far they are apart."""
    if most == 1:
        latest = latest_occurrence(timing, first=first, until=until)
        return [] if latest is None else [latest]
    back = LOOK_BACK if timing.every_s is None else timedelta(seconds=timing.every_s * most)
    while until >= first:
        low = max(first, until - back)
        found = deque(occurrences_after(timing, low - A_MOMENT, until=until), maxlen=most)
        if len(found) == most or low == first:
            return list(found)
        back *= 4
    return []


def _gaps(first: datetime, until: datetime, handled: Handled) -> list[tuple[datetime, datetime]]:
    """The stretches from `first` to `until` that were not handled, in their order; both ends of each are included."""
    gaps = []
    for low, high in sorted(handled):
        if first < _instant(low):
            gaps.append((first, min(until, _instant(low) - A_MOMENT)))
        first = max(first, _instant(high) + A_MOMENT)
    return [(low, high) for low, high in (*gaps, (first, until)) if low <= high]


def _missed(timing: Timing, gaps: Sequence[tuple[datetime, datetime]]) -> Missed | None:
    most = MOST_COUNTED if timing.every_s is None else 2**31
    numbers = [number_of_occurrences(timing, first=low, until=high, most=most) for low, high in gaps]
    full = [gap for gap, number in zip(gaps, numbers, strict=True) if number]
    if not full:
        return None
    first = occurrence_after(timing, full[0][0] - A_MOMENT)
    last = latest_occurrence(timing, first=full[-1][0], until=full[-1][1])
    assert first is not None and last is not None  # these stretches have occurrences
    return Missed(first, last, sum(numbers), is_exact=max(numbers) < most)


# -- overlap -------------------------------------------------------------------------------------------------------


def _overlapped(
    standing: Standing, starts: Sequence[datetime]
) -> tuple[tuple[datetime, ...], tuple[datetime, ...], tuple[datetime, ...]]:
    """Which occurrences start, are skipped, and wait: those that waited before go first."""
    overlap, active = standing.definition.overlap, standing.active
    if overlap == "allow_all":
        return (*standing.buffered, *starts), (), ()
    if overlap == "cancel_other":
        waiting = (*standing.buffered, *starts)
        return ((), waiting[:-1], waiting[-1:]) if active else (waiting[-1:], waiting[:-1], ())
    started = list(standing.buffered[:1]) if not active else []
    left_out: list[datetime] = []
    buffered = list(standing.buffered[len(started) :])
    for at in starts:
        if not active and not started and not buffered:
            started.append(at)
        elif overlap != "skip" and len(buffered) < (1 if overlap == "buffer_one" else MOST_BUFFERED):
            buffered.append(at)
        else:
            left_out.append(at)
    return tuple(started), tuple(left_out), tuple(buffered)
