from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.supervise.restart import Failures, GiveUp, Restart, RestartPolicy, after_failure, level_at

POLICY = RestartPolicy()
UNITS = st.floats(0, 1, exclude_max=True)


def fail_every(seconds: float, times: int, *, unit: float = 0.5, patient: bool = False) -> list[Restart | GiveUp]:
    """The decisions for a service that lives `seconds` after each start."""
    failures, now, decisions = Failures(), 0.0, []
    for _ in range(times):
        now += seconds
        failures, decision = after_failure(POLICY, failures, now=now, unit=unit, patient=patient)
        decisions.append(decision)
        if isinstance(decision, GiveUp):
            break
        now += decision.delay_s
    return decisions


def test_first_failures_restart_at_once() -> None:
    assert fail_every(0.0, 2) == [Restart(0.0), Restart(0.0)]


@given(unit=UNITS)
def test_service_that_dies_at_once_is_given_up_within_a_minute(unit: float) -> None:
    decisions = fail_every(0.0, 100, unit=unit)

    assert isinstance(decisions[-1], GiveUp)
    assert sum(d.delay_s for d in decisions if isinstance(d, Restart)) < 60


@given(unit=UNITS)
def test_service_that_fails_once_per_half_life_is_never_given_up(unit: float) -> None:
    assert all(isinstance(d, Restart) for d in fail_every(POLICY.half_life_s, 500, unit=unit))


def test_patient_failure_backs_off_but_never_gives_up() -> None:
    decisions = fail_every(0.0, 500, patient=True)

    assert all(isinstance(d, Restart) for d in decisions)
    assert decisions[-1] == Restart(POLICY.cap_s * 0.75)


@given(level=st.floats(0, 1e6), unit=UNITS, patient=st.just(True))
def test_delay_never_exceeds_the_cap(level: float, unit: float, patient: bool) -> None:
    _, decision = after_failure(POLICY, Failures(level, 0.0), now=0.0, unit=unit, patient=patient)

    assert isinstance(decision, Restart)
    assert 0 <= decision.delay_s <= POLICY.cap_s


def test_jitter_spreads_the_delay_over_half_its_ceiling() -> None:
    low, high = (after_failure(POLICY, Failures(5.0, 0.0), now=0.0, unit=unit)[1] for unit in (0.0, 0.999999))

    assert isinstance(low, Restart)
    assert isinstance(high, Restart)
    assert low.delay_s * 2 == pytest.approx(high.delay_s, rel=1e-3)


def test_level_halves_per_half_life_and_ignores_a_clock_that_went_back() -> None:
    assert level_at(POLICY, Failures(4.0, 10.0), 10.0 + POLICY.half_life_s) == pytest.approx(2.0)
    assert level_at(POLICY, Failures(4.0, 10.0), 5.0) == 4.0


def test_policy_can_reach_giving_up_at_its_longest_delay() -> None:
    limit = 1 / (1 - 0.5 ** (POLICY.cap_s / POLICY.half_life_s))

    assert limit > POLICY.give_up
