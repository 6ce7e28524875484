"""Wait for what another process or task does, with a deadline that fails late.

New tests use `wait_until` and `wait_until_async`: say what is waited for, and leave the deadline alone unless it is the
claim. A deadline is in seconds of a machine that has a core to spare; on a busier one it is stretched by its load, so
that a test fails for what jobd does and not for what else runs there.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
PATIENCE_S = 30.0


def wait_until(condition: Callable[[], T], why: Callable[[], object] | str, timeout_s: float = PATIENCE_S) -> T:
    """What the condition returned, once that is true; `why` says what is missing if it never is."""
    started = time.monotonic()
    while not (found := condition()):
        assert not is_late(started, timeout_s), why() if callable(why) else why
        time.sleep(0.02)
    return found


async def wait_until_async(
    condition: Callable[[], Awaitable[T]], why: Callable[[], object] | str, timeout_s: float = PATIENCE_S
) -> T:
    started = time.monotonic()
    while not (found := await condition()):
        assert not is_late(started, timeout_s), why() if callable(why) else why
        await anyio.sleep(0.005)
    return found


def is_late(started: float, timeout_s: float) -> bool:
    waited_s = time.monotonic() - started
    return waited_s > timeout_s and waited_s > timeout_s * slowness()


def slowness() -> float:
    """How many times longer things take here than alone: processes that want to run, for each core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
