"""Histograms of durations, in memory; those of jobs have the bounds of the rollups in Postgres."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from jobd.lifecycle.rollups import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Histogram:
    """How many durations fell into each bucket, and their sum. It only grows.

    Each bound is in its bucket, as Prometheus has it; one more bucket takes what is longer than the last.
    """

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """A duration below zero, after a step of the clock, counts as none at all."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        if seconds > 0:
            self.sum_s += seconds

    def add_all(self, durations: Iterable[float]) -> None:
        """The same for many; 0.1 us each."""
        counts, bounds, sum_s = self.counts, self.bounds, self.sum_s
        for seconds in durations:
            counts[bisect_left(bounds, seconds)] += 1
            if seconds > 0:
                sum_s += seconds
        self.sum_s = sum_s

    def cumulative(self) -> list[int]:
        """For each bound, and for all, the number of durations up to it."""
        return list(accumulate(self.counts))
