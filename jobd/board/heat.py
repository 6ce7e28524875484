"""What temperatures mean for queues with `hot = true`: a pure decision, from one sample to the next.

    none -> soft    a zone has reached its soft limit: half of the slots start jobs
    soft -> hard    a zone has reached its hard limit: no slot does
    back            when the zone is `hysteresis_c` below that limit, so that the level does not flap

The limits of a zone are those of the configuration. Where that has none, they follow from the trip point at which the
kernel slows the board down (`passive`): hard is that point, soft lies a little below. Without such a point they are
SOFT_C and HARD_C, or a little below the critical point if that is lower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from jobd.wire.board import HeatLevel, HeatObject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.wire.board import ZoneObject

#: Soft and hard limit in degrees Celsius of a zone without trip points.
SOFT_C, HARD_C = 80.0, 90.0
#: Degrees by which the soft limit lies below the point at which the kernel slows down, and the hard below critical.
MARGIN_C = 5.0

LEVELS: Final[tuple[HeatLevel, ...]] = ("none", "soft", "hard")


class HeatSettings(NamedTuple):
    """In degrees Celsius; 0: by the trip points of each zone."""

    soft_c: float = 0.0
    hard_c: float = 0.0
    hysteresis_c: float = 5.0


BY_TRIP_POINTS: Final = HeatSettings()


class ZoneLimits(NamedTuple):
    soft_c: float
    hard_c: float


class HeatDecision(NamedTuple):
    #: Level of each zone that was read, for the next decision.
    levels: Mapping[str, HeatLevel]
    #: Of the zone that is hottest by level, then by its distance to its hard limit.
    heat: HeatObject


def limits_of(zone: ZoneObject, settings: HeatSettings) -> ZoneLimits:
    critical = HARD_C + MARGIN_C if zone.critical_celsius is None else zone.critical_celsius
    usual = zone.passive_celsius or min(HARD_C, critical - MARGIN_C)
    hard = settings.hard_c or max(usual, settings.soft_c)
    below = MARGIN_C if zone.passive_celsius else HARD_C - SOFT_C
    return ZoneLimits(min(settings.soft_c or usual - below, hard), hard)


def decide_heat(
    before: Mapping[str, HeatLevel], zones: Sequence[ZoneObject], settings: HeatSettings = BY_TRIP_POINTS
) -> HeatDecision:
    """A zone that was not read has no level: it is off, or gone."""
    levels: dict[str, HeatLevel] = {}
    worst: tuple[tuple[int, float], ZoneObject, ZoneLimits] | None = None
    for zone in zones:
        limits = limits_of(zone, settings)
        level = _level(before.get(zone.zone, "none"), zone.celsius, limits, settings.hysteresis_c)
        levels[zone.zone] = level
        rank = (LEVELS.index(level), zone.celsius - limits.hard_c)
        if worst is None or rank > worst[0]:
            worst = rank, zone, limits
    if worst is None:
        return HeatDecision(levels, HeatObject())
    (number, _), zone, limits = worst
    return HeatDecision(
        levels,
        HeatObject(
            level=LEVELS[number],
            zone=zone.zone,
            celsius=zone.celsius,
            soft_celsius=limits.soft_c,
            hard_celsius=limits.hard_c,
        ),
    )


def _level(before: HeatLevel, celsius: float, limits: ZoneLimits, hysteresis_c: float) -> HeatLevel:
    if celsius >= limits.hard_c or (before == "hard" and celsius > limits.hard_c - hysteresis_c):
        return "hard"
    if celsius >= limits.soft_c or (before != "none" and celsius > limits.soft_c - hysteresis_c):
        return "soft"
    return "none"


def slots_at(level: HeatLevel, slots: int) -> int:
    """Slots of a hot queue that may be busy: half of them at soft, but at least one; none at hard."""
    if level == "none":
        return slots
    return 0 if level == "hard" else max(1, slots // 2)
