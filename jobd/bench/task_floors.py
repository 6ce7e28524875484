"""What each way of running costs without a job system: the same work, as often at once, and nothing kept anywhere.

async       the function is awaited
thread      it is called in a thread
isolated    a child process is asked over a pipe and answers
command     the program is started and its output read
worker      two HTTP requests, as for a claim and a completion, to a server that answers a constant
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from jobd.bench import handlers
from jobd.bench.http import SINGLE, load
from jobd.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

#: Calls under way at the same time: as many as the benchmark has slots.
AT_ONCE = 8
PAYLOAD: dict[str, Any] = {"n": 1}
LINE = b'{"n": 1}\n'
ECHO = "import sys\nfor line in iter(sys.stdin.buffer.raw.readline, b''): sys.stdout.buffer.raw.write(line)"


async def floor(way: str, seconds: float, argv: tuple[str, ...], constant: tuple[str, int]) -> float:
    """Runs per second."""
    if way == "async":
        return await _rate(lambda _: handlers.at_once(PAYLOAD, None), seconds)
    if way == "thread":
        return await _rate(lambda _: to_thread.run_sync(handlers.in_thread, PAYLOAD, None), seconds)
    if way == "command":
        return await _rate(lambda _: anyio.run_process(argv, input=b"{}", stderr=subprocess.DEVNULL), seconds)
    if way == "worker":
        answers, _ = await load(constant, SINGLE, seconds)
        return answers / 2
    with _children() as children:
        return await _rate(lambda number: to_thread.run_sync(_ask, children[number]), seconds)


async def _rate(once: Callable[[int], Awaitable[object]], seconds: float) -> float:
    count = 0
    started = perf_counter()

    async def again_and_again(number: int) -> None:
        nonlocal count
        while perf_counter() < started + seconds:
            await once(number)
            count += 1

    async with anyio.create_task_group() as tasks:
        for number in range(AT_ONCE):
            tasks.start_soon(again_and_again, number)
    return count / (perf_counter() - started)


def _ask(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(LINE)
    if child.stdout.readline() != LINE:
        raise ServerFailed(f"a process that is to echo ended with exit code {child.wait()}")


@contextlib.contextmanager
def _children() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-I", "-S", "-c", ECHO]
    children = [
        subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(AT_ONCE)
    ]
    try:
        for child in children:
            _ask(child)  # until it is there
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()
