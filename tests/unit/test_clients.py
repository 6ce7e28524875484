"""Both clients have the same calls: what one can do, the other can await."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from jobd import AsyncClient, Client

#: How each is closed; the only difference.
CLOSING = {"close": "aclose"}


def methods(kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}


def test_both_have_the_same_methods() -> None:
    assert [CLOSING.get(name, name) for name in methods(Client)] == list(methods(AsyncClient))


@pytest.mark.parametrize("name", [name for name in methods(Client) if name not in CLOSING])
def test_a_method_is_the_same_call_in_both(name: str) -> None:
    """The same flow, so the same parameters, requests and answers; one blocks where the other awaits."""
    sync, asynchronous = methods(Client)[name], methods(AsyncClient)[name]

    assert sync.__wrapped__ is asynchronous.__wrapped__
    assert not inspect.iscoroutinefunction(sync)
    is_stream = name in ("events", "ticket_events", "response_events")
    assert inspect.iscoroutinefunction(asynchronous) is not is_stream
