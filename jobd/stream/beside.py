"""Runs a coroutine beside the body of a `with`: until the body ends (`beside`), or until both end (`meanwhile`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    from anyio.abc import TaskGroup


@contextlib.contextmanager
def beside(tasks: TaskGroup, function: Callable[..., Awaitable[None]], *arguments: object) -> Iterator[None]:
    """Run the function in another task until the body ends."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await function(*arguments)

    tasks.start_soon(run)
    try:
        yield
    finally:
        scope.cancel()


@contextlib.asynccontextmanager
async def meanwhile(other: Coroutine[object, object, object]) -> AsyncIterator[None]:
    """Run `other` beside the body and wait for both: one error instead of a group, that of the body first."""
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
