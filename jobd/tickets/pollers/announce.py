"""Announce: TICKET_READY once for every time that a ticket became TODO, whoever looks and however often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.store.ids import new_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from datetime import datetime

    from jobd.store.session import Session

ANNOUNCE_READY = statement("announce_ready", "jobd.tickets.pollers")


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    #: TICKET_READY was told for so many.
    announced: int
    #: So many had waited for others that are DONE now, and are TODO again.
    returned: int


async def announce(connection: Session, *, most: int, now: datetime | None = None) -> Announced:
    (row,) = await connection.fetch(ANNOUNCE_READY, most, new_ids(most), now)
    return Announced(announced=row["announced"], returned=row["returned"])
