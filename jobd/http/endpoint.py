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

from jobd.http.problems import problem_of
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from jobd.auth.doorkeeper import Principal, RouteScope
    from jobd.http.services import Services

JSON = "application/json"
HEADERS = {"Cache-Control": "no-store"}


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


#: `get(path, scope, handler, summary, answers=..., ...)`: an endpoint of that method.
get = partial(Endpoint, "GET")
post = partial(Endpoint, "POST")
patch = partial(Endpoint, "PATCH")


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value), status_code=status, media_type=JSON, headers={**HEADERS, **(headers or {})}
    )


class _Served:
    """The ASGI side of an endpoint."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        self._endpoint = endpoint
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except Exception as error:
            response = problem_of(error, f"{self._endpoint.method} {self._endpoint.path}")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        endpoint, services = self._endpoint, self._services
        principal: Principal = request.scope["state"]["principal"]  # set by `jobd.http.request_checks`
        if not principal.may(endpoint.scope):
            raise ApiError(
                "forbidden", f"{principal.name} may not call this: it needs a token with the scope {endpoint.scope}"
            )
        return await endpoint.handler(Call(request, principal, services))


def routes(endpoints: Sequence[Endpoint], services: Services) -> list[Route]:
    return [
        Route(endpoint.path, _Served(endpoint, services), methods=[endpoint.method], name=endpoint.handler.__name__)
        for endpoint in endpoints
    ]
