"""Take, with jobs of the loaded model first: as `take`, but jobs of other models count as if they had come later.

For slots of queues with jobs of a swap group, and there only while a model of it is loaded; all others use `take`.
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

TAKE_RESIDENT_JOBS = statement("take_resident_jobs")

#: Jobs of each line that are looked at: so many of other models may stand before one of the loaded model.
LOOKED_AT = 1000


class PutBehind(msgspec.Struct, frozen=True):
    """Jobs of these tasks are put behind, since their models are not loaded."""

    tasks: Sequence[str]
    #: By this number of seconds. A point of priority is worth a minute: less than that never outweighs one.
    seconds: float


async def take_resident(
    session: Session, terms: TakeTerms, behind: PutBehind, *, looked_at: int = LOOKED_AT, now: datetime | None = None
) -> list[ClaimedJob]:
    sent_at = time.monotonic()
    rows = await session.fetch(TAKE_RESIDENT_JOBS, *terms.arguments(now), list(behind.tasks), behind.seconds, looked_at)
    return [ClaimedJob(*(*row, sent_at)) for row in rows]
