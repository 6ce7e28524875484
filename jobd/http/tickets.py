"""`/v1/tickets`: write a ticket, edit it while it is NEW, read it, list them, and the trail that one has left.

What people decide about a ticket is in `ticket_decisions`, how it is followed in `ticket_events`. Who calls with a
token writes and decides in its name; to do so for another takes the scope `admin`. Without a token nobody knows who
calls, and the body has to say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from jobd.http.answers import id_in
from jobd.http.body import JSON_TYPES, check_content_type, read_bytes
from jobd.http.endpoint import Call, Parameter, get, json_answer, patch, post
from jobd.http.jobs import IDEMPOTENCY_KEY
from jobd.http.query import read_query
from jobd.http.submit import idempotency_key, key_in
from jobd.wire import tickets as wire
from jobd.wire.gateway import Limit, Name
from jobd.wire.json_check import check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.config.model import Config

_T = TypeVar("_T")

#: Bytes that a body may have in addition to `limits.payload_bytes`, for criteria and schemas.
BESIDE_PAYLOAD_BYTES = 256 * 1024
#: Tickets in an answer when the query names no limit.
PAGE = 50

TICKET_ID = Parameter("id", UUID, "The id of a ticket.", "path")
KEY = IDEMPOTENCY_KEY._replace(meaning="Sent again with the same body within 24 hours, it leads to the same ticket.")
FILTERS = (
    Parameter("status", wire.TicketStatus, "Only tickets that stand there."),
    Parameter("task", Name, "Only tickets of this task."),
    Parameter("created_by", wire.Person, "Only tickets that this person wrote."),
    Parameter("limit", Limit, "Largest number of tickets in the answer; 50 without it."),
    Parameter("before", UUID, "Only tickets older than this: `next` of the page before."),
)

_create = msgspec.json.Decoder(wire.CreateTicket)
_edit = msgspec.json.Decoder(wire.EditTicket)


# -- write -------------------------------------------------------------------------------------------------------------


async def create_ticket(call: Call) -> Response:
    services = call.services
    services.disk.check()
    key = key_in(call)
    body, asked = await _read(call, _create)
    created_by = person(call, asked.created_by, "created_by")
    once = None if key is None else idempotency_key(call, key, "/v1/tickets", body)
    ticket = await services.tickets.create(asked, created_by=created_by, key=once)
    return json_answer(ticket, 201, {"Location": f"/v1/tickets/{ticket.ticket_id}"})


async def edit_ticket(call: Call) -> Response:
    ticket_id = ticket_id_in(call)
    _, asked = await _read(call, _edit)
    return json_answer(await call.services.tickets.edit(ticket_id, asked, by=_editor(call, asked.edited_by)))


def _editor(call: Call, name: str | UnsetType) -> str | None:
    """Who edits; None: not known, which is allowed without four_eyes."""
    is_known = name is not UNSET or call.principal.has_token
    if not is_known and not call.services.config().tickets.four_eyes:
        return None
    return person(call, name, "edited_by")


async def _read(call: Call, decoder: msgspec.json.Decoder[_T]) -> tuple[bytes, _T]:
    """The body and its Struct, which keeps the payload as the text that was sent."""
    check_content_type(call.request, JSON_TYPES)
    limit = _body_limit(call.services.config())
    body = await read_bytes(call.request, limit)
    if type(check_json(body, limit)) is not dict:
        raise ApiError("not_object", "a ticket must be a JSON object")
    try:
        return body, decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None


def _body_limit(config: Config) -> int:
    return config.limits.payload_bytes + BESIDE_PAYLOAD_BYTES


def person(call: Call, name: str | UnsetType, field: str) -> str:
    """Who writes or decides: the name in this field of the body, or that of the caller's token."""
    caller = call.principal
    if name is UNSET:
        if not caller.has_token:
            raise ApiError("invalid", f"{field} is missing, and there is no token that says who calls - at `$.{field}`")
        return caller.name
    if caller.has_token and name.strip() != caller.name and not caller.may("admin"):
        raise ApiError(
            "forbidden",
            f"{field} is {name.strip()!r}, and the token is that of {caller.name!r}: leave {field} out, or use a token"
            " with the scope admin to act for others",
        )
    return name.strip()


def ticket_id_in(call: Call) -> UUID:
    return id_in(call.request.path_params["id"], "ticket")


# -- read --------------------------------------------------------------------------------------------------------------


async def get_tickets(call: Call) -> Response:
    query = read_query(call.request, FILTERS)
    most = query.pop("limit", PAGE)
    return json_answer(await call.services.tickets.page(most=most, **query))


async def get_ticket(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(await call.services.tickets.read(ticket_id_in(call)))


async def get_trail(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(await call.services.tickets.trail(ticket_id_in(call)))


MISSING = ("unknown_ticket", "gone_ticket")
DRAFT_PROBLEMS = (
    *("bad_gate", "bad_schema", "blocker_cycle", "too_large", "unknown_blocker", "unknown_gate", "unknown_task"),
)
ENDPOINTS = (
    post(
        "/v1/tickets",
        "client",
        create_ticket,
        "Write a ticket; it waits for an approval",
        answers={201: wire.Ticket},
        problems=(
            *DRAFT_PROBLEMS,
            "disk_low",
            "bad_idempotency_key",
            "idempotency_mismatch",
            "key_busy",
            "gone_ticket",
        ),
        body=wire.CreateTicket,
        parameters=(KEY,),
        headers={"Location": "Where the ticket can be read."},
    ),
    get(
        "/v1/tickets",
        "client",
        get_tickets,
        "List tickets, newest first",
        answers={200: wire.TicketPage},
        problems=("invalid",),
        parameters=FILTERS,
    ),
    get(
        "/v1/tickets/{id}",
        "client",
        get_ticket,
        "Read a ticket",
        answers={200: wire.Ticket},
        problems=(*MISSING, "invalid"),
        parameters=(TICKET_ID,),
    ),
    patch(
        "/v1/tickets/{id}",
        "client",
        edit_ticket,
        "Change a ticket that is still NEW",
        answers={200: wire.Ticket},
        problems=(*DRAFT_PROBLEMS, *MISSING, "not_new"),
        body=wire.EditTicket,
        parameters=(TICKET_ID,),
    ),
    get(
        "/v1/tickets/{id}/trail",
        "client",
        get_trail,
        "The whole history of a ticket",
        answers={200: wire.Trail},
        problems=(*MISSING, "invalid"),
        parameters=(TICKET_ID,),
    ),
)
