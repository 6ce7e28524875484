"""Runs a handler as a slot would, without any server: the same runner, the same checks, the same ends.

The payload goes through JSON and is checked against the type of the first parameter. An `async def` runs in an event
loop, a `def` in a thread. What is returned goes through JSON too, within the limits of `[limits]`: the result is what a
client would get.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
import msgspec

from jobd.config.model import Limits
from jobd.tasks.failure import failure_of
from jobd.tasks.python import function_runner
from jobd.tasks.result import encoded_result
from jobd.tasks.runner import Snoozed, TaskFailed
from jobd.testing.context import FakeContext
from jobd.wire.json_check import BadPayload, check_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jobd.tasks.runner import Runner

#: Seconds that a thread has to return once its attempt has ended; in jobd its slot would wait for it, idle.
GONE_S = 5.0


class HandlerRun(NamedTuple):
    """How an attempt ended."""

    #: As in the list of a job's attempts. A snooze is `released`.
    outcome: Literal["done", "failed", "canceled", "released"]
    #: As a client gets it; None unless it is done.
    result: Any
    #: Why it failed: `code`, `message`, `retryable`, `stack`; None unless it has.
    error: TaskFailed | None
    #: Seconds after which a snoozed job comes back.
    snooze_s: float | None
    context: FakeContext

    @property
    def is_retried(self) -> bool:
        """Whether another attempt follows: it failed, may be tried again, and attempts are left."""
        context = self.context
        return self.error is not None and self.error.retryable and context.attempt < context.max_attempts


def run_handler(
    handler: Callable[..., Any],
    payload: Mapping[str, Any] | None = None,
    context: FakeContext | None = None,
    *,
    limits: Limits | None = None,
) -> HandlerRun:
    """Run a handler to the end of one attempt. In a test that is `async def`, await `run_handler_async` instead."""
    if _is_in_loop():
        raise RuntimeError("run_handler was called in an event loop; await run_handler_async there")

    async def run() -> HandlerRun:
        return await run_handler_async(handler, payload, context, limits=limits)

    return anyio.run(run)


async def run_handler_async(
    handler: Callable[..., Any],
    payload: Mapping[str, Any] | None = None,
    context: FakeContext | None = None,
    *,
    limits: Limits | None = None,
) -> HandlerRun:
    context = FakeContext(task=_name(handler)) if context is None else context
    limits = Limits() if limits is None else limits
    arrives = _through_json({} if payload is None else payload, limits)
    runner = function_runner(context.task, handler, f"handler {_name(handler)}")
    scope = anyio.CancelScope(deadline=anyio.current_time() + context.left_s)
    loop = asyncio.get_running_loop()
    context.on_cancel = lambda: _soon(loop, scope.cancel)  # in any thread
    if context.cancelled:
        scope.cancel()
    ended = HandlerRun("failed", None, _timeout(context), None, context)  # unless it ends by itself
    try:
        with scope:
            ended = await _ended(runner, arrives, context, limits, scope)
    finally:
        context.close()
        with anyio.CancelScope(shield=True):
            await _until_gone(runner.gone(context), handler)
            await runner.close()
    return HandlerRun("canceled", None, None, None, context) if context.is_canceled else ended


async def _ended(
    runner: Runner, payload: Mapping[str, Any], context: FakeContext, limits: Limits, scope: anyio.CancelScope
) -> HandlerRun:
    try:
        result = await runner.run(payload, context)
        text = encoded_result(result, result_bytes=limits.result_bytes, inline_bytes=limits.inline_result_bytes)
        return HandlerRun("done", msgspec.json.decode(text), None, None, context)
    except Snoozed as snoozed:
        return HandlerRun("released", None, None, snoozed.delay_s, context)
    except KeyboardInterrupt:
        raise
    except anyio.get_cancelled_exc_class():
        if scope.cancel_called or anyio.current_effective_deadline() == -math.inf:
            raise
        failed = failure_of(RuntimeError("the handler was cancelled from within"))
    except BaseException as error:  # SystemExit too: a handler ends its attempt, not the test
        failed = failure_of(error)
    return HandlerRun("failed", None, failed, None, context)


def _timeout(context: FakeContext) -> TaskFailed:
    return TaskFailed("timeout", f"the attempt took longer than timeout_s = {context.timeout_s:g}")


def _through_json(payload: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The payload as it arrives in a handler; raises ValueError for one that no job can have."""
    try:
        text = msgspec.json.encode(payload)
        check_json(text, limits.payload_bytes)
    except (BadPayload, TypeError, OverflowError) as error:
        raise ValueError(f"jobd would refuse this payload: {error}") from None
    arrives = msgspec.json.decode(text)
    if not isinstance(arrives, dict):
        raise ValueError(f"jobd would refuse this payload: it is an object, not {type(arrives).__name__}")
    return arrives


async def _until_gone(gone: Awaitable[None], handler: Callable[..., Any]) -> None:
    with anyio.move_on_after(GONE_S) as waiting:
        await gone
    if waiting.cancelled_caught:
        raise AssertionError(
            f"{_name(handler)} goes on in its thread {GONE_S:g} s after its attempt was ended; let it check"
            " ctx.cancelled, or its slot would take no other job"
        )


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(call)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__name__", type(handler).__name__)
