"""Threads for handlers that block, used again from job to job, so that what a handler keeps per thread stays warm.

They are daemon threads: one that never returns does not keep jobd from ending. Nothing can stop a thread from outside;
who gives up on a call can only wait until it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadCall:
    """One call of a function in a thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        #: Set in the event loop when the function has returned or raised.
        self.over = anyio.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """Run the function; called in the thread."""
        try:
            self._result = self._context.run(self._function, *self._arguments)
        except BaseException as error:  # SystemExit too: it ends the attempt, not the thread
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop has ended; nobody asks any more
            self._loop.call_soon_threadsafe(self.over.set)

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Threads:
    def __init__(self, name: str) -> None:
        self._name = name
        #: Queues of idle threads, used last in, first out: the last thread has the warmest caches.
        self._idle: list[queue.SimpleQueue[ThreadCall | None]] = []
        self._closed = False

    def start(self, function: Callable[..., Any], *arguments: Any) -> ThreadCall:
        """Call the function in an idle thread, or in a new one when all are busy."""
        call = ThreadCall(function, arguments)
        if self._idle:
            self._idle.pop().put(call)
        else:
            threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()
        return call

    def close(self) -> None:
        """End the threads that have nothing to do; the others end when they return."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, call: ThreadCall | None) -> None:
        inbox: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        while call is not None:
            call.make()
            del call  # its arguments and result are not kept until the next
            if self._closed:
                return
            self._idle.append(inbox)
            call = inbox.get()
