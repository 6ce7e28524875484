"""Rollups: what ended in each minute, by queue and task, with histograms of the wait and the run.

The statements that end attempts and jobs leave a part in the same commit (`rolled_up` in rollups.sql), so nothing is
lost or counted twice; `roll_up` adds the parts to the minutes a few seconds later.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from jobd.store.clock import in_time
from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.clock_eras import Past
    from jobd.store.session import Session

ROLL_UP_PARTS = statement("roll_up_parts")
READ_ROLLUPS = statement("read_rollups")
READ_RUN_TIMES = statement("read_run_times")
PRUNE_ROLLUPS = statement("prune_rollups")

#: Upper bounds of the buckets in seconds, each beginning with the one before; the last bucket has none. The SQL
#: function `bucket_of` has the same numbers.
BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)

Step = Literal["minute", "hour"]


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    #: The beginning of its minute or hour.
    at: datetime
    queue: str
    task: str
    #: Jobs that ended.
    done: int
    error: int
    canceled: int
    #: Attempts that failed, and whose lease expired.
    failed: int
    expired: int
    #: Of the attempts that ended: seconds from due to start and from start to end, in all, and by bucket.
    wait_s: float
    run_s: float
    waits: list[int]
    runs: list[int]


class RollupStretch(NamedTuple):
    """Whole steps, oldest first."""

    rollups: list[Rollup]
    #: Where the next stretch begins; None: nothing was left out.
    next_at: datetime | None


class RunTimes(NamedTuple):
    #: Attempts that ended lately.
    attempts: int
    #: How long they ran in all.
    run_s: float


async def roll_up(session: Session, *, most: int) -> int:
    """Add a page of parts to the minutes; how many parts there were."""
    (row,) = await session.fetch(ROLL_UP_PARTS, most)
    return int(row["parts"])


async def read_rollups(
    session: Session,
    *,
    since: datetime,
    until: datetime,
    queue: str | None = None,
    task: str | None = None,
    step: Step = "minute",
    most: int = 5_000,
) -> RollupStretch:
    """What ended in this time; reads no more than `most` minutes of queues and tasks, except for the first step."""
    rows = await session.fetch(READ_ROLLUPS, since, until, queue, task, step, most)
    (last,) = [row for row in rows if row["queue"] is None]
    rollups = [Rollup(**dict(row)) for row in rows if row["queue"] is not None]
    if last["done"] < most:
        return RollupStretch(rollups, None)
    cut_at = _step_of(last["at"], step)  # of this step some rows may have been left out
    if cut_at > _step_of(since, step):
        return RollupStretch([rollup for rollup in rollups if rollup.at < cut_at], cut_at)
    return await read_rollups(session, since=since, until=until, queue=queue, task=task, step=step, most=2 * most)


def _step_of(at: datetime, step: Step) -> datetime:
    return at.replace(minute=at.minute if step == "minute" else 0, second=0, microsecond=0)


async def read_run_times(session: Session, since: datetime) -> dict[str, RunTimes]:
    """How long attempts of each queue ran that have ended since."""
    rows = await session.fetch(READ_RUN_TIMES, since)
    return {row["queue"]: RunTimes(row["attempts"] or 0, row["run_s"]) for row in rows}


async def prune_rollups(session: Session, past: Past, *, most: int = 1000) -> int:
    """Delete one batch of minutes that are past; how many rows."""
    (row,) = await session.fetch(PRUNE_ROLLUPS, most, *in_time(past))
    return int(row["rollups"])
