"""Query parameters: each once, none that the route does not know, each of the type that its declaration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from jobd.http.endpoint import Parameter


def read_query(request: Request, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """What was sent, by name; a parameter that was not sent is not in it."""
    known = {parameter.name: parameter for parameter in parameters if parameter.place == "query"}
    found: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise ApiError("invalid", f"unknown parameter {name[:64]!r}; this call takes {', '.join(known) or 'none'}")
        if name in found:
            raise ApiError("invalid", f"parameter {name} was sent twice; send it once")
        try:
            found[name] = msgspec.convert(text, known[name].type, strict=False)
        except msgspec.ValidationError as error:
            raise ApiError("invalid", f"parameter {name}: {error} (got {text[:64]!r})") from None
    return found
