"""Ends long answers (long polls, event streams) when the client disconnects or the gateway stops."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive

    from jobd.http.gateway import InFlight


async def hang_up(receive: Receive) -> None:
    """Return when the client has disconnected, or sends its body too slowly."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except ApiError:
        return


@contextlib.asynccontextmanager
async def while_wanted(in_flight: InFlight, receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects or the gateway stops."""
    async with anyio.create_task_group() as tasks:
        end = tasks.cancel_scope.cancel

        async def end_with_caller() -> None:
            await hang_up(receive)
            end()

        in_flight.on_closing.add(end)
        try:
            if in_flight.closing.is_set():
                end()
            tasks.start_soon(end_with_caller)
            yield
        finally:
            in_flight.on_closing.discard(end)
        end()
