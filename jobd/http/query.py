"""Query parameters: none that the route does not know, each of its declared type, and once unless it is repeatable."""

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
    values: dict[str, Any] = {}
    repeated: dict[str, list[str]] = {}
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise ApiError("invalid", f"unknown parameter {name[:64]!r}; this call takes {', '.join(known) or 'none'}")
        if known[name].is_repeatable:
            repeated.setdefault(name, []).append(text)
        elif name in values:
            raise ApiError("invalid", f"parameter {name} was sent twice; send it once")
        else:
            values[name] = _converted(known[name], text)
    return values | {name: _converted(known[name], texts) for name, texts in repeated.items()}


def _converted(parameter: Parameter, sent: str | list[str]) -> Any:
    try:
        return msgspec.convert(sent, parameter.type, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", f"parameter {parameter.name}: {error} (got {str(sent)[:64]!r})") from None
