"""Refuses a worker that renews one lease over and over: each renewal is a write, and one a second is plenty.

Counted per lease and second, in a table that is emptied every second, so it never grows.
"""

from __future__ import annotations

import time

from jobd.wire.problems import ApiError

#: Heartbeats of one lease within a second that are accepted.
MOST_PER_S = 20


class HeartbeatLimit:
    def __init__(self) -> None:
        self._second = 0
        self._counts: dict[str, int] = {}

    def check(self, lease_token: str) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._counts = second, {}
        count = self._counts.get(lease_token, 0) + 1
        self._counts[lease_token] = count
        if count > MOST_PER_S:
            raise ApiError(
                "too_many_heartbeats",
                f"this lease was renewed {MOST_PER_S} times within a second; keep to heartbeat_interval_seconds",
                headers={"Retry-After": "1"},
            )
