"""What becomes of occurrences: catch-up, overlap, and what is next, as tables and as properties. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.occurrences.walk import occurrences_after, to_ms
from jobd.schedules.decide import (
    MOST_BUFFERED,
    MOST_CAUGHT_UP,
    MOST_STRETCHES,
    ON_TIME_S,
    Advance,
    Handled,
    Standing,
    decide,
    newest_occurrences,
    plan,
    replan,
    with_stretch,
)
from tests.schedules.factories import NOW, at, definition

HOUR_S = 3600.0


def standing(occurrence_s: float | None = 60, **fields: Any) -> Standing:
    of_standing = {name: fields.pop(name) for name in ("handled", "buffered", "active") if name in fields}
    of_schedule = definition(**fields)
    occurrence = None if occurrence_s is None else at(occurrence_s)
    next_at = None if occurrence is None else of_schedule.due_at("tick", occurrence)
    return Standing(name="tick", definition=of_schedule, occurrence=occurrence, next_at=next_at, **of_standing)


def seconds(occurrences: tuple[datetime, ...]) -> list[float]:
    return [(occurrence - NOW).total_seconds() for occurrence in occurrences]


def test_nothing_is_due_before_its_time() -> None:
    step = decide(standing(60), at(59.999))

    assert step == Advance(occurrence=at(60), next_at=at(60), handled=())


def test_what_is_due_starts_and_the_next_one_is_planned() -> None:
    step = decide(standing(60), at(60))

    assert (seconds(step.starts), step.missed) == ([60], None)
    assert (step.occurrence, step.next_at) == (at(120), at(120))


def test_after_the_end_there_is_no_next_one() -> None:
    step = decide(standing(60, end=at(100)), at(60))

    assert (seconds(step.starts), step.occurrence, step.next_at) == ([60], None, None)


def test_what_is_to_be_planned_begins_after_now_and_starts_nothing() -> None:
    to_plan = Standing(name="tick", definition=definition(), occurrence=None, next_at=at(-1e6))

    step = decide(to_plan, at(30))

    assert (step.starts, step.missed, step.occurrence) == ((), None, at(60))


def test_a_clock_that_cannot_be_right_makes_nothing_due() -> None:
    step = decide(standing(60), at(1000), is_clock_right=False)

    assert (step.starts, step.missed, step.occurrence) == ((), None, at(60))


#: Policy, how late it is looked in seconds after the first of the minutely occurrences at 60 s, and which start (in
#: seconds) and how many are missed.
CATCH_UP = [
    # a moment late is on time, under any policy
    ({"catch_up": "none"}, ON_TIME_S, [60], 0),
    ({"catch_up": "one"}, ON_TIME_S, [60], 0),
    ({"catch_up": "all"}, ON_TIME_S, [60], 0),
    # too late, and none on time
    ({"catch_up": "none"}, 30, [], 1),
    ({"catch_up": "one"}, 30, [60], 0),
    ({"catch_up": "all"}, 30, [60], 0),
    ({"catch_up": "none"}, 600 + 30, [], 11),
    ({"catch_up": "one"}, 600 + 30, [660], 10),
    ({"catch_up": "all", "overlap": "allow_all"}, 600 + 30, [60.0 * n for n in range(1, 12)], 0),
    # one of them on time
    ({"catch_up": "none"}, 600, [660], 10),
    ({"catch_up": "one"}, 600, [660], 10),
    ({"catch_up": "all", "overlap": "allow_all"}, 600, [60.0 * n for n in range(1, 12)], 0),
    # the window
    ({"catch_up": "one", "catch_up_window_s": 20}, 600 + 30, [], 11),
    ({"catch_up": "one", "catch_up_window_s": 40}, 600 + 30, [660], 10),
    ({"catch_up": "all", "catch_up_window_s": 100, "overlap": "allow_all"}, 600 + 30, [600, 660], 9),
    ({"catch_up": "none", "catch_up_window_s": 1}, ON_TIME_S, [60], 0),
    # the cap, over a day
    (
        *({"catch_up": "all", "overlap": "allow_all"}, 86_400 - 90),
        [60.0 * n for n in range(1440 - MOST_CAUGHT_UP, 1440)],
        1439 - MOST_CAUGHT_UP,
    ),
    ({"catch_up": "one"}, 86_400 - 90, [86_340], 1438),
]


@pytest.mark.parametrize("timing", [{"every": "1m"}, {"cron": "* * * * *"}], ids=["every", "cron"])
@pytest.mark.parametrize(("policy", "late_s", "expected", "missed"), CATCH_UP)
def test_late_occurrences_are_caught_up_as_the_policy_says(
    timing: dict[str, str], policy: dict[str, Any], late_s: float, expected: list[float], missed: int
) -> None:
    step = decide(standing(60, **timing, **policy), at(60 + late_s))

    assert seconds(step.starts) == expected
    number = 0 if step.missed is None else step.missed.number
    is_exact = step.missed is None or step.missed.is_exact
    assert number == missed if is_exact else number < missed
    assert step.occurrence == at((60 + late_s) // 60 * 60 + 60)


def test_missed_stretch_is_named_by_its_ends() -> None:
    missed = decide(standing(60, catch_up="none"), at(330)).missed

    assert missed is not None
    assert (missed.first, missed.last, missed.number, missed.is_exact) == (at(60), at(300), 5, True)


def test_decades_are_decided_about_in_few_steps() -> None:
    late = timedelta(days=365 * 30)
    for timing in ({"every": "1s"}, {"cron": "* * * * *"}, {"cron": "0 3 * * *"}):
        step = decide(standing(None, **timing), NOW)
        first, _ = plan("tick", definition(**timing), (), NOW)
        waiting = Standing(
            name="tick", definition=definition(catch_up="all", **timing), occurrence=first, next_at=first
        )

        step = decide(waiting, NOW + late)

        assert step.missed is not None
        assert step.occurrence is not None
        assert step.occurrence > NOW + late


#: Policy, whether a job has not ended, what waits already; then of three occurrences at once: which start, are skipped
#: and wait.
OVERLAP = [
    ("skip", 0, [], [60], [70, 80], []),
    ("skip", 1, [], [], [60, 70, 80], []),
    ("skip", 0, [10], [10], [60, 70, 80], []),
    ("buffer_one", 0, [], [60], [80], [70]),
    ("buffer_one", 1, [], [], [70, 80], [60]),
    ("buffer_one", 1, [10], [], [60, 70, 80], [10]),
    ("buffer_one", 0, [10], [10], [70, 80], [60]),
    ("buffer_all", 0, [], [60], [], [70, 80]),
    ("buffer_all", 1, [10], [], [], [10, 60, 70, 80]),
    ("buffer_all", 0, [10], [10], [], [60, 70, 80]),
    ("cancel_other", 0, [], [80], [60, 70], []),
    ("cancel_other", 1, [10], [], [10, 60, 70], [80]),
    ("allow_all", 5, [], [60, 70, 80], [], []),
    ("allow_all", 5, [10], [10, 60, 70, 80], [], []),
]


@pytest.mark.parametrize(("overlap", "active", "waiting", "starts", "skipped", "buffered"), OVERLAP)
def test_occurrences_that_meet_others_do_as_the_policy_says(
    overlap: str,
    active: int,
    waiting: list[float],
    starts: list[float],
    skipped: list[float],
    buffered: list[float],
) -> None:
    before = standing(60, every="10s", overlap=overlap, catch_up="all", active=active, buffered=tuple(map(at, waiting)))

    step = decide(before, at(85))

    assert seconds(step.starts) == starts
    assert seconds(step.skipped) == skipped
    assert seconds(step.buffered) == buffered
    assert step.cancels == (overlap == "cancel_other" and active > 0)


def test_no_more_than_100_wait() -> None:
    waiting = tuple(at(-n) for n in range(MOST_BUFFERED, 0, -1))

    step = decide(standing(60, overlap="buffer_all", active=1, buffered=waiting), at(60))

    assert (step.buffered, seconds(step.skipped)) == (waiting, [60])


def test_what_waits_starts_one_by_one_when_the_others_have_ended() -> None:
    step = decide(standing(60, overlap="skip", buffered=(at(10), at(20))), at(30))

    assert (seconds(step.starts), seconds(step.buffered)) == ([10], [20])


def test_with_jitter_an_occurrence_is_due_later_and_keeps_its_time() -> None:
    before = standing(60, jitter_s=30)
    assert before.next_at is not None
    assert at(60) < before.next_at < at(90)

    assert decide(before, before.next_at - timedelta(microseconds=1)).starts == ()
    step = decide(before, before.next_at)

    assert seconds(step.starts) == [60]
    assert step.occurrence == at(120)


# -- steps of the clock --


def test_after_a_step_back_nothing_that_was_handled_is_next() -> None:
    handled = ((to_ms(at(-600)), to_ms(at(0))),)

    assert plan("tick", definition(), handled, at(-3600))[0] == at(-3540)
    assert plan("tick", definition(), handled, at(-601))[0] == at(60)
    assert plan("tick", definition(), handled, at(-300))[0] == at(60)


def test_a_schedule_that_ran_ahead_with_a_wrong_clock_goes_on_with_the_right_one() -> None:
    years = timedelta(days=4 * 365)
    ahead = NOW + years
    handled = ((to_ms(at(-600)), to_ms(at(0))), (to_ms(ahead), to_ms(ahead)))

    assert plan("tick", definition(), handled, at(5))[0] == at(60)


def test_stretches_without_an_occurrence_between_them_are_joined() -> None:
    timing = definition().timing()

    handled = with_stretch((), timing, at(0), at(60))
    handled = with_stretch(handled, timing, at(120), at(120))
    handled = with_stretch(handled, timing, at(300), at(360))

    assert handled == ((to_ms(at(0)), to_ms(at(120))), (to_ms(at(300)), to_ms(at(360))))


LOOKS = st.lists(
    st.tuples(st.integers(-7200, 7200), st.sampled_from(["look", "set"])), min_size=1, max_size=MOST_STRETCHES
)
TIMINGS = st.sampled_from([{"every": "1m"}, {"every": "7m"}, {"cron": "*/5 * * * *"}, {"cron": "30 * * * *"}])


@given(TIMINGS, st.sampled_from(["none", "one", "all"]), LOOKS)
def test_whatever_the_clock_does_no_occurrence_starts_twice(
    timing: dict[str, str], catch_up: str, moves: list[tuple[int, str]]
) -> None:
    """A clock that runs on and is set at will, with the schedule planned again after each step back."""
    of_schedule = definition(**timing, catch_up=catch_up, overlap="allow_all")
    handled: Handled = ()
    now = NOW
    occurrence, next_at = plan("tick", of_schedule, handled, now)
    started: list[datetime] = []
    for seconds_on, how in moves:
        now = now + timedelta(seconds=seconds_on if how == "set" else abs(seconds_on) / 10)
        if how == "set" and seconds_on < 0:
            occurrence, next_at = plan("tick", of_schedule, handled, now)
        before = Standing(name="tick", definition=of_schedule, occurrence=occurrence, next_at=next_at, handled=handled)
        step = decide(before, now)
        started += step.starts
        occurrence, next_at, handled = step.occurrence, step.next_at, step.handled

    assert len(handled) <= MOST_STRETCHES
    assert len(started) == len({*started})


# -- changes of the definition --


def test_an_occurrence_that_is_due_stays_so_if_the_new_expression_has_it_too() -> None:
    before = standing(0, cron="0 12 * * *")

    assert replan(before, definition(cron="0 */6 * * *"), at(5)) == (at(0), at(0))
    assert replan(before, definition(cron="0 13 * * *"), at(5)) == (at(HOUR_S), at(HOUR_S))


def test_another_zone_of_an_interval_and_another_offset_of_its_start_change_nothing() -> None:
    start = at(17)
    before = standing(17 + 60, every="1m", start=start)
    elsewhere = start.astimezone(timezone(timedelta(hours=5, minutes=45)))

    again = definition(every="1m", timezone="Asia/Kathmandu", start=elsewhere)

    assert again.timing() == before.definition.timing()
    assert replan(before, again, at(30)) == (at(77), at(77))


@given(
    st.sampled_from([{"every": "13s"}, {"every": "1h"}, {"cron": "*/7 * * * *"}, {"cron": "0 0 1 * *"}]),
    st.integers(0, 40_000),
    st.integers(1, 120),
)
def test_newest_occurrences_are_the_last_that_walking_finds(timing: dict[str, str], span_s: int, most: int) -> None:
    of_schedule = definition(**timing).timing()
    walked = list(occurrences_after(of_schedule, NOW - timedelta(microseconds=1), until=at(span_s)))

    assert newest_occurrences(of_schedule, NOW, at(span_s), most) == walked[-most:]
