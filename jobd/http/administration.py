"""`/v1/config` and `/v1/audit`: what an administrator reads about a running jobd. Neither changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.auth.table import read_audit
from jobd.config.show import public
from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.http.query import read_query
from jobd.wire import administration as wire
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from starlette.responses import Response

#: Rows of the audit log in an answer when the query names no limit.
PAGE = 100
PARAMETERS = (
    Parameter("limit", wire.AuditLimit, "Largest number of rows in the answer; 100 without it."),
    Parameter("before", wire.AuditId, "Only rows older than this: `next` of the page before."),
)


async def get_config(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(wire.ConfigInForce(config=public(call.services.config())))


async def get_audit(call: Call) -> Response:
    query = read_query(call.request, PARAMETERS)
    most = query.get("limit", PAGE)
    rows = await read_audit(call.services.database, before=query.get("before"), most=most)
    entries = [
        wire.AuditEntry(id=row.id, at_ts=ms(row.at), actor=row.actor, action=row.action, subject=row.subject)
        for row in rows
    ]
    return json_answer(wire.AuditPage(entries=entries, next=rows[-1].id if len(rows) == most else None))


ENDPOINTS = (
    get(
        "/v1/config",
        "admin",
        get_config,
        "The configuration in force, without secrets",
        answers={200: wire.ConfigInForce},
        problems=("invalid",),
    ),
    get(
        "/v1/audit",
        "admin",
        get_audit,
        "The audit log, newest first",
        answers={200: wire.AuditPage},
        problems=("invalid",),
        parameters=PARAMETERS,
    ),
)
