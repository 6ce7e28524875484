"""When a worker calls a jobd that failed it, and which queues it serves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from jobd.config.model import Config, Queue
from jobd.errors import ConfigError
from jobd.worker.pace import LONGEST_PAUSE_S, Pace
from jobd.worker.worker import with_queues

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time stands still unless it is moved."""
    now = [START]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest pause of those that may be drawn."""
    monkeypatch.setattr("jobd.worker.pace.random.uniform", lambda low, high: high)


def pauses_of(pace: Pace, number: int, clock: Callable[[float], None]) -> list[float]:
    pauses = []
    for _ in range(number):
        pace.saw_failure(time.monotonic(), 0.0)
        pauses.append(pace.next_at - time.monotonic())
        clock(pauses[-1])
    return pauses


def test_pauses_double_up_to_a_limit(clock: Callable[[float], None], longest: None) -> None:
    assert pauses_of(Pace(), 7, clock) == [0.5, 1, 2, 4, 8, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_pauses_of_many_workers_are_spread_from_none_to_whole(clock: Callable[[float], None]) -> None:
    last = [pauses_of(Pace(), 6, lambda _: None)[-1] for _ in range(300)]

    assert min(last) < LONGEST_PAUSE_S * 0.2
    assert max(last) > LONGEST_PAUSE_S * 0.8
    assert max(last) <= LONGEST_PAUSE_S


def test_pauses_leave_room_in_a_short_lease(clock: Callable[[float], None], longest: None) -> None:
    assert pauses_of(Pace(lambda: 0.7), 4, clock) == pytest.approx([0.5, 0.7, 0.7, 0.7])


def test_calls_that_fail_together_count_once(clock: Callable[[float], None], longest: None) -> None:
    pace = Pace()

    for _ in range(50):
        clock(0.001)
        pace.saw_failure(START, 0.0)

    assert pace.next_at - time.monotonic() <= 0.5


def test_success_ends_the_pause(clock: Callable[[float], None], longest: None) -> None:
    pace = Pace()
    pauses_of(pace, 5, lambda _: None)

    pace.saw_success()

    assert pace.next_at == 0.0
    assert pauses_of(pace, 1, clock) == [0.5]


async def test_who_is_asked_to_wait_does_so_but_not_with_what_cannot_wait(longest: None) -> None:
    pace = Pace(lambda: 0.0)

    pace.saw_failure(time.monotonic(), 60.0)

    assert pace.asked_until - time.monotonic() > 50
    assert await pace.wait(is_urgent=True) < pace.asked_until


SOME = Config(queues={"default": Queue(slots=0), "gpu": Queue(slots=2), "cpu": Queue(slots=3)})


@pytest.mark.parametrize(
    ("names", "slots", "served"),
    [
        ([], None, {"gpu": 2, "cpu": 3}),
        ([], 7, {"gpu": 7, "cpu": 7}),
        (["gpu"], None, {"gpu": 2}),
        (["gpu", "new"], 1, {"gpu": 1, "new": 1}),
        (["default"], None, {"default": 4}),
        (["new"], None, {"new": 4}),
    ],
)
def test_named_queues_are_served_and_no_others(names: list[str], slots: int | None, served: dict[str, int]) -> None:
    found = with_queues(SOME, names, slots).queues

    assert {name: queue.slots for name, queue in found.items() if queue.slots} == served
    assert SOME.queues.keys() <= found.keys()


def test_worker_with_nothing_to_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match="no queue has slots"):
        with_queues(Config(queues={"default": Queue(slots=0)}), [], 3)
