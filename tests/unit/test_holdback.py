from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.holdback import STEP_S, Watch, look, may_reap

PAUSE_S, TTL_S = 1.0, 10.0


def regular_looks(seconds: int, start: Watch | None = None) -> Watch:
    watch = start or look(None, mono=100.0, wall=5000.0, pause_s=PAUSE_S)
    for _ in range(seconds):
        watch = look(watch, mono=watch.mono + 1, wall=watch.wall + 1, pause_s=PAUSE_S)
    return watch


def test_nothing_is_reaped_before_one_healthy_lease_time() -> None:
    assert not may_reap(regular_looks(9), TTL_S)
    assert may_reap(regular_looks(10), TTL_S)


@pytest.mark.parametrize(
    ("mono", "wall"), [(60.0, 60.0), (60.0, 0.0), (9.0, 9.0)], ids=["outage", "suspended", "stall"]
)
def test_gap_between_looks_starts_the_wait_anew(mono: float, wall: float) -> None:
    before = regular_looks(20)

    after = look(before, mono=before.mono + mono, wall=before.wall + wall, pause_s=PAUSE_S)

    assert not may_reap(after, TTL_S)
    assert may_reap(regular_looks(10, after), TTL_S)


@pytest.mark.parametrize("step", [3600.0, -3600.0, STEP_S + 0.1, -STEP_S - 0.1])
def test_step_of_the_clock_starts_the_wait_anew(step: float) -> None:
    before = regular_looks(20)

    after = look(before, mono=before.mono + 1, wall=before.wall + 1 + step, pause_s=PAUSE_S)

    assert not may_reap(after, TTL_S)


@given(st.lists(st.floats(-0.9, 0.9), max_size=50))
def test_slow_drift_and_jitter_are_no_step(jitters: list[float]) -> None:
    watch = regular_looks(20)
    for jitter in jitters:
        watch = look(watch, mono=watch.mono + 1, wall=watch.wall + 1 + jitter, pause_s=PAUSE_S)

    assert may_reap(watch, TTL_S)
