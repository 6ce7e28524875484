from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from anyio.from_thread import start_blocking_portal

from jobd import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from tests.support.daemon import Jobd

#: Makes a client of one kind or the other; both take the same arguments.
Connect: TypeAlias = "Callable[..., AbstractContextManager[Client]]"


class Awaited:
    """The asynchronous client for tests that are not: so one test speaks of both."""

    def __init__(self, portal: BlockingPortal, client: AsyncClient) -> None:
        self._portal = portal
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._portal.call(partial(getattr(self._client, name), *args, **kwargs))

    def events(self, *args: Any, **kwargs: Any) -> Iterator[object]:
        return self._each(self._client.events(*args, **kwargs))

    def ticket_events(self, *args: Any, **kwargs: Any) -> Iterator[object]:
        return self._each(self._client.ticket_events(*args, **kwargs))

    def response_events(self, *args: Any, **kwargs: Any) -> Iterator[object]:
        return self._each(self._client.response_events(*args, **kwargs))

    def _each(self, events: AsyncGenerator[object, None]) -> Iterator[object]:
        try:
            while True:
                yield self._portal.call(events.__anext__)
        except StopAsyncIteration:
            return
        finally:
            self._portal.call(events.aclose)


@contextmanager
def awaited(*args: Any, **kwargs: Any) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        client = portal.call(partial(AsyncClient, *args, **kwargs))
        try:
            yield cast("Client", Awaited(portal, client))
        finally:
            portal.call(client.aclose)


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return Client if request.param == "sync" else awaited


@pytest.fixture
def client(connect: Connect, daemon: Jobd) -> Iterator[Client]:
    with connect(daemon.addresses["JOBD_URL"]) as client:
        yield client
