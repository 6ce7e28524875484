"""When to call a jobd that did not answer well: pauses that double, drawn at random from none to whole (full jitter).

All calls of a worker share one pace, so a jobd that comes back meets each worker at a moment of its own, and not every
slot of every worker at once. Calls that fail together count once. What jobd or a proxy asks for (Retry-After) comes on
top, but not for calls that cannot wait: a lease that is not renewed is lost.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds before the second try after a failure; doubled for each further one.
FIRST_PAUSE_S = 0.25
#: Longest pause between two tries in seconds.
LONGEST_PAUSE_S = 10.0


class Pace:
    def __init__(self, longest_s: Callable[[], float] = lambda: LONGEST_PAUSE_S) -> None:
        self._longest_s = longest_s
        self._failures = 0
        self._failed_at = 0.0
        #: No call before this, by `time.monotonic()`: exponential backoff after a failure.
        self.next_at = 0.0
        #: No call before this either, unless it is urgent: jobd sent `Retry-After`.
        self.asked_until = 0.0

    async def wait(self, *, is_urgent: bool = False) -> float:
        """Return when it is time to call, with that time."""
        while (left_s := max(self.next_at, 0.0 if is_urgent else self.asked_until) - time.monotonic()) > 0:
            await anyio.sleep(left_s)
        return time.monotonic()

    def saw_success(self) -> None:
        self._failures, self.next_at = 0, 0.0

    def saw_failure(self, called_at: float, asked_s: float) -> None:
        """A call that began then came to nothing; `asked_s`: how long jobd asked to be left alone."""
        now = time.monotonic()
        if called_at >= self._failed_at:
            self._failures += 1
        self._failed_at = now
        most_s = min(FIRST_PAUSE_S * 2 ** min(self._failures, 30), LONGEST_PAUSE_S, self._longest_s())
        self.next_at = max(self.next_at, now + random.uniform(0, most_s))
        self.asked_until = max(self.asked_until, self.next_at + asked_s) if asked_s else self.asked_until
