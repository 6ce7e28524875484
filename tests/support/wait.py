"""Wait for what another process or task does, with a deadline that fails late.

A deadline is in seconds of a machine that has a core to spare; on a busier one it is stretched by its load, so that a
test fails for what jobd does and not for what else runs there. Leave it alone unless it is the claim.
"""

from __future__ import annotations

import inspect
import os
import time
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE_S = 30.0


def wait_until(condition: Callable[[], T], why: Callable[[], object] | str = "", timeout_s: float = PATIENCE_S) -> T:
    """What the condition returned, once that is true; `why` says what is missing if it never is."""
    started = time.monotonic()
    while not (found := condition()):
        assert not is_late(started, timeout_s), _explained(condition, why, timeout_s)
        time.sleep(0.01)
    return found


async def wait_until_async(
    condition: Callable[[], object], why: Callable[[], object] | str = "", timeout_s: float = PATIENCE_S
) -> None:
    """The same while other tasks of this loop go on; what the condition returns is awaited if it can be."""
    started = time.monotonic()
    while not await _answer_of(condition):
        assert not is_late(started, timeout_s), _explained(condition, why, timeout_s)
        await anyio.sleep(0.002)


def is_late(started: float, timeout_s: float) -> bool:
    waited_s = time.monotonic() - started
    return waited_s > timeout_s and waited_s > timeout_s * slowness()


def slowness() -> float:
    """How many times longer things take here than alone: processes that want to run, for each core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def _answer_of(condition: Callable[[], object]) -> object:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer


def _explained(condition: Callable[[], object], why: Callable[[], object] | str, timeout_s: float) -> object:
    name = getattr(condition, "__qualname__", repr(condition))
    return why() if callable(why) else why or f"{name} did not hold within {timeout_s:g} s"
