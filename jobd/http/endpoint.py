"""A route as data: what it takes, what it answers, who may call it.

Routing, access checks, body reading and the OpenAPI document are all made from this one declaration.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jobd.http.problems import refusal_of
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from jobd.auth.doorkeeper import Principal, RouteScope
    from jobd.http.services import Services

JSON = "application/json"
HEADERS = {"Cache-Control": "no-store"}
_JSON_HEADERS = ((b"cache-control", b"no-store"), (b"content-type", JSON.encode()))


class Call(NamedTuple):
    """One request, its caller, and the services that a route may use."""

    request: Request
    principal: Principal
    services: Services


class Parameter(NamedTuple):
    """A query parameter, header or part of the path."""

    name: str
    #: msgspec type: for the OpenAPI schema and for parsing.
    type: Any
    meaning: str
    place: Literal["query", "header", "path"] = "query"
    #: May be sent more than once; its type is a list.
    is_repeatable: bool = False


class Endpoint(NamedTuple):
    method: str
    #: As Starlette writes it: `/v1/jobs/{id}`.
    path: str
    scope: RouteScope
    handler: Callable[[Call], Awaitable[Response]]
    summary: str
    #: Type of each success answer by status; None: no JSON body.
    answers: Mapping[int, Any]
    #: Problem codes of this route, beside those of every route and of every JSON body.
    problems: Sequence[str] = ()
    #: Type of the JSON body; None: no body is read.
    body: Any = None
    parameters: Sequence[Parameter] = ()
    #: Media type of the success answer.
    media_type: str = JSON
    #: Media types that the body may have.
    body_types: Sequence[str] = (JSON,)
    #: Headers of the success answer, each with its meaning, beside those of any answer.
    headers: Mapping[str, str] = MappingProxyType({})
    #: Whether tokens with `own_jobs` may call it: it then shows and touches their own jobs alone. Others are refused.
    own_jobs: bool = False


#: `get(path, scope, handler, summary, answers=..., ...)`: an endpoint of that method.
get = partial(Endpoint, "GET")
post = partial(Endpoint, "POST")
patch = partial(Endpoint, "PATCH")
delete = partial(Endpoint, "DELETE")


class JsonAnswer(Response):
    """A response with JSON; most of its headers are encoded already."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        self.body = body
        self.status_code = status
        self.background = None
        self.raw_headers = [*_JSON_HEADERS, (b"content-length", b"%d" % len(body))]
        if headers:
            self.raw_headers += [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JsonAnswer(msgspec.json.encode(value), status, headers)


class ServedEndpoint:
    """The ASGI side of an endpoint. It answers whatever its handler raises."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        self.method = endpoint.method
        self.path = endpoint.path
        #: As metrics and logs name it.
        self._name = f"{endpoint.method} {endpoint.path}"
        self._handler = endpoint.handler
        self._scope = endpoint.scope
        self._is_for_own_jobs = endpoint.own_jobs or endpoint.scope == "public"
        self._services = services

    def route(self) -> Route:
        return Route(self.path, self, methods=[self.method], name=self._handler.__name__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["route"] = self._name
        principal: Principal = scope["state"]["principal"]  # set by `jobd.http.request_checks`
        try:
            if not principal.may(self._scope, is_read=self.method == "GET"):
                raise _forbidden(principal, self._scope)
            if principal.own_jobs and not self._is_for_own_jobs:
                raise ApiError("forbidden", f"{principal.name} may not call this: its token has own_jobs")
            response = await self._handler(Call(Request(scope, receive, send), principal, self._services))
        except Exception as error:
            response = refusal_of(error, self._name, self.path)
        await response(scope, receive, send)


def _forbidden(principal: Principal, scope: RouteScope) -> ApiError:
    return ApiError("forbidden", f"{principal.name} may not call this: it needs a token with the scope {scope}")
