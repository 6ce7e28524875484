"""The ticket tailer: one per node, for all followers of tickets here.

What followers get is the log of their ticket in Postgres. A wakeup says that this node has changed some ticket; what
other nodes did is found by polling, and only while somebody follows a ticket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.follow.followers import Batch, Followers, server_sent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.tickets.service import TicketService
    from jobd.tickets.wakeups import Wakeups
    from jobd.wire.tickets import LogLine

#: Seconds between two polls: the longest delay of a change that another node made.
POLL_S = 1.0
#: Debounce in seconds after a read: changes that come meanwhile are read together.
REST_S = 0.02


class TicketTailer(Followers[int]):
    #: All of them: it is one statement, however many tickets are followed.
    places_per_read = 1_000_000

    def __init__(self, tickets: TicketService, wakeups: Wakeups) -> None:
        super().__init__(wakeups.changed)
        self._tickets = tickets

    def _poll_s(self) -> float:
        return POLL_S

    def _rest_s(self, took_s: float) -> float:
        return REST_S

    def _due(self, *, is_poll: bool) -> set[UUID]:
        """All of them: a wakeup does not say which ticket has changed."""
        return super()._due(is_poll=True)

    async def _read(self, places: Sequence[tuple[UUID, int]]) -> list[Batch[int]]:
        """Each log once, from the earliest cursor of its followers on."""
        after: dict[UUID, int] = {}
        for ticket_id, version in places:
            after[ticket_id] = min(version, after.get(ticket_id, version))
        logs = await self._tickets.log(after)
        return [_batch(logs.get(ticket_id, []), version) for ticket_id, version in places]


def _batch(log: Sequence[LogLine], after: int) -> Batch[int]:
    lines = [line for line in log if line.version > after]
    text = b"".join(server_sent(line.version, line.type, msgspec.json.encode(line)) for line in lines)
    newest = lines[-1].version if lines else after
    return Batch(text, len(lines), newest, is_cut=bool(log))  # a long log comes in pieces
