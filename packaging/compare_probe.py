"""What compare.py measures with: the job that every system runs, and the ways to submit it.

The job appends its number and the time of its start to a file, so that starts, lost jobs and double runs are seen
without asking the system; one small write with O_APPEND is whole, also beside other writers. jobd and pgqueuer use
this module, which needs the standard library only; compare_bullmq.mjs does the same in JavaScript.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import struct
import time
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    #: Submit the job of this number, or the jobs of these numbers in one call.
    One = Callable[[int], Awaitable[object]]
    Many = Callable[[Sequence[int]], Awaitable[object]]

#: The variable that names the file.
VARIABLE = "COMPARE_PROBE"
#: Number of the job, and the time of its start in nanoseconds of CLOCK_MONOTONIC, which all processes share.
RECORD = struct.Struct("<qq")
#: Brings the JSON of a payload to about 200 bytes.
FILLER = "x" * 180
#: Clients that submit at the same time, and jobs in one batch.
AT_ONCE = 50
BATCH = 1000
#: Seconds between two looks at the file or at a counter, and the most to wait.
POLL_S = 0.001
PATIENCE_S = 300.0
#: Seconds before a single job, drawn at random between these: time to be idle again, in step with no timer.
IDLE_S = (0.02, 0.1)


# -- the job and its file -----------------------------------------------------------------------------------------


def payload(number: int) -> dict[str, Any]:
    return {"number": number, "filler": FILLER}


async def noop(payload: dict[str, Any], ctx: object) -> None:
    os.write(_file(), RECORD.pack(payload["number"], time.monotonic_ns()))


@functools.cache
def _file() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND)


def clear() -> None:
    os.truncate(os.environ[VARIABLE], 0)


def starts() -> list[tuple[int, int]]:
    with open(os.environ[VARIABLE], "rb") as file:
        return list(RECORD.iter_unpack(file.read()))


def wait_for(runs: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while (seen := os.stat(os.environ[VARIABLE]).st_size // RECORD.size) < runs:
        if time.monotonic() > until:
            raise TimeoutError(f"{seen} of {runs} jobs have run after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


def first_start(jobs: int) -> int:
    """When the first of the jobs 0 to `jobs` - 1 started; fails unless each of them has run exactly once."""
    seen = starts()
    numbers = [number for number, _ in seen]
    if sorted(numbers) != list(range(jobs)):
        missing = len(set(range(jobs)) - set(numbers))
        raise RuntimeError(f"of {jobs} jobs {missing} did not run, and there were {len(numbers)} runs")
    return min(at for _, at in seen)


# -- submits ------------------------------------------------------------------------------------------------------


async def fill(many: Many, jobs: int) -> float:
    """Submit jobs in batches; returns jobs per second, as the others do."""
    began = time.monotonic()
    for first in range(0, jobs, BATCH):
        await many(range(first, min(first + BATCH, jobs)))
    return jobs / (time.monotonic() - began)


async def submit_in_turn(one: One, jobs: int) -> float:
    began = time.monotonic()
    for number in range(jobs):
        await one(number)
    return jobs / (time.monotonic() - began)


async def submit_at_once(one: One, jobs: int) -> float:
    numbers = iter(range(jobs))

    async def submit_some() -> None:
        for number in numbers:
            await one(number)

    began = time.monotonic()
    await asyncio.gather(*(submit_some() for _ in range(AT_ONCE)))
    return jobs / (time.monotonic() - began)


async def submits(in_turn: One, at_once: One, many: Many, jobs: int) -> dict[str, float]:
    """All three ways; `jobs` is the number of a drain, of which these take a part."""
    singly = max(AT_ONCE, jobs // 20)
    return {
        "submit_in_turn": await submit_in_turn(in_turn, singly),
        "submit_at_once": await submit_at_once(at_once, 2 * singly),
        "submit_bulk": await fill(many, max(BATCH, jobs // 4)),
    }


async def start_ms(one: One, jobs: int) -> float:
    """Median milliseconds from submit to start of single jobs, each on an idle system."""
    clear()
    sent = []
    for number in range(jobs):
        time.sleep(random.uniform(*IDLE_S))  # noqa: ASYNC251  # this process has nothing else to do
        sent.append(time.monotonic_ns())
        await one(number)
        wait_for(number + 1)
    first_start(jobs)
    return median((at - sent[number]) / 1e6 for number, at in starts())
