"""What people decide about a ticket: approve, reject, unblock, reopen, sign off. Each is told with a name and a reason.

These calls need the scope `client`: a token that has only the scope `worker` runs jobs and decides nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.http.body import read_json
from jobd.http.endpoint import Call, Endpoint, json_answer
from jobd.http.tickets import MISSING, TICKET_ID, person, ticket_id_in
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

log = logging.getLogger(__name__)

#: The longest reason, every character of it escaped, and the rest.
BODY_BYTES = 256 * 1024


async def approve_ticket(call: Call) -> Response:
    return await _decide(call, call.services.tickets.approve)


async def reject_ticket(call: Call) -> Response:
    return await _decide(call, call.services.tickets.reject)


async def unblock_ticket(call: Call) -> Response:
    return await _decide(call, call.services.tickets.unblock)


async def reopen_ticket(call: Call) -> Response:
    return await _decide(call, call.services.tickets.reopen)


async def sign_off_ticket(call: Call) -> Response:
    ticket_id = ticket_id_in(call)
    asked = await read_json(call.request, wire.SignOff, BODY_BYTES)
    by = person(call, asked.by, "by")
    return _decided(
        call,
        by,
        await call.services.tickets.sign_off(
            ticket_id, by=by, why=asked.why, accept=asked.accept, version=_seen(asked)
        ),
    )


async def _decide(call: Call, verb: Callable[..., Awaitable[wire.Ticket]]) -> Response:
    ticket_id = ticket_id_in(call)
    asked = await read_json(call.request, wire.Decide, BODY_BYTES)
    by = person(call, asked.by, "by")
    return _decided(call, by, await verb(ticket_id, by=by, why=asked.why, version=_seen(asked)))


def _seen(asked: wire.Decide | wire.SignOff) -> int | None:
    return None if asked.version is UNSET else asked.version


def _decided(call: Call, by: str, ticket: wire.Ticket) -> Response:
    """Whoever has the scope admin may act for others, so the log has both."""
    path = call.request.url.path
    log.info("%s by %r, called by %s: the ticket is %s", path, by, call.principal.name, ticket.status)
    return json_answer(ticket)


def _decision(
    word: str, handler: Callable[[Call], Awaitable[Response]], summary: str, *problems: str, body: type = wire.Decide
) -> Endpoint:
    return Endpoint(
        *("POST", f"/v1/tickets/{{id}}/{word}", "client", handler, summary, {200: wire.Ticket}),
        problems=(*MISSING, *problems, "version_moved"),
        body=body,
        parameters=(TICKET_ID,),
    )


MOVED = "illegal_transition"
ENDPOINTS = (
    _decision("approve", approve_ticket, "Approve a NEW ticket: it becomes TODO", MOVED, "four_eyes"),
    _decision("reject", reject_ticket, "Reject a NEW, TODO or BLOCKED ticket: it has to be approved again", MOVED),
    _decision("unblock", unblock_ticket, "Unblock a ticket: TODO again, or NEW if it was rejected", MOVED),
    _decision("reopen", reopen_ticket, "Reopen a DONE ticket: it becomes TODO", MOVED, "four_eyes"),
    _decision(
        *("sign-off", sign_off_ticket, "Sign off, or refuse, the output that a ticket waits with"),
        *("no_sign_off", "four_eyes"),
        body=wire.SignOff,
    ),
)
