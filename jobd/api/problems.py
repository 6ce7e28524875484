"""Errors as RFC 9457 problem documents with a stable `code`; what went wrong inside stays in the log."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

log = logging.getLogger(__name__)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    #: For people: the HTTP status in words.
    title: str
    status: int
    #: For programs: never changes for the same cause.
    code: str
    detail: str


def problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    body = Problem(title=HTTPStatus(status).phrase, status=status, code=code, detail=detail)
    return Response(
        msgspec.json.encode(body), status_code=status, media_type="application/problem+json", headers=headers
    )


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    return problem(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}", error.headers)


async def on_unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "internal", "something went wrong here; the log says what")


HANDLERS: dict[Any, Any] = {HTTPException: on_http_exception, Exception: on_unexpected}
