"""Do something while something else is under way, with one error instead of a group of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def meanwhile(other: Coroutine[object, object, object]) -> AsyncIterator[None]:
    """Run `other` beside the body and wait for both; if both fail, the error of the body is raised."""
    failed: list[Exception] = []

    async def run() -> None:
        try:
            await other
        except Exception as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        except Exception as error:
            failed.insert(0, error)
    if failed:
        raise failed[0]
