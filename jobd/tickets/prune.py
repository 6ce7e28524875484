"""Prune: tickets that are DONE for long go, in small batches, with all that they left behind.

Only DONE is an end: a BLOCKED ticket, also a rejected one, waits for a person. A DONE ticket can be reopened, so its
time counts from its last change, and whoever reopens it in time finds it whole: the statement looks again at the row
that it has locked. Since nothing but DONE tickets is ever deleted, one in `blocked_on` that is not there any more
counts as DONE.

A batch looks at a bounded number of tickets, deletable or not, and says where the next one goes on: those that have to
stay do not make it slower, nor stand in the way of others.
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
    #: Where to go on; None: there are no more.
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
    """Look at one batch of tickets that became DONE in the past, or more than `keep_s` ago by the clock, and delete
    those that nobody needs.
    """
    place = (None, None) if after is None else (after.updated_at, after.ticket_id)
    (row,) = await connection.fetch(PRUNE_TICKETS, keep_s, most, *place, now, *in_time(past))
    is_last = row["looked"] < most
    return PrunedTickets(tickets=row["tickets"], place=None if is_last else Place(row["last_at"], row["last_id"]))


async def forget_gone_tickets(
    connection: Session, *, keep_gone_s: float, most: int = 1000, now: datetime | None = None
) -> int:
    """Forget one batch of ids of deleted tickets; how many."""
    (row,) = await connection.fetch(FORGET_GONE_TICKETS, keep_gone_s, most, now)
    return int(row[0])
