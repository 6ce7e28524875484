"""The calls that are about tickets. Written as those in `calls` are.

Who writes a ticket or decides about it is a person with a name; without one, jobd takes the name of the caller's token.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote
from uuid import UUID

import msgspec
from typing_extensions import TypedDict, Unpack

from jobd.client.answers import Ticket, TicketPage, Trail
from jobd.client.calls import GIVE_UP_S, Payload, payload_json
from jobd.client.following import EventFlow, TicketFollower
from jobd.client.retrying import answered
from jobd.client.sansio import ApiRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.client.sansio import CallSettings, Flow

TicketId: TypeAlias = str | UUID


class TicketOptions(TypedDict, total=False):
    """What else a ticket may say; `/docs` of a jobd describes each."""

    #: One text, or a list of texts.
    acceptance_criteria: str | Sequence[str]
    #: What the output has to pass, such as `{"type": "sign_off"}`.
    gates: Sequence[Mapping[str, Any]]
    #: Tickets that have to be DONE first.
    blocked_on: Sequence[TicketId]
    budget_ms: int
    #: How often it may run until a failed gate blocks the ticket.
    max_runs: int
    repo_ref: str | None
    base_branch: str | None


class TicketEdit(TicketOptions, total=False):
    title: str
    task: str
    payload: Payload
    #: Who edits; without it, the name of the token.
    edited_by: str


# -- write ---------------------------------------------------------------------------------------------------------


def create_ticket(
    settings: CallSettings,
    title: str,
    task: str,
    payload: Payload,
    *,
    created_by: str | None = None,
    **options: Unpack[TicketOptions],
) -> Flow[Ticket]:
    """Write a ticket. It is NEW, and nothing happens to it until a person approves it.

    A random key is sent along, so that a call that had to be tried again makes one ticket all the same.
    """
    body = _body({"title": title, "task": task, "payload": payload, "created_by": created_by, **options})
    headers = {"Idempotency-Key": secrets.token_urlsafe(18)}
    request = ApiRequest(what="new ticket", method="POST", path="/v1/tickets", body=body, headers=headers)
    return answered(settings, request, Ticket)


def edit_ticket(settings: CallSettings, ticket_id: TicketId, **changes: Unpack[TicketEdit]) -> Flow[Ticket]:
    """Change a ticket that is still NEW; what is not named stays. Raises Conflict if it is not NEW any more."""
    request = ApiRequest(
        what=f"edit of ticket {ticket_id}", method="PATCH", path=_path(ticket_id), body=_body({**changes})
    )
    return answered(settings, request, Ticket)


def _body(fields: dict[str, Any]) -> bytes:
    given = {name: value for name, value in fields.items() if value is not None or name in ("repo_ref", "base_branch")}
    if "payload" in given:
        given["payload"] = payload_json(given["payload"])
    return msgspec.json.encode(given)


# -- decide --------------------------------------------------------------------------------------------------------


def approve(
    settings: CallSettings, ticket_id: TicketId, *, by: str | None = None, why: str = "", version: int | None = None
) -> Flow[Ticket]:
    """Let a NEW ticket become TODO, from where jobd carries it on. Raises Conflict if it is not NEW.

    With `version`, that of the ticket as it was read, it raises Conflict too if the ticket has changed since.
    Decisions count once; so after a lost connection none is retried: it raises Unreachable, and `ticket` shows whether
    it was applied.
    """
    return _decide(settings, ticket_id, "approve", by, why, version)


def reject(
    settings: CallSettings, ticket_id: TicketId, *, by: str | None = None, why: str = "", version: int | None = None
) -> Flow[Ticket]:
    """Stop a ticket that is NEW, TODO or BLOCKED: it stays BLOCKED until it was unblocked and approved again."""
    return _decide(settings, ticket_id, "reject", by, why, version)


def unblock(
    settings: CallSettings, ticket_id: TicketId, *, by: str | None = None, why: str = "", version: int | None = None
) -> Flow[Ticket]:
    """Let a BLOCKED ticket go on: it becomes TODO, or NEW if it was rejected."""
    return _decide(settings, ticket_id, "unblock", by, why, version)


def reopen(
    settings: CallSettings, ticket_id: TicketId, *, by: str | None = None, why: str = "", version: int | None = None
) -> Flow[Ticket]:
    """Let a DONE ticket become TODO again."""
    return _decide(settings, ticket_id, "reopen", by, why, version)


def sign_off(
    settings: CallSettings,
    ticket_id: TicketId,
    *,
    by: str | None = None,
    why: str = "",
    accept: bool = True,
    version: int | None = None,
) -> Flow[Ticket]:
    """Accept, or refuse, the output that a ticket waits with. Raises Conflict if no sign-off is waited for."""
    return _decide(settings, ticket_id, "sign-off", by, why, version, accept=accept)


def _decide(
    settings: CallSettings,
    ticket_id: TicketId,
    word: str,
    by: str | None,
    why: str,
    version: int | None,
    **more: bool,
) -> Flow[Ticket]:
    given: dict[str, Any] = {"why": why, **more, "by": by, "version": version}
    given = {name: value for name, value in given.items() if value is not None}
    request = ApiRequest(
        what=f"{word} of ticket {ticket_id}",
        method="POST",
        path=f"{_path(ticket_id)}/{word}",
        body=msgspec.json.encode(given),
        is_repeatable=False,
    )
    return answered(settings, request, Ticket)


# -- read ----------------------------------------------------------------------------------------------------------


def ticket(settings: CallSettings, ticket_id: TicketId) -> Flow[Ticket]:
    """The ticket as it stands."""
    return answered(settings, ApiRequest(what=f"ticket {ticket_id}", path=_path(ticket_id)), Ticket)


def tickets(
    settings: CallSettings,
    *,
    status: str | None = None,
    task: str | None = None,
    created_by: str | None = None,
    limit: int | None = None,
    before: TicketId | None = None,
) -> Flow[TicketPage]:
    """One page of tickets, newest first; its `next`, sent as `before`, leads to the following one."""
    filters = {"status": status, "task": task, "created_by": created_by, "limit": limit, "before": before}
    query = {name: str(value) for name, value in filters.items() if value is not None}
    return answered(settings, ApiRequest(what="list of tickets", path="/v1/tickets", query=query), TicketPage)


def trail(settings: CallSettings, ticket_id: TicketId) -> Flow[Trail]:
    """The whole history of a ticket: every artifact, as its published schema describes it."""
    return answered(settings, ApiRequest(what=f"trail of ticket {ticket_id}", path=f"{_path(ticket_id)}/trail"), Trail)


def ticket_events(
    settings: CallSettings, ticket_id: TicketId, after: str | None = None, *, give_up_s: float = GIVE_UP_S
) -> EventFlow:
    """Every change of the ticket from the first, or behind the event `after` (`now`: the newest).

    An event's id is the version of the ticket that it led to. It goes on until the caller leaves: a DONE ticket may be
    reopened. A cut line or a restart of jobd is bridged; one that lasts longer than `give_up_s` raises Unavailable.
    """
    path, what = f"{_path(ticket_id)}/events", f"events of ticket {ticket_id}"
    return TicketFollower(settings, path, what, after, give_up_s).run()


def _path(ticket_id: TicketId) -> str:
    return f"/v1/tickets/{quote(str(ticket_id), safe='')}"
