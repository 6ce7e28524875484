"""The OpenAPI 3.1 document, made from the table of routes, the types of their bodies and the catalogue of problems.

A field's description is its `Meta` description, or else the `#:` comment above it. A problem answer lists the codes
that its route has with its status, so a generated client knows them all; routes that have the same ones share it.
"""

from __future__ import annotations

import re
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from jobd import __version__
from jobd.http import body
from jobd.http.endpoint import JSON
from jobd.http.field_comments import field_comments
from jobd.http.problems import speaks_openai
from jobd.http.request_checks import HEALTH, READS
from jobd.openai.errors import CODES, ErrorAnswer
from jobd.wire.problems import CATALOGUE, MEDIA_TYPE, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jobd.http.endpoint import Endpoint, Parameter

    Schema = dict[str, Any]
    #: Keyed by id() of the type: not every annotated type is hashable.
    Schemas = Mapping[int, Schema]

REF = "#/components/schemas/{name}"

#: Problem codes of every route: found before the route is called.
ANY = (
    *("bad_request", "body_too_large", "headers_too_large", "http_version", "internal", "token_in_url"),
    *("transfer_encoding", "uri_too_long", "wrong_host"),
)
#: Problem codes of every route that needs a caller.
GUARDED = ("forbidden", "too_many_attempts", "too_many_requests", "unauthorized", "unavailable")

DESCRIPTION = """\
jobd keeps jobs in Postgres until they are done. Every body is JSON in UTF-8; every error is a problem document
(RFC 9457) whose `code` never changes, and [/problems](/problems) lists them. Calls need a bearer token of the scope
that they name, unless this jobd has no tokens at all."""

HEADERS = {
    "RequestId": "Names this request in the log.",
    "RetryAfter": "How many seconds to wait before the next try.",
    "Challenge": "How to say who calls: Bearer.",
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    types = [Problem, ErrorAnswer, *(kind for endpoint in endpoints for kind in _types(endpoint))]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    _add_comments(components, types)
    paths: dict[str, dict[str, Any]] = {}
    refusals: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(path_of(endpoint), {})[endpoint.method.lower()] = _operation(endpoint, by_type, refusals)
    page = {
        "openapi": "3.1.0",
        "info": {"title": "jobd", "version": __version__, "description": DESCRIPTION.replace("\n", " ")},
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(map(tag_of, endpoints))],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": refusals,
            "headers": {
                name: {"description": meaning, "schema": {"type": "integer" if name == "RetryAfter" else "string"}}
                for name, meaning in HEADERS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    _rewrite_patterns(page)
    return page


def problems_of(endpoint: Endpoint) -> dict[int, list[str]]:
    """Every code that the route may answer with, by status."""
    codes = {*ANY, *endpoint.problems}
    if endpoint.scope != "public":
        codes.update(GUARDED)
    if endpoint.path not in HEALTH:
        codes.add("too_many_connections")
    if endpoint.method not in READS:
        codes.update(("foreign_origin", "no_origin"))
    if endpoint.body is not None:
        codes.update(body.PROBLEMS)
    if "{" in endpoint.path:
        codes.add("not_found")
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        status = CATALOGUE[code].status if code in CATALOGUE else CODES[code]
        if status in (409, 422) and speaks_openai(endpoint.path):
            status = 400
        by_status.setdefault(status, []).append(code)
    return dict(sorted(by_status.items()))


def path_of(endpoint: Endpoint) -> str:
    """Without Starlette's mark of a part that may have slashes in it, for which OpenAPI has no word."""
    return endpoint.path.replace(":path}", "}")


def tag_of(endpoint: Endpoint) -> str:
    first, second = endpoint.path.split("/", 3)[1:3] if endpoint.path.count("/") > 1 else ("", "")
    return second if first in ("v1", "internal") else "server"


# -- one call ----------------------------------------------------------------------------------------------------------


def _operation(endpoint: Endpoint, schemas: Schemas, refusals: dict[str, Any]) -> dict[str, Any]:
    """The call; its problem answers are in `refusals` afterwards."""
    answers: dict[str, Any] = {}
    for status, codes in problems_of(endpoint).items():
        if speaks_openai(endpoint.path):
            name, refusal = f"{status}.openai", _openai_refusal(status, schemas)
        else:
            name, refusal = ".".join((str(status), *codes)), _refusal(status, codes)
        refusals.setdefault(name, refusal)
        answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
    for status, type_ in endpoint.answers.items():
        assert str(status) not in answers, f"{endpoint.path} has two meanings for {status}"
        answers[str(status)] = _success(endpoint, status, type_, schemas)
    operation = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [tag_of(endpoint)],
        "security": [] if endpoint.scope == "public" else [{"token": [endpoint.scope]}],
        "parameters": [_parameter(parameter, schemas) for parameter in endpoint.parameters],
        "responses": dict(sorted(answers.items())),
    }
    if endpoint.body is not None:
        content = {kind: {"schema": _body(kind, schemas[id(endpoint.body)])} for kind in endpoint.body_types}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(parameter: Parameter, schemas: Schemas) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.meaning,
        "schema": schemas[id(parameter.type)],
    }


def _body(kind: str, schema: Schema) -> Schema:
    """Of JSON one document, of anything else one document a line, for which JSON Schema has no word."""
    return schema if kind == JSON else {"type": "string", "description": "One item of the JSON array a line."}


def _success(endpoint: Endpoint, status: int, type_: Any, schemas: Schemas) -> dict[str, Any]:
    schema = {"type": "string"} if type_ is None else schemas[id(type_)]
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in endpoint.headers.items()}
    return {
        "description": HTTPStatus(status).phrase,
        "headers": {**headers, **_headers_of(status)},
        "content": {endpoint.media_type: {"schema": schema}},
    }


def _refusal(status: int, codes: Sequence[str]) -> dict[str, Any]:
    of_route = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    schema = {"allOf": [{"$ref": REF.format(name="Problem")}, of_route]}
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _headers_of(status),
        "content": {MEDIA_TYPE: {"schema": schema}},
    }


def _openai_refusal(status: int, schemas: Schemas) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _headers_of(status),
        "content": {JSON: {"schema": schemas[id(ErrorAnswer)]}},
    }


def _headers_of(status: int) -> dict[str, Any]:
    names = {"X-Request-Id": "RequestId"}
    if status in (429, 503):
        names["Retry-After"] = "RetryAfter"
    if status == 401:
        names["WWW-Authenticate"] = "Challenge"
    return {name: {"$ref": f"#/components/headers/{component}"} for name, component in names.items()}


# -- schemas -----------------------------------------------------------------------------------------------------------


def _types(endpoint: Endpoint) -> Iterator[Any]:
    yield from (kind for kind in endpoint.answers.values() if kind is not None)
    yield from (kind.type for kind in endpoint.parameters)
    if endpoint.body is not None:
        yield endpoint.body


def _add_comments(components: Mapping[str, Schema], types: Sequence[Any]) -> None:
    """Types stand in the modules of those that the routes name."""
    classes = {inner for kind in types for inner in (kind, *get_args(kind)) if isinstance(inner, type)}
    for module in sorted({kind.__module__ for kind in classes if issubclass(kind, msgspec.Struct)}):
        for name, comments in field_comments(sys.modules[module]).items():
            fields = components.get(name, {}).get("properties", {})
            for field in fields.keys() & comments.keys():
                fields[field].setdefault("description", comments[field])


def _rewrite_patterns(value: Any) -> None:
    r"""JSON Schema has JavaScript's patterns, which have no \A and \Z."""
    if isinstance(value, dict):
        if isinstance(pattern := value.get("pattern"), str):
            value["pattern"] = re.sub(r"\\Z$", "$", re.sub(r"^\\A", "^", pattern))
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        _rewrite_patterns(item)
