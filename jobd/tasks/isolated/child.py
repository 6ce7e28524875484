"""The handler's own process: imports the function once, then runs one job after the other in its main thread.

It has two pipes to jobd (see `frames`) beside stdin, stdout and stderr, which belong to the handler; no program that
the handler starts inherits them. A second thread reads requests of jobd, so that a running job can be stopped.

It never outlives jobd: the kernel kills it when jobd dies, whatever it is doing, and an end of file on its pipe ends
it when it has nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import io
import os
import queue
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.errors import ConfigError
from jobd.tasks.event_check import checked_event, printable
from jobd.tasks.failure import failure_of
from jobd.tasks.isolated.frames import (
    RESULT_BYTES,
    Done,
    EmittedEvent,
    Failed,
    Frames,
    HandlerRefused,
    Ready,
    Run,
    decode_to_child,
    frame,
    framed,
)
from jobd.tasks.python import find_function, is_async, payload_type, schema_of, typed
from jobd.tasks.runner import Context, Snoozed, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Option of prctl(2): the kernel kills the child when jobd dies.
_PR_SET_PDEATHSIG = 1
#: Bytes that are read from jobd's pipe at a time.
_READ_BYTES = 65_536
#: Characters of a message or stack that are sent; jobd stores no more.
_TEXT_CHARS = 20_000


def main(requests: int, replies: int, parent: int, task: str, handler: str) -> None:
    _die_with(parent)
    for fd in (requests, replies):
        os.set_inheritable(fd, False)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    HandlerChild(requests, replies).serve(f"tasks.{task}.handler", handler)


def _die_with(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # jobd died before prctl was called
        os._exit(0)


class _Job(NamedTuple):
    run: Run
    context: Context


class HandlerChild:
    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = replies
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        #: The running job.
        self._job: _Job | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def serve(self, key: str, handler: str) -> None:
        try:
            function = find_function(handler, key)
            kind = payload_type(function, key)
        except ConfigError as error:
            self._write(frame(HandlerRefused(message=printable(str(error))[:_TEXT_CHARS])))
            return
        if is_async(function):
            self._loop = asyncio.new_event_loop()  # one for all jobs: what the handler keeps may belong to it
        threading.Thread(target=self._listen, name="jobd-listen", daemon=True).start()
        self._write(frame(Ready(payload_schema=schema_of(kind))))
        while (job := self._inbox.get()) is not None:
            self._answer(job, function, kind)
            del job

    # -- in the listening thread -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        frames = Frames()
        while data := os.read(self._requests, _READ_BYTES):
            for body in frames.feed(data):
                asked = decode_to_child(body)
                if isinstance(asked, Run):
                    self._job = _Job(asked, self._context(asked))
                    self._inbox.put(self._job)
                else:
                    self._stop(asked.n)
        self._inbox.put(None)

    def _context(self, run: Run) -> Context:
        return Context(
            job_id=run.job_id,
            task=run.task,
            attempt=run.attempt,
            max_attempts=run.max_attempts,
            timeout_s=run.left_s,
            emit=partial(self._emit, run.n),
            traceparent=run.traceparent,
            tracestate=run.tracestate,
            inputs=run.inputs,
        )

    def _stop(self, n: int) -> None:
        job = self._job
        if job is None or job.run.n != n:
            return
        job.context.cancelled = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, n)

    def _cancel(self, n: int) -> None:
        """Cancel the running coroutine; called in the event loop."""
        if self._task is not None and self._job is not None and self._job.run.n == n:
            self._task.cancel()

    # -- in the main thread ----------------------------------------------------------------------------------------

    def _answer(self, job: _Job, function: Callable[..., Any], kind: type[msgspec.Struct] | None) -> None:
        try:
            result = _encoded(self._call(job, function, kind))
            answer = frame(Done(n=job.run.n)) + framed(result)
        except BaseException as error:  # SystemExit too: a handler ends its attempt, not its process
            answer = frame(_failed(job.run.n, error))
        self._job = None
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the handler may have closed or replaced it
                stream.flush()
        self._write(answer)

    def _call(self, job: _Job, function: Callable[..., Any], kind: type[msgspec.Struct] | None) -> Any:
        payload = typed(job.run.payload, kind)
        if self._loop is None:
            return function(payload, job.context)
        # Not raised within the loop: SystemExit and KeyboardInterrupt would break it.
        result, error = self._loop.run_until_complete(self._awaited(job, function, payload))
        if error is not None:
            raise error
        return result

    async def _awaited(
        self, job: _Job, function: Callable[..., Any], payload: Any
    ) -> tuple[Any, None] | tuple[None, BaseException]:
        self._task = asyncio.current_task()
        try:
            if job.context.cancelled:
                raise asyncio.CancelledError
            return await function(payload, job.context), None
        except BaseException as error:
            return None, error
        finally:
            self._task = None

    # -- in any thread ---------------------------------------------------------------------------------------------

    def _emit(self, n: int, kind: str, step: str, data: Mapping[str, Any]) -> None:
        event = checked_event(kind, step, data)
        job = self._job
        if job is None or job.run.n != n:
            return  # its attempt has ended
        self._write(frame(EmittedEvent(n=n, kind=kind, step=event.step, data=event.data)))

    def _write(self, data: bytes) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the handler's process must not write to jobd's pipe
        view = memoryview(data)
        with self._writing:
            while view:
                try:
                    view = view[os.write(self._replies, view) :]
                except BrokenPipeError:  # jobd has gone
                    os._exit(0)


def _encoded(result: object) -> bytes:
    try:
        text = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TaskFailed("bad_result", f"the result is not JSON: {error}", retryable=False) from None
    if len(text) > RESULT_BYTES:
        raise TaskFailed(
            "result_too_large",
            f"the result has {len(text)} bytes, more than limits.result_bytes can allow ({RESULT_BYTES}); keep it"
            " elsewhere and return where",
            retryable=False,
        )
    return text


def _failed(n: int, error: BaseException) -> Failed:
    if isinstance(error, asyncio.CancelledError):
        error = RuntimeError("the handler was cancelled from within")
    failed = failure_of(error)
    return Failed(
        n=n,
        code=printable(failed.code)[:_TEXT_CHARS],
        message=printable(failed.message)[:_TEXT_CHARS],
        retryable=bool(failed.retryable),
        stack=printable(failed.stack)[-_TEXT_CHARS:],
        snooze_s=failed.delay_s if isinstance(failed, Snoozed) else None,
    )
