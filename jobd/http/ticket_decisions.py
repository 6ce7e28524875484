"""What people decide about a ticket: approve, reject, unblock, reopen, sign off. Each is kept with a name and a reason.

These calls need the scope `client`: a token that has only the scope `worker` runs jobs and decides nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.http.body import read_json
from jobd.http.endpoint import Call, Endpoint, json_answer, post
from jobd.http.tickets import MISSING, TICKET_ID, person, ticket_id_in
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from starlette.responses import Response

log = logging.getLogger(__name__)

#: Largest body: the longest reason with every character escaped, and the other fields.
BODY_BYTES = 256 * 1024


async def _decide(call: Call, kind: wire.DecisionKind, body: type[wire.Decide | wire.SignOff]) -> Response:
    ticket_id = ticket_id_in(call)
    asked = await read_json(call.request, body, BODY_BYTES)
    if isinstance(asked, wire.SignOff) and not asked.accept:
        kind = "REFUSE"
    by = person(call, asked.by, "by")
    version = None if asked.version is UNSET else asked.version
    ticket = await call.services.tickets.decide(kind, ticket_id, by=by, why=asked.why, version=version)
    # A caller with the scope admin may act for others, so the log has both names.
    path, caller = call.request.url.path, call.principal.name
    log.info("%s by %r, called by %s: the ticket is %s", path, by, caller, ticket.status)
    return json_answer(ticket)


def _endpoint(
    kind: wire.DecisionKind,
    summary: str,
    *problems: str,
    body: type[wire.Decide | wire.SignOff] = wire.Decide,
) -> Endpoint:
    async def handler(call: Call) -> Response:
        return await _decide(call, kind, body)

    handler.__name__ = f"{kind.lower()}_ticket"  # the operationId in the OpenAPI document
    path = f"/v1/tickets/{{id}}/{kind.lower().replace('_', '-')}"
    return post(
        path,
        "client",
        handler,
        summary,
        answers={200: wire.Ticket},
        problems=(*MISSING, *problems, "version_moved"),
        body=body,
        parameters=(TICKET_ID,),
    )


MOVED = "illegal_transition"
ENDPOINTS = (
    _endpoint("APPROVE", "Approve a NEW ticket: it becomes TODO", MOVED, "four_eyes"),
    _endpoint("REJECT", "Reject a NEW, TODO or BLOCKED ticket: it has to be approved again", MOVED),
    _endpoint("UNBLOCK", "Unblock a ticket: TODO again, or NEW if it was rejected", MOVED),
    _endpoint("REOPEN", "Reopen a DONE ticket: it becomes TODO", MOVED, "four_eyes"),
    _endpoint(
        *("SIGN_OFF", "Sign off, or refuse, the output that a ticket waits with", "no_sign_off", "four_eyes"),
        body=wire.SignOff,
    ),
)
