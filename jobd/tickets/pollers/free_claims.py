"""Free claims: delete the leases of dead pollers at once, instead of waiting for them to expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Session

FREE_CLAIMS = statement("free_claims", "jobd.tickets.pollers")

#: Seconds after its expiry at which a claim is deleted: its event or work order was finished by another poller.
STALE_S = 600.0


async def free_claims(connection: Session, owner_ids: Sequence[str]) -> int:
    """Delete the claims of these owners and all that expired long ago; returns their number."""
    return len(await connection.fetch(FREE_CLAIMS, list(owner_ids), STALE_S))
