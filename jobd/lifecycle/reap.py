"""Reap: the attempts of holders that fell silent are closed, page by page, and their jobs queued again or ended.

A worker that fell silent costs its job an attempt; the stop of a node does not: see docs/job-states.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobd.job.retry import NO_POLICIES, as_arrays, most_interruptions
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.job.retry import RetryPolicy
    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

REAP_EXPIRED = statement("reap_expired")


class ReapCounts(msgspec.Struct, frozen=True, kw_only=True):
    requeued: int = 0
    #: Of all that ended, those that count as interruptions.
    interrupted: int = 0
    dead_lettered: int = 0
    canceled: int = 0
    #: Jobs that had not started in time.
    expired: int = 0
    #: How long past its expiry the most overdue lease was.
    late_s: float = 0.0

    @property
    def total(self) -> int:
        return self.requeued + self.dead_lettered + self.canceled


class ReapedJob(NamedTuple):
    job_id: UUID
    #: Of the job, now that its attempt has ended: queued, error or canceled.
    status: str
    #: How long past its expiry the lease was.
    late_s: float
    #: Number of the attempt that ended, and who held it.
    attempt: int
    owner_id: str
    traceparent: str | None
    #: Its node stopped: the attempt is not charged.
    interrupted: bool


async def reap(
    session: Session,
    *,
    policy: RetryPolicy,
    task_policies: Mapping[str, RetryPolicy] = NO_POLICIES,
    most: int = 500,
    grace_s: float = 0.0,
    tally: Tally | None = None,
    jitter: float | None = None,
    now: datetime | None = None,
    dead_owners: Sequence[str] | None = None,
) -> list[ReapedJob]:
    """Reap one page of at most `most` leases that are `grace_s` past their expiry, or those of owners that are dead."""
    owners = None if dead_owners is None else list(dead_owners)
    usual = policy.base_s, policy.cap_s
    exceptions = as_arrays(task_policies)
    interruptions = policy.max_interruptions, most_interruptions(task_policies)
    rows = await session.fetch(REAP_EXPIRED, most, *usual, grace_s, jitter, now, owners, *exceptions, *interruptions)
    if tally is not None:
        tally.ended(rows)
    return [
        ReapedJob(
            row["job_id"],
            row["status"],
            row["late_s"],
            row["ended_no"],
            row["owner_id"],
            row["traceparent"],
            row["outcome"] == "interrupted",
        )
        for row in rows
    ]


def counted(reaped: Sequence[ReapedJob]) -> ReapCounts:
    statuses = [job.status for job in reaped]
    return ReapCounts(
        requeued=statuses.count("queued"),
        dead_lettered=statuses.count("error"),
        canceled=statuses.count("canceled"),
        interrupted=sum(job.interrupted for job in reaped),
        late_s=max((job.late_s for job in reaped), default=0.0),
    )
