"""`pg_dump` and `pg_restore` as they come with the embedded Postgres, fed or read piece by piece.

They run as jobd's own user, whom the server knows by its socket, and see nothing of jobd's environment. One that is no
longer wanted (Ctrl-C, a stop) is killed; it changes nothing but through its session, which ends with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerFailed, ServerMissing
from jobd.host.process import ENVIRONMENT
from jobd.servers.postgres import PROGRAM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from anyio.abc import ByteReceiveStream, Process

READ_BYTES = 1 << 18
#: Bytes of the program's standard error that are kept for the error message.
COMPLAINT_BYTES = 4096


async def read_from(name: str, arguments: Sequence[str], take: Callable[[bytes], Awaitable[None]]) -> None:
    """Run the program and hand on what it writes, as it comes; raises ServerFailed if it failed."""
    async with _running(name, arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                await take(await process.stdout.receive(READ_BYTES))


async def write_to(name: str, arguments: Sequence[str], blocks: Iterable[bytes]) -> None:
    """Run the program on this input; raises ServerFailed if it failed."""
    async with _running(name, arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError):  # it ended early, and says why
            for block in blocks:
                await process.stdin.send(block)
        await process.stdin.aclose()


@contextlib.asynccontextmanager
async def _running(name: str, arguments: Sequence[str], *, stdin: int, stdout: int) -> AsyncIterator[Process]:
    complaints = bytearray()
    argv = [_path_of(name), *arguments]
    async with await anyio.open_process(
        argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd="/"
    ) as process:
        assert process.stderr is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, process.stderr, complaints)
            yield process
            await process.wait()
    if process.returncode:
        said = complaints.decode("utf-8", "replace").strip().splitlines()
        raise ServerFailed(
            f"{name} failed with exit code {process.returncode}: {said[-1] if said else 'it said nothing'}"
        )


async def _listen(stream: ByteReceiveStream, complaints: bytearray) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError):
        while True:
            complaints += await stream.receive()
            del complaints[:-COMPLAINT_BYTES]


def _path_of(name: str) -> str:
    path = PROGRAM.installed().with_name(name)
    if not os.access(path, os.X_OK):
        raise ServerMissing(f"{path} is missing or cannot run; reinstall package {PROGRAM.distribution}")
    return str(path)
