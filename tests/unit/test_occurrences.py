"""When schedules are due: tables of local times around changes of the clock, and properties of any timing."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.occurrences.timing import BadTiming, Timing, parse_every, timing_of
from jobd.occurrences.walk import (
    jitter_of,
    latest_occurrence,
    number_of_occurrences,
    occurrence_after,
    occurrences_after,
)

UTC = timezone.utc


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def next_of(timing: Timing, after: datetime, most: int) -> list[datetime]:
    return list(islice(occurrences_after(timing, after), most))


#: Zone, cron, after, and the next occurrences, all as local times with their offset.
TABLE = [
    # The clock goes forward: what has a fixed hour runs right after the gap, and what has `*` follows real time.
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
    ("Europe/Berlin", "30 * * * *", "2026-03-29T01:00+01:00", ["2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00"]),
    ("America/New_York", "30 2 * * *", "2026-03-07T12:00-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
    (
        "America/New_York",
        "*/30 * * * *",
        "2026-03-08T01:29-05:00",
        ["2026-03-08T01:30-05:00", "2026-03-08T03:00-04:00"],
    ),
    (
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2026-10-03T12:00+10:30",
        ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
    ),
    (
        "Australia/Lord_Howe",
        "0 */3 * * *",
        "2026-10-04T00:30+10:30",
        ["2026-10-04T03:00+11:00", "2026-10-04T06:00+11:00"],
    ),
    (
        "Australia/Lord_Howe",
        "15 * * * *",
        "2026-10-04T01:00+10:30",
        ["2026-10-04T01:15+10:30", "2026-10-04T03:15+11:00"],
    ),
    # The clock goes back: once at a fixed hour, and twice with `*`.
    ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"]),
    (
        *("Europe/Berlin", "30 * * * *", "2026-10-25T01:45+02:00"),
        ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", "2026-10-25T03:30+01:00"],
    ),
    ("America/New_York", "30 1 * * *", "2026-10-31T12:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
    (
        *("America/New_York", "*/20 * * * *", "2026-11-01T01:35-04:00"),
        ["2026-11-01T01:40-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:20-05:00"],
    ),
    (
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2026-04-04T12:00+11:00",
        ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
    ),
    (
        *("Australia/Lord_Howe", "45 * * * *", "2026-04-05T01:00+11:00"),
        ["2026-04-05T01:45+11:00", "2026-04-05T01:45+10:30", "2026-04-05T02:45+10:30"],
    ),
    ("America/New_York", "0 */2 * * *", "2026-03-08T00:30-05:00", ["2026-03-08T04:00-04:00", "2026-03-08T06:00-04:00"]),
    (
        *("America/New_York", "30 * * * *", "2026-11-01T00:45-04:00"),
        ["2026-11-01T01:30-04:00", "2026-11-01T01:30-05:00", "2026-11-01T02:30-05:00"],
    ),
    ("America/New_York", "0 1 * * *", "2026-11-01T01:10-05:00", ["2026-11-02T01:00-05:00"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T01:40+10:30", ["2026-04-06T01:45+10:30"]),
    # A zone that changes at midnight, so that a day begins at one o'clock, or its last hour comes twice.
    ("America/Santiago", "30 0 * * *", "2026-09-05T12:00-04:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:30-03:00"]),
    ("America/Santiago", "@daily", "2026-09-05T12:00-04:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
    (
        *("America/Santiago", "30 * * * *", "2026-09-05T23:00-04:00"),
        ["2026-09-05T23:30-04:00", "2026-09-06T01:30-03:00"],
    ),
    ("America/Santiago", "30 23 * * *", "2026-04-04T12:00-03:00", ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]),
    (
        *("America/Santiago", "30 * * * *", "2026-04-04T22:45-03:00"),
        ["2026-04-04T23:30-03:00", "2026-04-04T23:30-04:00", "2026-04-05T00:30-04:00"],
    ),
    # Zones with quarters of an hour, and without changes: Kathmandu went forward once, by a quarter of an hour in 1986.
    ("Asia/Kathmandu", "5 0 * * *", "1985-12-31T12:00+05:30", ["1986-01-01T00:15+05:45", "1986-01-02T00:05+05:45"]),
    ("Asia/Kathmandu", "*/20 * * * *", "2026-03-29T01:50+05:45", ["2026-03-29T02:00+05:45", "2026-03-29T02:20+05:45"]),
    ("Asia/Kathmandu", "0 0 * * *", "2026-01-01T12:00+05:45", ["2026-01-02T00:00+05:45", "2026-01-03T00:00+05:45"]),
    ("UTC", "0 3 * * *", "2026-03-29T00:00+00:00", ["2026-03-29T03:00+00:00", "2026-03-30T03:00+00:00"]),
    # Days that not every month or year has.
    ("UTC", "0 0 29 2 *", "2026-01-01T00:00+00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
    ("UTC", "0 0 29 2 *", "2096-03-01T00:00+00:00", ["2104-02-29T00:00+00:00"]),
    (
        *("UTC", "0 0 31 * *", "2026-01-31T00:00+00:00"),
        ["2026-03-31T00:00+00:00", "2026-05-31T00:00+00:00", "2026-07-31T00:00+00:00", "2026-08-31T00:00+00:00"],
    ),
    ("UTC", "0 0 L * *", "2026-02-01T00:00+00:00", ["2026-02-28T00:00+00:00", "2026-03-31T00:00+00:00"]),
    ("UTC", "0 9 * * MON#2", "2026-01-01T00:00+00:00", ["2026-01-12T09:00+00:00", "2026-02-09T09:00+00:00"]),
    ("UTC", "@daily", "2026-01-01T00:00+00:00", ["2026-01-02T00:00+00:00", "2026-01-03T00:00+00:00"]),
    ("UTC", "0 8 * jan,jul mon-fri", "2026-01-30T12:00+00:00", ["2026-07-01T08:00+00:00"]),
]


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), TABLE)
def test_next_occurrences_are_those_of_the_table(zone: str, cron: str, after: str, expected: list[str]) -> None:
    timing = timing_of(cron=cron, every="", timezone=zone)

    assert next_of(timing, at(after), len(expected)) == [at(text) for text in expected]


def test_interval_follows_real_time_and_counts_from_its_start() -> None:
    start = at("2026-03-29T00:30+01:00")
    timing = timing_of(cron="", every="1h", timezone="Europe/Berlin", start=start)

    expected = [start, at("2026-03-29T01:30+01:00"), at("2026-03-29T03:30+02:00")]
    assert next_of(timing, start - timedelta(days=1), 3) == expected


def test_interval_without_start_comes_at_the_same_instants_whenever_it_is_asked() -> None:
    timing = timing_of(cron="", every="15m", timezone="UTC")

    assert occurrence_after(timing, at("2026-01-01T00:07+00:00")) == at("2026-01-01T00:15+00:00")
    assert occurrence_after(timing, at("2026-01-01T00:15+00:00")) == at("2026-01-01T00:30+00:00")


def test_nothing_comes_before_the_start_or_after_the_end() -> None:
    start, end = at("2026-02-01T00:00+00:00"), at("2026-02-03T00:00+00:00")
    timing = timing_of(cron="@daily", every="", timezone="UTC", start=start, end=end)

    assert next_of(timing, at("2026-01-01T00:00+00:00"), 9) == [start, start + timedelta(days=1), end]


def test_jitter_is_the_same_for_the_same_occurrence_and_differs_between_occurrences() -> None:
    days = [at("2026-01-01T00:00+00:00") + timedelta(days=n) for n in range(50)]
    jitters = [jitter_of("a", day, 60.0) for day in days]

    assert jitters == [jitter_of("a", day, 60.0) for day in days]
    assert all(timedelta(0) <= jitter < timedelta(seconds=60) for jitter in jitters)
    assert len({*jitters}) == len(days)
    assert jitter_of("b", days[0], 60.0) != jitters[0]


TIMINGS = st.one_of(
    st.builds(lambda s: Timing(every_s=s), st.integers(1, 400_000)),
    st.builds(
        lambda cron, zone: Timing(cron=cron, timezone=zone),
        st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */5 * * *", "15 1,2,3 * * 0", "0 0 31 * *"]),
        st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    ),
)
INSTANTS = st.integers(1_700_000_000, 2_000_000_000).map(lambda s: datetime.fromtimestamp(s, UTC))


@given(TIMINGS, INSTANTS)
def test_occurrences_grow_and_none_is_between_two_of_them(timing: Timing, after: datetime) -> None:
    first, second = next_of(timing, after, 2)

    assert after < first < second
    assert occurrence_after(timing, first - timedelta(seconds=1)) == first
    assert occurrence_after(timing, second - timedelta(seconds=1)) == second


@given(TIMINGS, INSTANTS, st.integers(0, 300))
def test_latest_occurrence_is_the_last_that_walking_finds(timing: Timing, first: datetime, hours: int) -> None:
    until = first + timedelta(hours=hours / 60)
    walked = list(occurrences_after(timing, first - timedelta(microseconds=1), until=until))

    assert latest_occurrence(timing, first=first, until=until) == (walked[-1] if walked else None)
    assert number_of_occurrences(timing, first=first, until=until, most=50) == min(50, len(walked))


def test_latest_occurrence_after_decades_is_found_in_few_steps() -> None:
    minutely = timing_of(cron="* * * * *", every="", timezone="Europe/Berlin")
    leap_day = timing_of(cron="0 0 29 2 *", every="", timezone="UTC")
    first, until = at("2026-01-01T00:00+00:00"), at("2056-01-01T00:00:30+00:00")

    assert latest_occurrence(minutely, first=first, until=until) == at("2056-01-01T00:00+00:00")
    assert latest_occurrence(leap_day, first=first, until=until) == at("2052-02-29T00:00+00:00")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("90s", 90), ("15m", 900), ("6h", 21_600), ("1d", 86_400), ("1h30m", 5400)]
)
def test_intervals_are_read(text: str, seconds: int) -> None:
    assert parse_every(text) == seconds


BAD = [
    ({"cron": "", "every": ""}, "cron", "either cron or every (got neither)"),
    ({"cron": "@daily", "every": "1h"}, "cron", "either cron or every (got both)"),
    ({"cron": "* * * *"}, "cron", "five fields"),
    ({"cron": "* * * * * *"}, "cron", "five fields"),
    ({"cron": "@reboot"}, "cron", "no such name"),
    ({"cron": "60 * * * *"}, "cron", "Bad minute"),
    ({"cron": "* 24 * * *"}, "cron", "Bad hour"),
    ({"cron": "* * 0 * *"}, "cron", "Bad day-of-month"),
    ({"cron": "* * * 13 *"}, "cron", "Bad month"),
    ({"cron": "* * * * 8"}, "cron", "Bad day-of-week"),
    ({"cron": "*/0 * * * *"}, "cron", "Bad minute"),
    ({"cron": "0 0 30 2 *"}, "cron", "Bad day-of-month"),
    ({"cron": "MON#2/2 * * * *"}, "cron", "Bad minute"),
    ({"cron": "0 0 * 2 MON#5/3"}, "cron", "Bad day-of-week"),
    ({"cron": "\u0660 * * * *"}, "cron", "Bad minute"),
    ({"every": "15"}, "every", "such as 30s"),
    ({"every": "m"}, "every", "such as 30s"),
    ({"every": "-5m"}, "every", "such as 30s"),
    ({"every": "0s"}, "every", "from 1s to 366d"),
    ({"every": "367d"}, "every", "from 1s to 366d"),
    ({"cron": "@daily", "timezone": "Berlin"}, "timezone", "did you mean Europe/Berlin?"),
    ({"cron": "@daily", "timezone": ""}, "timezone", "IANA"),
    ({"cron": "@daily", "timezone": "../../etc/passwd"}, "timezone", "IANA"),
    ({"cron": "@daily", "timezone": "\0"}, "timezone", "IANA"),
    (
        {"cron": "@daily", "start": at("2026-01-02T00:00+00:00"), "end": at("2026-01-01T00:00+00:00")},
        *("end", "later than start"),
    ),
]


@pytest.mark.parametrize(("fields", "field", "message"), BAD)
def test_bad_timing_is_refused_and_its_field_named(fields: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(BadTiming) as refused:
        timing_of(**{"cron": "", "every": "", "timezone": "UTC", **fields})  # type: ignore[arg-type]

    assert refused.value.field == field
    assert message in str(refused.value)
