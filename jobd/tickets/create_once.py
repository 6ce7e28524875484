"""Create once: a ticket for an idempotency key. The two are one commit, so neither is there without the other.

Keys of tickets stand beside those of jobs: the fingerprint of a request names its path, so one key cannot stand for
both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from jobd.lifecycle.enqueue import TAKE_KEYS
from jobd.store.ids import new_id
from jobd.tickets.create import create
from jobd.tickets.errors import TicketRefused
from jobd.tickets.read import read_ticket

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.lifecycle.enqueue import IdempotencyKey
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.wire import tickets as wire


#: Longest wait in milliseconds (lock_timeout) for another request with the same key.
KEY_WAIT_MS = 5_000


async def create_once(
    database: Database, asked: wire.CreateTicket, key: IdempotencyKey, *, created_by: str, config: Config
) -> wire.Ticket:
    """The ticket of this idempotency key, created now if there is none; raises TicketRefused."""
    ticket_id = new_id()
    async with database.transaction() as connection:
        row = await _take_key(connection, ticket_id, key)
        if row["body_hash"] != key.body_hash:
            raise TicketRefused(
                "idempotency_mismatch",
                "the Idempotency-Key was sent before with another body; send a new key for a new request",
            )
        if row["job_id"] != ticket_id:
            return await read_ticket(connection, row["job_id"])
        return await create(connection, asked, created_by=created_by, config=config, ticket_id=ticket_id)


async def _take_key(connection: Session, ticket_id: UUID, key: IdempotencyKey) -> asyncpg.Record:
    columns = [key.principal], [key.key], [ticket_id], [key.body_hash], [key.life_s]
    try:
        (row,) = await connection.fetch(TAKE_KEYS, *columns, None, str(KEY_WAIT_MS))
    except asyncpg.LockNotAvailableError:
        raise TicketRefused(
            "key_busy",
            "another request with this Idempotency-Key is under way, or died on another node; send it again soon",
        ) from None
    return row
