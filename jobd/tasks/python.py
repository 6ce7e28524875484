"""`run = "python"`: a function of the user's, called `func(payload, ctx)`.

An `async def` runs in the event loop, a `def` in a thread. If the first parameter is annotated with a msgspec Struct,
the payload is checked against it and arrives as one; its JSON schema is the task's.

The function is found on the normal import path; the working directory is on it, as with `python -m`.

A thread cannot be stopped. One that goes on after its attempt was ended finds `ctx.cancelled` true, emits nothing more,
and what it returns is thrown away; until it returns its slot takes no other job.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import typing
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.errors import ConfigError
from jobd.host.logs import job_fields
from jobd.tasks.runner import Runner, TaskFailed
from jobd.tasks.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jobd.tasks.runner import Context
    from jobd.tasks.threads import ThreadCall

log = logging.getLogger(__name__)


def python_runner(name: str, handler: str) -> Runner:
    """The runner of task `name`; raises ConfigError if there is no such function or it cannot be called."""
    key = f"tasks.{name}.handler"
    return function_runner(name, find_function(handler, key), key)


def function_runner(name: str, function: Callable[..., Any], key: str) -> Runner:
    """The runner of a function; `key` names it in a ConfigError."""
    kind = payload_type(function, key)
    if is_async(function):
        return AsyncRunner(function, kind)
    return ThreadRunner(name, function, kind)


class _PythonRunner(Runner):
    def __init__(self, kind: type[msgspec.Struct] | None) -> None:
        self._kind = kind

    def schema(self) -> dict[str, Any] | None:
        return schema_of(self._kind)

    def check(self, payload: Mapping[str, Any]) -> None:
        typed(payload, self._kind)

    def _typed(self, payload: Mapping[str, Any]) -> Any:
        return typed(payload, self._kind)


class AsyncRunner(_PythonRunner):
    def __init__(self, function: Callable[..., Awaitable[Any]], kind: type[msgspec.Struct] | None) -> None:
        super().__init__(kind)
        self._function = function

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        return await self._function(self._typed(payload), context)


class ThreadRunner(_PythonRunner):
    def __init__(self, name: str, function: Callable[..., Any], kind: type[msgspec.Struct] | None) -> None:
        super().__init__(kind)
        self._function = function
        self._threads = Threads(f"jobd-{name}")
        #: Calls in threads that still run although their attempt has ended.
        self._left: dict[Context, ThreadCall] = {}

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        call = self._threads.start(self._function, self._typed(payload), context)
        try:
            await call.over.wait()
        except anyio.get_cancelled_exc_class():
            context.cancelled = True
            self._left[context] = call
            raise
        return call.outcome()

    async def gone(self, context: Context) -> None:
        call = self._left.get(context)
        if call is not None and not call.over.is_set():
            log.warning(
                "the handler of %s goes on in its thread although its attempt has ended; its slot waits for it",
                context.task,
                extra=job_fields(context.job_id, context.attempt, context.traceparent),
            )
            await call.over.wait()
        self._left.pop(context, None)

    async def close(self) -> None:
        self._threads.close()


def find_function(handler: str, key: str) -> Callable[..., Any]:
    module_name, _, name = handler.partition(":")
    module = import_module(module_name, f'{key} = "{handler}"')
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f'{key} = "{handler}": module {module_name} ({module.__file__}) has no {name}')
    if not callable(function):
        raise ConfigError(f'{key} = "{handler}": {name} is of type {type(function).__name__}, not a function')
    return typing.cast("Callable[..., Any]", function)


def import_module(name: str, key: str) -> Any:
    """Import a module of the user; raises ConfigError with a message of one line."""
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{key}: cannot import {name} ({why}); it is looked for in the working directory {here} and among the"
            f" packages of {sys.executable}"
        ) from error


def payload_type(function: Callable[..., Any], key: str) -> type[msgspec.Struct] | None:
    """The Struct that its first parameter is annotated with; raises ConfigError unless it can be called with two."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: the function is called with two arguments, payload and ctx ({error})") from None
    first = next(iter(signature.parameters.values()))
    annotation = first.annotation
    if isinstance(annotation, str):
        annotation = _resolved(function, first.name)
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return annotation if is_struct else None


def schema_of(kind: type[msgspec.Struct] | None) -> dict[str, Any] | None:
    return None if kind is None else msgspec.json.schema(kind)


def typed(payload: Mapping[str, Any], kind: type[msgspec.Struct] | None) -> Any:
    """The payload as the handler gets it."""
    if kind is None:
        return payload
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise TaskFailed("invalid_payload", str(error), retryable=False) from None


def _resolved(function: Callable[..., Any], name: str) -> Any:
    """An annotation that is text, as all are with `from __future__ import annotations`.

    The others may name what is imported for type checkers only, so only this one is evaluated.
    """
    text = inspect.unwrap(function).__annotations__[name]
    try:
        return eval(text, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception:  # it may be for type checkers only as well
        return None


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
