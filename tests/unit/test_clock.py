from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.errors import JobdError
from jobd.serve import doctor
from jobd.serve.doctor import Verdict
from jobd.store.clock_eras import (
    EARLIEST,
    STEP_S,
    Era,
    Past,
    Watch,
    known_time,
    may_reap,
    observe,
    past,
    step_s,
    step_while_off,
)

if TYPE_CHECKING:
    from jobd.config.model import Loaded

PAUSE_S, TTL_S = 1.0, 10.0
DAY_S = 86_400.0
YEAR_S = 365 * DAY_S
NOW = EARLIEST + YEAR_S
ERA = Era(
    no=1, wall_from=NOW, steady_from=NOW, wall_to=NOW + 60, steady_to=NOW + 60, known=NOW, boot_id="boot", boot_s=500.0
)


def regular_looks(seconds: int, start: Watch | None = None) -> Watch:
    watch = start or observe(None, mono=100.0, wall=5000.0, pause_s=PAUSE_S)
    for _ in range(seconds):
        watch = observe(watch, mono=watch.mono + 1, wall=watch.wall + 1, pause_s=PAUSE_S)
    return watch


def test_nothing_is_reaped_before_one_healthy_lease_time() -> None:
    assert not may_reap(regular_looks(9), TTL_S)
    assert may_reap(regular_looks(10), TTL_S)


@pytest.mark.parametrize(
    ("mono", "wall"), [(60.0, 60.0), (60.0, 0.0), (9.0, 9.0)], ids=["outage", "suspended", "stall"]
)
def test_gap_between_looks_starts_the_wait_anew(mono: float, wall: float) -> None:
    before = regular_looks(20)

    after = observe(before, mono=before.mono + mono, wall=before.wall + wall, pause_s=PAUSE_S)

    assert not may_reap(after, TTL_S)
    assert may_reap(regular_looks(10, after), TTL_S)


@pytest.mark.parametrize("step", [3600.0, -3600.0, STEP_S + 0.1, -STEP_S - 0.1])
def test_step_of_the_clock_starts_the_wait_anew(step: float) -> None:
    before = regular_looks(20)

    after = observe(before, mono=before.mono + 1, wall=before.wall + 1 + step, pause_s=PAUSE_S)

    assert not may_reap(after, TTL_S)


@given(st.lists(st.floats(-0.9, 0.9), max_size=50))
def test_slow_drift_and_jitter_are_no_step(jitters: list[float]) -> None:
    watch = regular_looks(20)
    for jitter in jitters:
        watch = observe(watch, mono=watch.mono + 1, wall=watch.wall + 1 + jitter, pause_s=PAUSE_S)

    assert may_reap(watch, TTL_S)


# Steps


@pytest.mark.parametrize("moved", [-56 * YEAR_S, -3600.0, 0.0, 3600.0, 30 * YEAR_S])
@pytest.mark.parametrize("passed", [0.5, 600.0])
def test_step_is_told_from_time_that_passed(moved: float, passed: float) -> None:
    assert step_s(wall_s=passed + moved, boot_s=passed) == pytest.approx(moved)


def test_drift_is_no_step() -> None:
    assert step_s(wall_s=100.0 + STEP_S, boot_s=100.0) == 0.0


@pytest.mark.parametrize("moved", [-56 * YEAR_S, 0.0, 30 * YEAR_S])
def test_step_while_off_is_exact_on_the_same_boot(moved: float) -> None:
    later = step_while_off(ERA, wall=ERA.wall_to + 7200 + moved, boot_id="boot", boot_s=ERA.boot_s + 7200)

    assert later == pytest.approx(moved)


@pytest.mark.parametrize(
    ("off_s", "moved"),
    [(0.0, 0.0), (3 * DAY_S, 0.0), (-3600.0, -3600.0), (-56 * YEAR_S, -56 * YEAR_S), (30 * YEAR_S, 30 * YEAR_S)],
)
def test_another_boot_is_believed_to_have_taken_up_to_a_month(off_s: float, moved: float) -> None:
    assert step_while_off(ERA, wall=ERA.wall_to + off_s, boot_id="next", boot_s=10.0) == moved


# Retention


def era(no: int, wall: float, steady: float, lasted: float) -> Era:
    return Era(
        no=no,
        wall_from=wall,
        steady_from=steady,
        wall_to=wall + lasted,
        steady_to=steady + lasted,
        known=wall,
        boot_id="boot",
        boot_s=0.0,
    )


def is_past(time: float, what: Past) -> bool:
    return time < what.before and not any(low <= time <= high for low, high in what.kept)


def test_past_is_what_the_clock_showed_long_ago() -> None:
    found = past([era(1, NOW, NOW, 0.0)], steady=NOW + 10 * DAY_S, keep_s=DAY_S)

    assert is_past(NOW + 8 * DAY_S, found)
    assert not is_past(NOW + 9 * DAY_S + 1, found)


def test_past_reaches_back_before_the_first_era() -> None:
    found = past([era(1, NOW, NOW, 0.0)], steady=NOW + 60, keep_s=DAY_S)

    assert is_past(NOW - 2 * DAY_S, found)
    assert not is_past(NOW - DAY_S / 2, found)


def test_nothing_is_past_because_the_clock_was_set_forward() -> None:
    eras = [era(1, 0.0, 0.0, 3600.0), era(2, NOW, 3600.0, 60.0)]

    found = past(eras, steady=3660.0, keep_s=DAY_S)

    assert not any(is_past(time, found) for time in (0.0, 1800.0, 3600.0, NOW, NOW + 60))


def test_what_ended_while_the_clock_was_behind_is_kept_as_long_as_all_else() -> None:
    eras = [
        era(1, NOW, NOW, 10 * DAY_S),
        era(2, 0.0, NOW + 10 * DAY_S, DAY_S),
        era(3, NOW + 11 * DAY_S, NOW + 11 * DAY_S, 0),
    ]

    soon = past(eras, steady=NOW + 12 * DAY_S, keep_s=2 * DAY_S)
    late = past(eras, steady=NOW + 20 * DAY_S, keep_s=2 * DAY_S)

    assert is_past(NOW + 9 * DAY_S, soon)
    assert not is_past(DAY_S / 2, soon)
    assert is_past(DAY_S / 2, late)


def test_what_ended_while_the_clock_was_ahead_goes_in_its_time() -> None:
    ahead = NOW + 30 * YEAR_S
    eras = [era(1, NOW, NOW, DAY_S), era(2, ahead, NOW + DAY_S, DAY_S), era(3, NOW + 2 * DAY_S, NOW + 2 * DAY_S, 0.0)]

    soon = past(eras, steady=NOW + 4 * DAY_S, keep_s=5 * DAY_S)
    late = past(eras, steady=NOW + 40 * DAY_S, keep_s=5 * DAY_S)

    assert not is_past(ahead + DAY_S / 2, soon)
    assert is_past(ahead + DAY_S / 2, late)
    assert not is_past(NOW + 39 * DAY_S, late)


@given(
    lengths=st.lists(st.floats(min_value=0, max_value=100 * DAY_S), min_size=1, max_size=8),
    starts=st.lists(st.floats(min_value=0, max_value=3e9), min_size=8, max_size=8),
    keep_s=st.floats(min_value=0, max_value=100 * DAY_S),
    share=st.floats(min_value=0, max_value=1),
)
def test_nothing_is_past_that_ended_within_its_retention(
    lengths: list[float], starts: list[float], keep_s: float, share: float
) -> None:
    eras, steady = [], NOW
    for no, (wall, lasted) in enumerate(zip(starts, lengths, strict=False)):
        eras.append(era(no, wall, steady, lasted))
        steady += lasted
    ended = max(NOW, steady - keep_s * share + 1)

    found = past(eras, steady=steady, keep_s=keep_s)

    for present in eras:
        if present.steady_from <= ended <= present.steady_to:
            assert not is_past(present.wall_from + ended - present.steady_from, found)


# The latest known time


@pytest.mark.parametrize("wall", [0.0, NOW - YEAR_S, NOW - 3600])
def test_known_time_goes_on_while_the_clock_is_behind(wall: float) -> None:
    assert known_time(NOW, passed_s=60.0, wall=wall, era_s=1e9) == NOW + 60.0


def test_known_time_follows_the_clock() -> None:
    assert known_time(NOW, passed_s=60.0, wall=NOW + 100 * DAY_S, era_s=0.0) == NOW + 100 * DAY_S


def test_clock_that_is_decades_ahead_is_believed_only_after_a_day() -> None:
    ahead = NOW + 30 * YEAR_S

    assert known_time(NOW, passed_s=60.0, wall=ahead, era_s=3600.0) == NOW + 60.0
    assert known_time(NOW, passed_s=60.0, wall=ahead, era_s=2 * DAY_S) == ahead


def test_clock_that_was_in_1970_is_corrected_at_once() -> None:
    assert known_time(100.0, passed_s=60.0, wall=NOW, era_s=0.0) == NOW


# What a person is told


@pytest.mark.parametrize(("now", "verdict"), [(300.0, Verdict.WARN), (EARLIEST - 1, Verdict.WARN), (NOW, Verdict.OK)])
async def test_doctor_says_that_the_clock_is_not_set(
    monkeypatch: pytest.MonkeyPatch, now: float, verdict: Verdict
) -> None:
    def no_configuration() -> Loaded:
        raise JobdError("this test is about the machine")

    monkeypatch.setattr(time, "time", lambda: now)
    findings = {finding.check: finding for finding in await doctor.examine(no_configuration)}

    assert findings["clock"].verdict is verdict
    assert ("time synchronisation" in findings["clock"].remedy) is (verdict is Verdict.WARN)
