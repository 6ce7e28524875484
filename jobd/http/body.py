"""JSON bodies: read once, checked before any parser can be hurt by them, and turned into their Struct.

Syntax that no two parsers read alike is 400, a value that means nothing here is 422 and names the field; see
`jobd.wire.json_check` for the list. Bodies must say that they are JSON, which no form of a foreign web page can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from jobd.wire.json_check import check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

_T = TypeVar("_T")

JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})
#: Problem codes of every route with a JSON body.
PROBLEMS = (
    *("bad_payload", "body_timeout", "body_too_large", "bom", "duplicate_key", "invalid", "key_too_long", "nan"),
    *("not_json", "not_object", "not_utf8", "nul", "number_range", "surrogate", "too_deep", "too_many_keys"),
    "unsupported_media_type",
)
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


async def read_json(request: Request, type_: type[_T], limit: int) -> _T:
    """The body as the Struct that the route takes."""
    check_content_type(request, JSON_TYPES)
    return convert(check_json(await read_bytes(request, limit), limit), type_)


async def read_bytes(request: Request, limit: int) -> bytes:
    """The whole body, cut off where it is too long."""
    too_large = ApiError("body_too_large", f"the body has more than {limit} bytes", headers={"Connection": "close"})
    parts: list[bytes] = []
    size = 0
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_content_type(request: Request, allowed: frozenset[str]) -> None:
    found = request.headers.get("content-type", "")
    if found.lower() not in allowed:
        raise ApiError(
            "unsupported_media_type", f"Content-Type is {found or 'missing'}; send {sorted(allowed)[0]} in UTF-8"
        )
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError("unsupported_media_type", "Content-Encoding is not supported; send the JSON as it is")


def convert(value: object, type_: type[_T]) -> _T:
    """A decoded JSON value as `type_`; what does not fit is named by its path."""
    if not isinstance(value, dict) and issubclass(type_, msgspec.Struct):
        raise ApiError("not_object", f"the body must be a JSON object, not {_KINDS.get(type(value), 'a number')}")
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None
