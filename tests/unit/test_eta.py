"""When a waiting job will start: by the run times, else by the drain rate, and never a number that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from jobd.http.eta import QueuePace, eta_s
from jobd.lifecycle.waiting import Wait
from jobd.store.ids import new_id


def wait(**changes: Any) -> Wait:
    fields = {"attempt_count": 0, "in_line": True, "paused": False, "position": 0, "due_s": None}
    return Wait(job_id=new_id(), queue="default", **{**fields, **changes})


DELAYED = {"in_line": False, "position": None}


@pytest.mark.parametrize(
    ("job", "pace", "expected"),
    [
        # by run time and hands
        (wait(position=0), QueuePace(hands=1, run_s=60.0), 60.0),
        (wait(position=7), QueuePace(hands=4, run_s=60.0), 120.0),
        (wait(position=7), QueuePace(hands=4, run_s=60.0, drain_per_s=100.0), 120.0),
        (wait(position=999), QueuePace(hands=1, run_s=0.0), 1.0),
        # a slot is free
        (wait(position=1), QueuePace(hands=4, free=2, run_s=60.0), 0.0),
        (wait(position=2), QueuePace(hands=4, free=2, run_s=60.0), 15.0),
        # by the drain rate
        (wait(position=9), QueuePace(hands=4, drain_per_s=2.0), 5.0),
        (wait(position=9), QueuePace(hands=0, run_s=60.0, drain_per_s=2.0), 5.0),
        # delayed
        (wait(**DELAYED, due_s=30.0), QueuePace(), 30.0),
        (wait(**DELAYED, due_s=30.0), QueuePace(head_waits_s=12.0), 42.0),
        (wait(**DELAYED, due_s=-1.0), QueuePace(), 0.0),
        # not known
        (wait(position=None), QueuePace(hands=4, run_s=60.0, drain_per_s=1.0), None),
        (wait(position=3), QueuePace(hands=4), None),
        (wait(position=3), QueuePace(hands=0, run_s=60.0), None),
        (wait(position=3), QueuePace(hands=4, drain_per_s=0.0), None),
        (wait(position=0, paused=True), QueuePace(hands=4, run_s=1.0), None),
        (wait(**DELAYED, due_s=30.0, paused=True), QueuePace(), None),
        (wait(**DELAYED, due_s=None), QueuePace(hands=4, run_s=1.0), None),
    ],
)
def test_eta(job: Wait, pace: QueuePace, expected: float | None) -> None:
    assert eta_s(job, pace) == expected
