"""Take: the first due jobs of queues in mode `direct`, straight from the table, for all who wait for one.

One statement serves every want, in the order of the index (priority with ageing). It locks the rows of the wanted
queues against a change of mode and checks the mode there: see open_queues in take.sql.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from jobd.lifecycle.claim import NO_TTLS, ClaimedJob
from jobd.store.ids import random_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from jobd.store.session import Session

TAKE_JOBS = statement("take_jobs")
STRAY_CLAIMS = statement("stray_claims")


class Want(msgspec.Struct, frozen=True):
    """Jobs wanted of a queue: one for each owner, the first in line for the first. One want for a queue."""

    queue: str
    owner_ids: list[str]


class TakeTerms(msgspec.Struct, frozen=True):
    """What a statement that takes jobs is asked for."""

    wants: Sequence[Want]
    ttl_s: float
    #: Lease times of tasks that differ.
    task_ttls: Mapping[str, float] = NO_TTLS
    #: Also from queues in mode `stream`, for when Redis is away.
    any_mode: bool = False

    def in_order(self) -> list[Want]:
        """In the one order in which the rows of queues are locked."""
        return sorted(self.wants, key=attrgetter("queue"))

    def arguments(self, now: datetime | None) -> tuple[object, ...]:
        """The parameters $1 to $10 of every statement that takes jobs."""
        wants = self.in_order()
        mosts = [len(want.owner_ids) for want in wants]
        ends = list(accumulate(mosts, initial=0))
        return (
            [want.queue for want in wants],
            ends[:-1],
            mosts,
            [owner_id for want in wants for owner_id in want.owner_ids],
            self.ttl_s,
            random_ids(2 * ends[-1]),
            self.any_mode,
            list(self.task_ttls),
            list(self.task_ttls.values()),
            now,
        )


async def take(
    session: Session,
    wants: Sequence[Want],
    *,
    ttl_s: float,
    task_ttls: Mapping[str, float] = NO_TTLS,
    any_mode: bool = False,
    now: datetime | None = None,
) -> list[ClaimedJob]:
    """Take what is wanted, as far as there is any; see TakeTerms."""
    return await take_by(session, TakeTerms(wants, ttl_s, task_ttls, any_mode), now)


async def take_by(session: Session, terms: TakeTerms, now: datetime | None) -> list[ClaimedJob]:
    sent_at = time.monotonic()
    rows = await session.fetch(TAKE_JOBS, *terms.arguments(now))
    return [ClaimedJob(*(*row, sent_at)) for row in rows]


async def stray_claims(
    session: Session, owner_id: str, known_tokens: Iterable[UUID], *, now: datetime | None = None
) -> list[ClaimedJob]:
    """The claims that stand for this owner and that it does not know of, because the answer to their take was lost."""
    asked_at = time.monotonic()
    rows = await session.fetch(STRAY_CLAIMS, owner_id, list(known_tokens), now)
    return [ClaimedJob(*(*row[:-1], asked_at - row["renewed_s"])) for row in rows]
