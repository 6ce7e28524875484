"""Errors as answers: a problem document with its stable `code`; what went wrong inside stays in the log."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route

from jobd.engine.batch import BatcherFull, Closed, OutcomeUnknown
from jobd.errors import ServerDown
from jobd.openai.errors import OpenAIError, error_answer, error_headers
from jobd.schedules.change import ScheduleRefused
from jobd.tickets.errors import TicketRefused
from jobd.wire.json_check import BadPayload
from jobd.wire.problems import CATALOGUE, MEDIA_TYPE, ApiError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

log = logging.getLogger(__name__)

#: Id of the running request: in the header X-Request-Id, in problem documents and (see `RequestSubject`) in log lines.
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")

#: Headers of a problem document that mean the same in OpenAI's shape.
_KEPT_HEADERS = frozenset({"allow", "connection", "www-authenticate"})
_decode = msgspec.json.Decoder(Problem).decode


def problem(
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    index: int | None = None,
    node: str | None = None,
) -> Response:
    status = CATALOGUE[code].status
    body = Problem(
        type=f"/problems#{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        index=index,
        node=node,
        request_id=REQUEST_ID.get(),
    )
    return Response(msgspec.json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=headers)


#: Paths at which clients of OpenAI's interface call: their errors have its shape.
OPENAI_PATHS = tuple(
    f"/v1/{name}"
    for name in ("chat/completions", "completions", "embeddings", "models", "responses", "files", "batches")
)


def speaks_openai(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in OPENAI_PATHS)


def refusal_of(error: Exception, what: str, path: str) -> Response:
    """The answer to a request for this path that ended with this error; `what` names the request in the log."""
    if isinstance(error, OpenAIError):
        return _openai_answer(error)
    answer = problem_of(error, what)
    return _as_openai(answer) if speaks_openai(path) else answer


def _as_openai(answer: Response) -> Response:
    """A problem document in OpenAI's shape."""
    found = _decode(answer.body)
    after = answer.headers.get("retry-after")
    error = OpenAIError(
        found.status, found.detail, code=found.code, retry_after_s=None if after is None else float(after)
    )
    kept = {name: value for name, value in answer.headers.items() if name in _KEPT_HEADERS}
    return _openai_answer(error, kept)


def _openai_answer(error: OpenAIError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(error_answer(error)),
        status_code=error.status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {}), **error_headers(error)},
    )


def problem_of(error: Exception, what: str) -> Response:
    """The answer to a request that ended with this error; `what` names the request in the log."""
    if isinstance(error, ApiError):
        return problem(error.code, error.detail, error.headers, error.index, error.node)
    if isinstance(error, BadPayload | TicketRefused | ScheduleRefused):
        return problem(error.code, str(error))
    if isinstance(error, (ServerDown, Closed, OutcomeUnknown, BatcherFull, TimeoutError)):
        log.warning("%s: %s", what, error)
        return problem("unavailable", "jobd cannot reach its database just now; try again", {"Retry-After": "1"})
    if isinstance(error, ClientDisconnect):
        return problem("bad_request", "the body ended too early")  # to nobody
    log.error("%s failed", what, exc_info=error)
    return problem("internal", "something went wrong here; the log says what")


_OF_STATUS = {404: "not_found", 405: "method_not_allowed"}


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _OF_STATUS.get(error.status_code, "bad_request")
    headers = {"Allow": ", ".join(_methods_of(request))} if error.status_code == 405 else error.headers
    answer = problem(code, f"{request.method} {request.url.path}: {error.detail}", headers)
    return _as_openai(answer) if speaks_openai(request.url.path) else answer


def _methods_of(request: Request) -> list[str]:
    """All that the path takes; each method has a route of its own, and each knows only itself."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


async def on_unexpected(request: Request, error: Exception) -> Response:
    return refusal_of(error, f"{request.method} {request.url.path}", request.url.path)


HANDLERS: dict[Any, Any] = {HTTPException: on_http_exception, Exception: on_unexpected}
