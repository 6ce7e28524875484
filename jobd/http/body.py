"""JSON bodies: read once, checked before any parser can be hurt by them, and turned into their Struct.

Syntax that no two parsers read alike is 400, a value that means nothing here is 422 and names the field; see
`jobd.wire.json_check` for the list. Bodies must say that they are JSON, which no form of a foreign web page can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.requests import ClientDisconnect

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
    if int(header(request, b"content-length") or 0) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if part:
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError("body_too_large", f"the body has more than {limit} bytes", headers={"Connection": "close"})


def check_content_type(request: Request, allowed: frozenset[str]) -> None:
    sent = content_type(request)
    if sent.lower() not in allowed:
        raise ApiError(
            "unsupported_media_type", f"Content-Type is {sent or 'missing'}; send {sorted(allowed)[0]} in UTF-8"
        )
    if header(request, b"content-encoding") not in (None, b"identity"):
        raise ApiError("unsupported_media_type", "Content-Encoding is not supported; send the JSON as it is")


def content_type(request: Request) -> str:
    """Empty if it was not sent."""
    return (header(request, b"content-type") or b"").decode("latin-1")


def header(request: Request, name: bytes) -> bytes | None:
    """The first header of that name, from the raw ASGI list: Starlette makes an object at each access."""
    for header_name, value in request.scope["headers"]:
        if header_name == name:
            return bytes(value)
    return None


def convert(value: object, type_: type[_T]) -> _T:
    """A decoded JSON value as `type_`; what does not fit is named by its path."""
    if not isinstance(value, dict) and issubclass(type_, msgspec.Struct):
        raise ApiError("not_object", f"the body must be a JSON object, not {_KINDS.get(type(value), 'a number')}")
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None
