"""How fast a queue drains, and when to come again to a full one."""

from __future__ import annotations

import pytest

from jobd.http.drain_rates import DrainRates
from jobd.lifecycle.read import QueueStats
from jobd.store.postgres import Database


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def stats(queued: int = 0, running: int = 0, done: int = 0, queue: str = "default") -> QueueStats:
    return QueueStats(queue=queue, paused=False, queued=queued, running=running, done=done, error=0, canceled=0)


def rates(*samples: tuple[float, QueueStats]) -> DrainRates:
    clock = Clock()
    found = DrainRates(Database("postgresql://nowhere", 1), clock)
    for at, stats in samples:
        clock.now = 100.0 + at
        found.add([stats])
    return found


@pytest.mark.parametrize(
    ("samples", "per_s"),
    [
        ([], None),
        ([(0, stats(done=5))], None),
        ([(0, stats(done=5)), (0.5, stats(done=6))], None),
        ([(0, stats()), (10, stats(done=50))], 5.0),
        ([(0, stats(running=4)), (10, stats(done=4, running=4))], 0.4),
        ([(0, stats(queued=9)), (10, stats(queued=99))], 0.0),
        # jobs that go back to the queue are no drain
        ([(0, stats(running=5)), (10, stats(queued=5))], 0.0),
        # retention took more than was finished: that stretch says nothing
        ([(0, stats(done=100)), (10, stats(done=200)), (20, stats(done=50)), (30, stats(done=150))], 10.0),
        # what is older than a minute no longer counts
        ([(0, stats()), (10, stats(done=1000)), (65, stats(done=1000)), (75, stats(done=1000))], 0.0),
    ],
)
def test_the_rate_is_what_left_the_line_lately(samples: list[tuple[float, QueueStats]], per_s: float | None) -> None:
    assert rates(*samples).per_s("default") == per_s


def test_a_queue_that_was_never_seen_has_no_rate() -> None:
    assert rates((0, stats()), (10, stats())).per_s("other") is None


@pytest.mark.parametrize(
    ("samples", "max_queued", "after_s"),
    [
        ([], 100, 5),
        ([(0, stats(queued=100)), (10, stats(queued=100, done=20))], 100, 1),
        ([(0, stats(queued=1000)), (10, stats(queued=1000, done=20))], 1000, 5),
        ([(0, stats(queued=1000)), (10, stats(queued=1000))], 1000, 300),
        ([(0, stats(queued=100_000)), (10, stats(queued=100_000, done=1))], 100_000, 300),
        # the limit was lowered: what is above it has to go first
        ([(0, stats(queued=200)), (10, stats(queued=200, done=20))], 100, 51),
    ],
)
def test_a_full_queue_asks_to_wait_for_a_part_of_it(
    samples: list[tuple[float, QueueStats]], max_queued: int, after_s: int
) -> None:
    assert rates(*samples).retry_after_s("default", max_queued) == after_s


async def test_without_postgres_there_is_no_sample() -> None:
    found = rates()

    await found.sample()

    assert (found.per_s("default"), found.is_old()) == (None, False)
