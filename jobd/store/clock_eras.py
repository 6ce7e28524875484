"""Which time can be trusted: pure decisions over two clocks.

Postgres' clock is the one clock of all nodes, and it may jump by decades in either direction: a board without a battery
clock does so at every boot. A node's own boot clock (CLOCK_BOOTTIME) never jumps, so the two together distinguish a
step from time that has passed. Steps, and the time that jobd was off, part the past into eras (table `clock_eras`, by
`jobd/store/clock.py`): stretches in which the clock ran evenly and jobd was there to see it. From them follows

- *steady time*: the time that jobd has run. It starts as Postgres' time and never jumps. Retention and idempotency keys
  count it: nothing is deleted because a clock was set.
- how far a step moved the clock, by which the ends of all waits and leases are moved along when it is noticed,
- the latest time that was known for certain, before which no token is valid again.

A lease is believed expired only after one whole lease time in which the reaper saw the database regularly and both
clocks agreed: after an outage, a suspension or a step, holders are well that merely could not renew.

All times are seconds since 1970, all durations seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds that the clocks may drift apart between two checks; more is a step. The SQL function `agreed_clock` has the
#: same number.
STEP_S = 5.0
#: Seconds between two marks of the end of the present era. The SQL function `agreed_clock` has the same number.
MARK_S = 30.0
#: After a reboot only Postgres' clock says how long the machine was off; more seconds than this count as a step.
LONGEST_OFF_S = 30 * 86_400.0
#: Seconds: a clock farther ahead of the latest known time is believed only after `BELIEVED_AFTER_S`.
FAR_AHEAD_S = 366 * 86_400.0
#: Seconds for which such a clock must have run evenly.
BELIEVED_AFTER_S = 86_400.0
#: No clock that is right shows an earlier time: 2026-01-01.
EARLIEST = 1_767_225_600.0


class Era(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch in which Postgres' clock ran evenly, by that clock and by steady time; `_to`: when it was last seen."""

    no: int
    wall_from: float
    steady_from: float
    wall_to: float
    steady_to: float
    #: The latest time known for certain, at the end.
    known: float
    #: Whose boot clock showed `boot_s` at the end.
    boot_id: str
    boot_s: float


class Past(msgspec.Struct, frozen=True):
    """The times of Postgres' clock that are long past: all before `before`, except for those in `kept`."""

    before: float
    kept: list[tuple[float, float]]


def step_s(*, wall_s: float, boot_s: float) -> float:
    """Seconds by which the clock was set while it advanced by `wall_s` and the boot clock by `boot_s`; 0: not set."""
    moved = wall_s - boot_s
    return moved if abs(moved) > STEP_S else 0.0


def step_while_off(era: Era, *, wall: float, boot_id: str, boot_s: float) -> float:
    """The same for the time since the last era; after a reboot, an advance of up to a month is no step."""
    if era.boot_id == boot_id and boot_s >= era.boot_s:
        return step_s(wall_s=wall - era.wall_to, boot_s=boot_s - era.boot_s)
    off_s = wall - era.wall_to
    return 0.0 if -STEP_S <= off_s <= LONGEST_OFF_S else off_s


def known_time(known: float, *, passed_s: float, wall: float, era_s: float) -> float:
    """The latest time known for certain, `passed_s` later; `era_s`: how long the clock has run evenly until now."""
    known += passed_s
    if wall <= known:
        return known
    is_far = wall - known > FAR_AHEAD_S and known >= EARLIEST
    return known if is_far and era_s < BELIEVED_AFTER_S else wall


def past(eras: Sequence[Era], *, steady: float, keep_s: float) -> Past:
    """What Postgres' clock showed longer than `keep_s` of steady time ago. Before the first era it is taken for right.

    A time that it showed twice, long ago and lately, counts as lately. Around the ends of an era a little more is kept,
    since the last of it may not have been written down.
    """
    cut = steady - keep_s
    before, kept = float("-inf"), []
    for n, era in enumerate(eras):
        steady_to = steady if n == len(eras) - 1 else era.steady_to
        at_cut = era.wall_from + min(cut, steady_to) - era.steady_from
        if n == 0 or cut > era.steady_from:
            before = max(before, at_cut)
        if steady_to > cut:
            low = at_cut if n == 0 or cut > era.steady_from else era.wall_from - 2 * MARK_S
            kept.append((low, era.wall_from + steady_to - era.steady_from + 2 * MARK_S))
    return Past(before, kept)


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """The last observation of both clocks in seconds: `wall` is the database's, `mono` this process's."""

    healthy_since: float
    mono: float
    wall: float


def observe(last: Watch | None, *, mono: float, wall: float, pause_s: float) -> Watch:
    """Add an observation. A gap much longer than the usual pause, or a step, restarts the healthy time."""
    healthy = (
        last is not None
        and not _is_gap(last, mono, pause_s)
        and not step_s(wall_s=wall - last.wall, boot_s=mono - last.mono)
    )
    return Watch(healthy_since=last.healthy_since if last is not None and healthy else mono, mono=mono, wall=wall)


def may_reap(watch: Watch, ttl_s: float) -> bool:
    return watch.mono - watch.healthy_since >= ttl_s


def _is_gap(last: Watch, mono: float, pause_s: float) -> bool:
    return mono - last.mono > 3 * pause_s + STEP_S
