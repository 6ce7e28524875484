"""Minute rollups as clients see them: what ended in each minute or hour, by queue and task, for charts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

RollupStep: TypeAlias = Literal["minute", "hour"]


class RollupPoint(msgspec.Struct, frozen=True, kw_only=True):
    #: Beginning of the step, in milliseconds since 1970.
    ts: int
    queue: str
    task: str
    #: Jobs that ended in this step.
    done: int
    error: int
    canceled: int
    #: Attempts that failed, whether their jobs were tried again or not.
    failed: int
    #: Attempts whose worker fell silent, and those that the stop of a node interrupted.
    expired: int
    #: Seconds from due to start and from start to end, in all, of the attempts that ended.
    wait_s: float
    run_s: float
    #: How many of them fell into each bucket; one bucket more than there are bounds.
    waits: list[int]
    runs: list[int]


class RollupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    step: RollupStep
    #: Where one bucket of the histograms ends and the next begins, in seconds.
    bounds_s: list[float]
    #: Oldest first; a step in which nothing ended has none. The present step may lack the last 5 seconds.
    points: list[RollupPoint]
    #: Send it as `since_ts` for the rest; null: this was all.
    next_ts: int | None
