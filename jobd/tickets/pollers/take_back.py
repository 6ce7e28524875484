"""Take back: the claims of pollers that are known to be dead, since nobody else can know so soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.store.session import Session

FREE_CLAIMS_OF = statement("free_claims_of", "jobd.tickets.pollers")


#: A claim that ended so long ago is of something that somebody else has finished meanwhile.
STALE_S = 600.0


async def free_claims_of(connection: Session, owner_ids: Sequence[str], *, now: datetime | None = None) -> int:
    """How many there were."""
    return len(await connection.fetch(FREE_CLAIMS_OF, list(owner_ids), STALE_S, now))
