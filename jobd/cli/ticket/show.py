"""Tickets as text for people: one with all it says, its events as they come, and its trail as a list."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.cli.show import compact, error_text, indented, moment, plain
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.client import Event, Ticket, Trail

#: Width of the column of field names.
WIDTH = 12
#: What an IN_PROGRESS ticket waits for, by its step.
WAITS_FOR = {"RUN": "its job", "GATE": "its gates", "SIGN_OFF": "a sign-off"}


def ticket_lines(ticket: Ticket) -> Iterator[str]:
    """Name and value of what there is to say, one a line."""
    criteria = ticket.acceptance_criteria
    rows = {
        "ticket": str(ticket.ticket_id),
        "title": ticket.title,
        "status": standing(ticket),
        "criteria": criteria if isinstance(criteria, str) else "\n".join(f"- {text}" for text in criteria),
        "task": ticket.task,
        "payload": compact(ticket.payload),
        "gates": "\n".join(map(compact, ticket.gates)),
        "blocked on": "\n".join(map(str, ticket.blocked_on)),
        "budget": f"{ticket.budget_ms / 1000:g} s",
        "runs": f"{ticket.run_count} of {ticket.max_runs}",
        "repository": " ".join(text for text in (ticket.repo_ref, ticket.base_branch) if text),
        "written by": ticket.created_by,
        "edited by": ", ".join(ticket.edited_by),
        "approved by": ticket.approved_by,
        "version": str(ticket.version),
        "created": moment(ms(ticket.created_at)),
        "changed": moment(ms(ticket.updated_at)),
    }
    for name, value in rows.items():
        if value:
            yield f"{name:{WIDTH}}{indented(plain(value), WIDTH)}"


def standing(ticket: Ticket) -> str:
    """Where it stands, and for what or why."""
    if ticket.step is not None:
        return f"{ticket.status} (waits for {WAITS_FOR.get(ticket.step, ticket.step)})"
    return f"{ticket.status} ({ticket.blocked_reason})" if ticket.blocked_reason else ticket.status


def change_line(event: Event) -> str:
    """An event of a ticket."""
    data = event.data if isinstance(event.data, dict) else {}
    words = [event.type]
    if event.type == "status":
        words = [f"{data.get('was')} -> {data.get('status')}", data.get("blocked_reason") or ""]
    elif event.type == "step":
        words = ["waits for", WAITS_FOR.get(str(data.get("step")), str(data.get("step")))]
    return f"{moment(event.ts)}  {indented(plain(' '.join(word for word in words if word)), 2)}"


def trail_rows(trail: Trail) -> list[tuple[str, str, str]]:
    """When, what and how, oldest first."""
    entries = sorted(_entries(trail), key=lambda entry: entry[0])
    return [(moment(ms(at)), what, plain(how)) for at, what, how in entries]


def _entries(trail: Trail) -> Iterator[tuple[datetime, str, str]]:
    ticket = trail.ticket
    yield ticket.created_at, "written", f"by {ticket.created_by}: {ticket.title}"
    for decision in trail.decisions:
        why = f": {decision['why']}" if decision["why"] else ""
        yield (
            _at(decision["decided_at"]),
            "decision",
            f"{decision['kind']} by {decision['decided_by']}, {decision['to_status']}{why}",
        )
    for event in trail.events:
        yield _at(event["created_at"]), "event", event["type"]
        if event["processed_at"] is not None:
            yield _at(event["processed_at"]), "event", f"{event['type']} {event['reason']}"
    for snapshot in trail.context_snapshots:
        yield (
            _at(snapshot["created_at"]),
            "snapshot",
            f"{snapshot['snapshot_id']}, payload {compact(snapshot['payload'])}",
        )
    for order in trail.workorders:
        how = f"{order['work_order_id']}, task {order['diazotroph_type']}, job {order['job_id']}"
        yield _at(order["created_at"]), "work order", how
    for bundle in trail.output_bundles:
        yield _at(bundle["created_at"]), "output", f"{bundle['outcome']} {_output(bundle)}"
    for record in trail.run_records:
        yield (
            _at(record["created_at"]),
            "gates",
            f"{record['gate_result']}, {record['ticket_status']}: {record['gate_reason']}",
        )
    for pause in trail.pause_states:
        yield (
            _at(pause["created_at"]),
            "pause",
            f"{pause['reason']}; next: {'; or '.join(pause['prioritized_actions'])}",
        )


def _output(bundle: dict[str, Any]) -> str:
    if bundle["error"] is not None:
        return error_text(bundle["error"])
    return f"in {bundle['output_ref']}" if bundle["output_ref"] else compact(bundle["output"])


def _at(text: str) -> datetime:
    return msgspec.convert(text, datetime)
