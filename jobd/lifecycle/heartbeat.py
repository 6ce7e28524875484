"""Heartbeat: extends the leases of jobs, and answers each holder whether it still has its job and whether to stop."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from jobd.job.model import LeaseLost
from jobd.lifecycle.lease import renew_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.lifecycle.lease import LeaseProof
    from jobd.store.session import Session


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    lease_expires_at: datetime
    claim_version: int
    cancel_requested: bool
    #: Seconds that the lease was extended by, if its task has a lease_ttl_s of its own; None: by the caller's ttl_s.
    lease_ttl_s: float | None = None


async def heartbeat(
    session: Session, beats: Sequence[LeaseProof], *, ttl_s: float, now: datetime | None = None
) -> list[Renewal | LeaseLost]:
    """Renew leases of jobs; the answers are in their order. Of two beats with one token only the first counts."""
    rows = await renew_rows(session, "JOB", beats, ttl_s=ttl_s, now=now)
    return [
        LeaseLost()
        if row is None
        else Renewal(
            lease_expires_at=row["lease_expires_at"],
            claim_version=row["claim_version"],
            cancel_requested=row["cancel_requested"],
            lease_ttl_s=row["lease_ttl_s"],
        )
        for row in rows
    ]
