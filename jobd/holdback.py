"""When a reaper must hold back: a pure judgement over two clocks.

After an outage of the database, a suspended machine or a step of the clock, leases look expired whose holders are well
and merely could not renew. So a lease is believed expired only after one whole lease time in which the reaper saw the
database regularly and both clocks agree; a board without a battery clock makes such a step at every boot.
"""

from __future__ import annotations

import msgspec

#: The clocks may drift apart this far between two looks; more is a step.
STEP_S = 5.0


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """What the last look at the database showed. Seconds; `wall` is the database's clock, `mono` this process's."""

    healthy_since: float
    mono: float
    wall: float


def look(last: Watch | None, *, mono: float, wall: float, pause_s: float) -> Watch:
    """One more successful look. A gap much longer than the usual pause, or a step, starts the healthy time anew."""
    healthy = last is not None and not _is_gap(last, mono, pause_s) and not _is_step(last, mono, wall)
    return Watch(healthy_since=last.healthy_since if last is not None and healthy else mono, mono=mono, wall=wall)


def may_reap(watch: Watch, ttl_s: float) -> bool:
    return watch.mono - watch.healthy_since >= ttl_s


def _is_gap(last: Watch, mono: float, pause_s: float) -> bool:
    return mono - last.mono > 3 * pause_s + STEP_S


def _is_step(last: Watch, mono: float, wall: float) -> bool:
    return abs((wall - last.wall) - (mono - last.mono)) > STEP_S
