"""`/v1/schemas`: the JSON schemas that tickets, their artifacts and claim records are valid against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.http.query import read_query
from jobd.tickets.schemas import SCHEMA_NAMES, schema_of
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response


class SchemaNames(msgspec.Struct, frozen=True):
    #: Each is read with `/v1/schemas/{name}`.
    schemas: list[str]


SCHEMA_NAME = Parameter("name", Annotated[str, Meta(min_length=1)], "The name of a schema.", "path")


async def get_schemas(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(SchemaNames(list(SCHEMA_NAMES)))


async def get_schema(call: Call) -> Response:
    read_query(call.request, ())
    name = call.request.path_params["name"]
    if name not in SCHEMA_NAMES:
        raise ApiError("unknown_schema", f"there is no schema {name[:64]!r}; there are {', '.join(SCHEMA_NAMES)}")
    return json_answer(schema_of(name))


ENDPOINTS = (
    get(
        "/v1/schemas",
        "client",
        get_schemas,
        "Names of the published JSON schemas",
        answers={200: SchemaNames},
        problems=("invalid",),
    ),
    get(
        "/v1/schemas/{name}",
        "client",
        get_schema,
        "A JSON schema",
        answers={200: dict[str, Any]},
        problems=("unknown_schema", "invalid"),
        parameters=(SCHEMA_NAME,),
    ),
)
