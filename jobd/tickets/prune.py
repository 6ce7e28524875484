"""Prune: delete tickets that have been DONE for the time of retention, in small batches, with all their artifacts.

Only DONE is final: a BLOCKED ticket, also a rejected one, waits for a person. A DONE ticket can be reopened, so
retention counts from its last change, and the statement checks the row again after locking it: a ticket that is
reopened in time is kept whole. Since only DONE tickets are ever deleted, a missing ticket in `blocked_on` counts as
DONE.

A batch reads a bounded number of tickets, deletable or not, and returns the place where the next batch goes on (keyset
pagination): tickets that have to stay neither slow it down nor keep it from those behind them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.clock import in_time
from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.clock_eras import Past
    from jobd.store.session import Session

PRUNE_TICKETS = statement("prune_tickets", "jobd.tickets")
FORGET_GONE_TICKETS = statement("forget_gone_tickets", "jobd.tickets")


class Place(msgspec.Struct, frozen=True):
    """The last ticket of a batch."""

    updated_at: datetime
    ticket_id: UUID


class PrunedTickets(msgspec.Struct, frozen=True, kw_only=True):
    tickets: int
    #: Where the next batch starts; None: there are no more.
    place: Place | None


async def prune_tickets(
    connection: Session,
    *,
    keep_s: float = 0.0,
    most: int = 100,
    after: Place | None = None,
    past: Past | None = None,
    now: datetime | None = None,
) -> PrunedTickets:
    """Delete, of one batch of tickets that were last changed before `past` (or `keep_s` ago), those nobody needs."""
    place = (None, None) if after is None else (after.updated_at, after.ticket_id)
    (row,) = await connection.fetch(PRUNE_TICKETS, keep_s, most, *place, now, *in_time(past))
    is_last = row["looked"] < most
    return PrunedTickets(tickets=row["tickets"], place=None if is_last else Place(row["last_at"], row["last_id"]))


async def forget_gone_tickets(
    connection: Session, *, keep_gone_s: float, most: int = 1000, now: datetime | None = None
) -> int:
    """Delete one batch of remembered ids of deleted tickets; returns their number."""
    (row,) = await connection.fetch(FORGET_GONE_TICKETS, keep_gone_s, most, now)
    return int(row[0])
