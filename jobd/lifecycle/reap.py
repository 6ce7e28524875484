"""Reap: the attempts of holders that fell silent are closed, page by page, and their jobs queued again or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.job.retry import NO_POLICIES, as_arrays
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from jobd.job.retry import RetryPolicy
    from jobd.store.session import Session

REAP_EXPIRED = statement("reap_expired")


class ReapCounts(msgspec.Struct, frozen=True, kw_only=True):
    requeued: int = 0
    dead_lettered: int = 0
    canceled: int = 0
    #: How long past its expiry the most overdue lease was.
    late_s: float = 0.0

    @property
    def total(self) -> int:
        return self.requeued + self.dead_lettered + self.canceled


async def reap(
    session: Session,
    *,
    policy: RetryPolicy,
    task_policies: Mapping[str, RetryPolicy] = NO_POLICIES,
    most: int = 500,
    grace_s: float = 0.0,
    jitter: float | None = None,
    now: datetime | None = None,
    dead_owners: Sequence[str] | None = None,
) -> ReapCounts:
    """Reap one page of at most `most` leases that are `grace_s` past their expiry, or those of owners that are dead."""
    owners = None if dead_owners is None else list(dead_owners)
    usual = policy.base_s, policy.cap_s
    exceptions = as_arrays(task_policies)
    rows = await session.fetch(REAP_EXPIRED, most, *usual, grace_s, jitter, now, owners, *exceptions)
    statuses = [row["status"] for row in rows]
    return ReapCounts(
        requeued=statuses.count("queued"),
        dead_lettered=statuses.count("error"),
        canceled=statuses.count("canceled"),
        late_s=max((row["late_s"] for row in rows), default=0.0),
    )
