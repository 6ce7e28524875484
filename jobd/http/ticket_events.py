"""The live events of a ticket: every change of it once and in order, from any of them on.

The id of an event is the version of the ticket that it led to, so a cursor survives anything. A ticket that is DONE may
be reopened, and one that is BLOCKED unblocked: a stream ends when the client leaves or jobd stops, not by itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jobd.http.endpoint import Call, Parameter, get
from jobd.http.events import HEARTBEAT_S, MEDIA_TYPE, NOW, EventStream, event_part
from jobd.http.query import read_query
from jobd.http.tickets import MISSING, TICKET_ID, ticket_id_in
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from jobd.wire.tickets import Ticket

PARAMETERS = (
    TICKET_ID,
    Parameter("after", str, "The id of the last event that is known, or `now`; as Last-Event-ID."),
    Parameter("Last-Event-ID", str, "The id of the last event that is known; `now`: of the newest.", "header"),
)
_VERSION = re.compile(r"[0-9]{1,9}")


async def ticket_events(call: Call) -> Any:
    ticket_id = ticket_id_in(call)
    cursor = _cursor_of(call.request)
    ticket = await call.services.tickets.read(ticket_id)
    after = ticket.version if cursor is None else cursor
    if after > ticket.version:
        raise ApiError(
            "cursor_ahead",
            f"ticket {ticket_id} has no event {after} yet, its newest is {ticket.version}; start without one",
        )
    return EventStream(call.request, _events_of(call, ticket, after))


async def _events_of(call: Call, ticket: Ticket, after: int) -> AsyncIterator[bytes]:
    hello = {"ticket_id": ticket.ticket_id, "status": ticket.status, "version": ticket.version, "after": str(after)}
    yield event_part("hello", hello, retry=True)
    tailer = call.services.ticket_tailer
    with tailer.following(ticket.ticket_id, after) as follower:
        async for part in tailer.parts(follower, HEARTBEAT_S):
            yield part


def _cursor_of(request: Request) -> int | None:
    """The version after which the stream starts; None: after the newest event."""
    cursors = request.headers.getlist("last-event-id")
    cursors += read_query(request, PARAMETERS).values()
    if not cursors or cursors == [""]:
        return 0
    is_valid = cursors[0] == NOW or _VERSION.fullmatch(cursors[0])
    if not is_valid or len(set(cursors)) > 1:
        raise ApiError(
            "bad_cursor", f"Last-Event-ID (or after) must be the id of an event, like 3, or {NOW}; or be left out"
        )
    return None if cursors[0] == NOW else int(cursors[0])


ENDPOINTS = (
    get(
        "/v1/tickets/{id}/events",
        "client",
        ticket_events,
        "Follow what happens to a ticket, live or from any event on",
        answers={200: None},
        problems=("bad_cursor", "cursor_ahead", *MISSING, "invalid"),
        parameters=PARAMETERS,
        media_type=MEDIA_TYPE,
    ),
)
