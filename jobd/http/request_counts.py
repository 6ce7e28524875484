"""Requests in numbers that only grow, by the template of their route: for `/metrics`."""

from __future__ import annotations

from typing import Final

from jobd.lifecycle.histogram import Histogram

#: Route of requests that were refused before one was found.
NO_ROUTE: Final = "other"
#: Upper bounds in seconds of the time until an answer begins; a long poll waits for up to a minute.
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RequestCounts:
    def __init__(self) -> None:
        #: By route (`POST /v1/jobs`) and status.
        self.answers: dict[tuple[str, int], int] = {}
        #: By route: seconds from the head of a request to the head of its answer.
        self.durations: dict[str, Histogram] = {}

    def add(self, route: str, status: int, seconds: float) -> None:
        key = route, status
        self.answers[key] = self.answers.get(key, 0) + 1
        durations = self.durations.get(route)
        if durations is None:
            durations = self.durations[route] = Histogram(BOUNDS_S)
        durations.add(seconds)
