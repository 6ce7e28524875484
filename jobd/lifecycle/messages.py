"""Messages: what is known of the jobs of messages that were read from a stream and never settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.session import Session

LEASED_MESSAGES = statement("leased_messages")
QUEUED_AMONG = statement("queued_among")
HELD_AMONG = statement("held_among")


async def leased_messages(session: Session, stream: str) -> set[str]:
    """The ids of the messages in this stream that brought a job which is leased now."""
    return {row["message_id"] for row in await session.fetch(LEASED_MESSAGES, stream)}


async def queued_among(session: Session, job_ids: Sequence[UUID | None]) -> set[UUID]:
    """Which of the jobs wait in their queue."""
    return {row["job_id"] for row in await session.fetch(QUEUED_AMONG, list(job_ids))}


async def held_among(session: Session, job_ids: Sequence[UUID]) -> set[UUID]:
    """Which of the jobs have a holder whose lease has not expired."""
    return {row["job_id"] for row in await session.fetch(HELD_AMONG, list(job_ids))}
