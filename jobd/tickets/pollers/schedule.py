"""Schedule: one event becomes one snapshot, one work order and a ticket IN_PROGRESS, or ends with the reason why not.

The input of a run is rendered here from the ticket as it was read. If the ticket was changed since then, the statement
writes nothing, and the event is scheduled again by the next poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from jobd.store.ids import new_ids
from jobd.store.statements import statement
from jobd.tickets.machine import NotScheduled, Scheduled, decide_schedule
from jobd.tickets.read import ticket_of, view_of
from jobd.tickets.render import branch_name, commit_sha, filled, places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

    from jobd.lifecycle.lease import LeaseRecord
    from jobd.store.session import Session
    from jobd.wire import tickets as wire

FIND_READY_EVENTS = statement("find_ready_events", "jobd.tickets.pollers")
READ_FOR_SCHEDULE = statement("read_for_schedule", "jobd.tickets.pollers")
SCHEDULE_IF_HELD = statement("schedule_if_held", "jobd.tickets.pollers")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One event and what it ends with, in the order of the statement's parameters."""

    event_id: UUID
    lease_token: UUID
    ticket_id: UUID
    ticket_version: int | None
    reason: str
    snapshot_id: UUID
    work_order_id: UUID
    job_id: UUID
    prompt: str | None = None
    payload: str | None = None
    sha: str | None = None
    branch: str | None = None
    blocked_reason: str | None = None
    pause_id: UUID
    actions: str


async def find_ready_events(connection: Session, *, most: int) -> list[UUID]:
    return [row["event_id"] for row in await connection.fetch(FIND_READY_EVENTS, most)]


async def schedule(connection: Session, held: Sequence[LeaseRecord]) -> dict[UUID, str]:
    """End the events whose leases the caller holds, and give these up; returns the reason of each that was ended."""
    tokens = {record.resource_id: record.lease_token for record in held}
    rows = await connection.fetch(READ_FOR_SCHEDULE, list(tokens))
    entries = sorted((_entry(row, tokens[row["event_id"]]) for row in rows), key=lambda entry: entry.ticket_id)
    columns = [[getattr(entry, name) for entry in entries] for name in _Entry.__struct_fields__]
    return {row["event_id"]: row["reason"] for row in await connection.fetch(SCHEDULE_IF_HELD, *columns)}


def _entry(row: asyncpg.Record, lease_token: UUID) -> _Entry:
    ticket = None if row["ticket_id"] is None else ticket_of(row)
    decision = decide_schedule(
        None if ticket is None else view_of(ticket),
        row["unfinished"],
        is_current=row["todo_no"] == row["event_todo_no"],
    )
    snapshot_id, work_order_id, job_id, pause_id = new_ids(4)
    ready = isinstance(decision, Scheduled) and ticket is not None
    return _Entry(
        event_id=row["event_id"],
        lease_token=lease_token,
        ticket_id=row["event_ticket_id"],
        ticket_version=None if ticket is None else ticket.version,
        reason=decision.reason,
        snapshot_id=snapshot_id,
        work_order_id=work_order_id,
        job_id=job_id,
        blocked_reason=decision.blocked_reason if isinstance(decision, NotScheduled) else None,
        pause_id=pause_id,
        actions=msgspec.json.encode(decision.actions if isinstance(decision, NotScheduled) else ()).decode(),
        **(_run_input(ticket, row["event_todo_no"]) if ready and ticket is not None else {}),
    )


def _run_input(ticket: wire.Ticket, todo_no: int) -> dict[str, Any]:
    words = places(
        ticket_id=ticket.ticket_id,
        todo_no=todo_no,
        title=ticket.title,
        criteria=ticket.acceptance_criteria,
        repo_ref=ticket.repo_ref,
        base_branch=ticket.base_branch,
    )
    return {
        "prompt": words["prompt"],
        "payload": _filled_text(bytes(ticket.payload), words).decode(),
        "sha": commit_sha(ticket.repo_ref),
        "branch": branch_name(ticket.ticket_id, todo_no),
    }


def _filled_text(payload: bytes, words: Mapping[str, str]) -> bytes:
    """The payload with its places filled in; one without places is not decoded, so its numbers keep every digit."""
    if b"{{" not in payload:
        return payload
    return msgspec.json.encode(filled(msgspec.json.decode(payload), words))
