"""Free claims: those of pollers that are known to be dead, since nobody else can know so soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.store.session import Session

FREE_CLAIMS = statement("free_claims", "jobd.tickets.pollers")

#: Seconds after its end at which an expired claim is deleted: what it was of has been finished by another poller.
STALE_S = 600.0


async def free_claims(connection: Session, owner_ids: Sequence[str], *, now: datetime | None = None) -> int:
    """How many there were."""
    return len(await connection.fetch(FREE_CLAIMS, list(owner_ids), STALE_S, now))
