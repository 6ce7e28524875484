"""Take what fits: as `take`, but of the tasks that need memory only the first job in line, and only if it may start.

For nodes with a task that declares a need, and there only for queues that have such jobs; all others use `take`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from jobd.lifecycle.claim import ClaimedJob
from jobd.store.statements import statement

if TYPE_CHECKING:
    from datetime import datetime

    from jobd.lifecycle.take import TakeTerms
    from jobd.store.session import Session

TAKE_FITTING_JOBS = statement("take_fitting_jobs")

#: Jobs of each line that are looked at: by so many that wait for memory a job of another task can be held up.
LOOKED_AT = 1000


class Fitting(msgspec.Struct, frozen=True):
    """Which tasks need memory, and what there is for them."""

    #: All that declare a need.
    tasks: Sequence[str]
    #: Of these, those of which one job may start now.
    startable: Sequence[str]
    #: Of these, those that never start here: their jobs are passed over.
    impossible: Sequence[str] = ()


class FittingJobs(msgspec.Struct, frozen=True):
    jobs: list[ClaimedJob]
    #: The task whose job was first in line and did not fit; None: none.
    short_task: str | None


async def take_fitting(
    session: Session,
    terms: TakeTerms,
    fitting: Fitting,
    *,
    looked_at: int = LOOKED_AT,
    now: datetime | None = None,
) -> FittingJobs:
    sent_at = time.monotonic()
    head, *rows = await session.fetch(
        TAKE_FITTING_JOBS,
        *terms.arguments(now),
        list(fitting.tasks),
        list(fitting.startable),
        list(fitting.impossible),
        looked_at,
    )
    return FittingJobs([ClaimedJob(*(*row[1:], sent_at)) for row in rows], head["short_task"])
