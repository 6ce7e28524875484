"""Heartbeat: extends leases, and tells each holder whether it still has its job and whether to stop."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.job.model import LeaseLost
from jobd.lifecycle.lock_order import in_turn
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Session

HEARTBEAT_LEASES = statement("heartbeat_leases")


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    lease_token: UUID
    #: A holder that shows the version it knows loses the lease if it has moved.
    claim_version: int | None = None


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    lease_expires_at: datetime
    claim_version: int
    cancel_requested: bool
    #: What it was extended by if that is its own; None: by what the caller asked for.
    lease_ttl_s: float | None = None


async def heartbeat(
    session: Session, beats: Sequence[Beat], *, ttl_s: float, now: datetime | None = None
) -> list[Renewal | LeaseLost]:
    """Renew leases; the answers are in their order. Of two beats with one token only the first counts."""
    sent = in_turn(beats, lambda beat: (beat.job_id, beat.lease_token))
    ordered = [beats[n] for n in sent.values()]
    rows = await session.fetch(
        HEARTBEAT_LEASES,
        [beat.job_id for beat in ordered],
        [beat.lease_token for beat in ordered],
        [beat.claim_version for beat in ordered],
        ttl_s,
        now,
    )
    renewed = {
        (row["job_id"], row["lease_token"]): Renewal(
            lease_expires_at=row["lease_expires_at"],
            claim_version=row["claim_version"],
            cancel_requested=row["cancel_requested"],
            lease_ttl_s=row["lease_ttl_s"],
        )
        for row in rows
    }
    return [renewed.get((beat.job_id, beat.lease_token), LeaseLost()) for beat in beats]
