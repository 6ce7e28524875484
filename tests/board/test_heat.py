"""Heat: limits from trip points, and the level over scripted series of temperatures."""

from __future__ import annotations

import pytest

from jobd.board.heat import HeatSettings, ZoneLimits, decide_heat, limits_of, slots_at
from jobd.wire.board import HeatLevel, HeatObject, ZoneObject


def zone(name: str = "cpu", celsius: float = 50, passive: float | None = None, off: float | None = None) -> ZoneObject:
    return ZoneObject(zone=name, celsius=celsius, passive_celsius=passive, critical_celsius=off)


@pytest.mark.parametrize(
    ("passive", "off", "settings", "limits"),
    [
        (None, None, HeatSettings(), (80, 90)),
        (99, 104.5, HeatSettings(), (94, 99)),
        (None, 110, HeatSettings(), (80, 90)),
        (None, 75, HeatSettings(), (60, 70)),
        (99, 104.5, HeatSettings(soft_c=70), (70, 99)),
        (99, 104.5, HeatSettings(hard_c=85), (85, 85)),
        (None, None, HeatSettings(hard_c=85), (80, 85)),
        (None, None, HeatSettings(soft_c=95), (95, 95)),
        (99, 104.5, HeatSettings(soft_c=60, hard_c=70), (60, 70)),
    ],
)
def test_limits_come_from_the_settings_else_from_trip_points(
    passive: float | None, off: float | None, settings: HeatSettings, limits: tuple[float, float]
) -> None:
    assert limits_of(zone(passive=passive, off=off), settings) == ZoneLimits(*limits)


#: Temperatures one after the other, and the level after each: n none, s soft, h hard. Limits are 80 and 90.
SERIES = [
    ("79.9 80 79 75.1 75 79", "nsssnn"),
    ("50 90 85.1 85 80 75", "nhhssn"),
    ("89 90 89 90 86", "shhhh"),
    ("95 60", "hn"),
    ("95 84 91 79 76 74", "hshssn"),
    ("80 74 80 74", "snsn"),
]


@pytest.mark.parametrize(("temperatures", "levels"), SERIES)
def test_level_follows_the_temperature_with_hysteresis(temperatures: str, levels: str) -> None:
    before: dict[str, HeatLevel] = {}
    seen = ""
    for celsius in map(float, temperatures.split()):
        decision = decide_heat(before, [zone(celsius=celsius)])
        before = dict(decision.levels)
        seen += decision.heat.level[0]

    assert seen == levels


def test_without_hysteresis_a_limit_is_left_just_below_it() -> None:
    settings = HeatSettings(hysteresis_c=0)

    assert decide_heat({"cpu": "hard"}, [zone(celsius=89.9)], settings).heat.level == "soft"


def test_hottest_zone_by_its_own_limits_decides_and_is_named() -> None:
    zones = [zone("cpu", 85), zone("tj", 95, passive=99, off=104.5), zone("nvme", 79, passive=70)]

    decision = decide_heat({}, zones)

    assert decision.heat == HeatObject(level="hard", zone="nvme", celsius=79, soft_celsius=65, hard_celsius=70)
    assert decision.levels == {"cpu": "soft", "tj": "soft", "nvme": "hard"}


def test_cool_board_names_the_zone_that_is_nearest_to_its_limit() -> None:
    assert decide_heat({}, [zone("cpu", 60), zone("tj", 62, passive=99)]).heat.zone == "cpu"


def test_zone_that_cannot_be_read_any_more_keeps_nobody_waiting() -> None:
    assert decide_heat({"gpu": "hard"}, [zone("cpu", 40)]).heat.level == "none"
    assert decide_heat({"gpu": "hard"}, []).heat == HeatObject()


@pytest.mark.parametrize(
    ("slots", "allowed"),
    [
        (1, {"none": 1, "soft": 1, "hard": 0}),
        (2, {"none": 2, "soft": 1, "hard": 0}),
        (5, {"none": 5, "soft": 2, "hard": 0}),
    ],
)
def test_half_of_the_slots_start_jobs_at_soft_and_none_at_hard(slots: int, allowed: dict[HeatLevel, int]) -> None:
    assert {level: slots_at(level, slots) for level in allowed} == allowed
