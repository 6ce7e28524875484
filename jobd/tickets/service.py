"""The ticket service: what people do with tickets. Each verb is one call of its module, and wakes the next poller.

What it returns was committed; what it raises has changed nothing: TicketRefused, or ServerDown while Postgres is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.tickets.create import create
from jobd.tickets.create_once import create_once
from jobd.tickets.decide import decide
from jobd.tickets.edit import edit
from jobd.tickets.read import list_tickets, read_ticket
from jobd.tickets.trail import read_log, read_trail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.lifecycle.enqueue import IdempotencyKey
    from jobd.store.postgres import Database
    from jobd.tickets.wakeups import Wakeups
    from jobd.wire import tickets as wire


class TicketService:
    def __init__(self, database: Database, config: Callable[[], Config], wakeups: Wakeups) -> None:
        self._database = database
        self._config = config
        self._wakeups = wakeups

    # -- people's verbs ------------------------------------------------------------------------------------------

    async def create(
        self, asked: wire.CreateTicket, *, created_by: str, key: IdempotencyKey | None = None
    ) -> wire.Ticket:
        """A new ticket; with an idempotency key that was sent before, the ticket created then, as it is now."""
        config = self._config()
        if key is None:
            ticket = await create(self._database, asked, created_by=created_by, config=config)
        else:
            ticket = await create_once(self._database, asked, key, created_by=created_by, config=config)
        self._wakeups.changed.set()
        return ticket

    async def edit(self, ticket_id: UUID, asked: wire.EditTicket, *, by: str | None = None) -> wire.Ticket:
        ticket = await edit(self._database, ticket_id, asked, config=self._config(), by=by)
        self._wakeups.changed.set()
        return ticket

    async def decide(
        self, kind: wire.DecisionKind, ticket_id: UUID, *, by: str, why: str = "", version: int | None = None
    ) -> wire.Ticket:
        four_eyes = self._config().tickets.four_eyes
        ticket = await decide(self._database, kind, ticket_id, by=by, why=why, four_eyes=four_eyes, version=version)
        self._wakeups.readiness.set()
        if kind in ("SIGN_OFF", "REFUSE"):
            self._wakeups.gate.set()
        self._wakeups.changed.set()
        return ticket

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, ticket_id: UUID) -> wire.Ticket:
        return await read_ticket(self._database, ticket_id)

    async def page(
        self,
        *,
        most: int = 50,
        before: UUID | None = None,
        status: wire.TicketStatus | None = None,
        task: str | None = None,
        created_by: str | None = None,
    ) -> wire.TicketPage:
        page = await list_tickets(
            self._database, most=most, before=before, status=status, task=task, created_by=created_by
        )
        return msgspec.structs.replace(page, four_eyes=self._config().tickets.four_eyes)

    async def trail(self, ticket_id: UUID) -> wire.Trail:
        return await read_trail(self._database, ticket_id)

    async def log(self, after: Mapping[UUID, int]) -> dict[UUID, list[wire.LogLine]]:
        """The log lines of tickets after the given versions; one query for all followers."""
        return await read_log(self._database, after)
