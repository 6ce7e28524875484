"""`pg_dump` and `pg_restore` of the Postgres that jobd runs, fed or read piece by piece.

They run as jobd's own user, whom the server knows by its socket, and see nothing of jobd's environment. One that is no
longer wanted (Ctrl-C, a stop) is killed; it changes nothing but through its session, which ends with it.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerFailed
from jobd.host.process import ENVIRONMENT
from jobd.servers.postgres import program_of, tool_beside

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from anyio.abc import ByteReceiveStream, Process

    from jobd.config.model import Config

#: Bytes that are read from a program's output at a time.
READ_BYTES = 1 << 18
#: Bytes of the program's standard error that are kept for the error message.
COMPLAINT_BYTES = 4096


def tool_of(config: Config, name: str) -> Path:
    return tool_beside(program_of(config).installed(), name)


async def read_from(program: Path, arguments: Sequence[str], take: Callable[[bytes], Awaitable[None]]) -> None:
    """Run the program and hand on what it writes, as it comes; raises ServerFailed if it failed."""
    async with _running(program, arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                await take(await process.stdout.receive(READ_BYTES))


async def write_to(program: Path, arguments: Sequence[str], blocks: Iterable[bytes]) -> None:
    """Run the program on this input; raises ServerFailed if it failed."""
    async with _running(program, arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError):  # it ended early, and says why
            for block in blocks:
                await process.stdin.send(block)
        await process.stdin.aclose()


@contextlib.asynccontextmanager
async def _running(program: Path, arguments: Sequence[str], *, stdin: int, stdout: int) -> AsyncIterator[Process]:
    complaints = bytearray()
    argv = [str(program), *arguments]
    async with await anyio.open_process(
        argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd="/"
    ) as process:
        assert process.stderr is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, process.stderr, complaints)
            yield process
            await process.wait()
    if process.returncode:
        lines = complaints.decode("utf-8", "replace").strip().splitlines()
        raise ServerFailed(
            f"{program.name} failed with exit code {process.returncode}: {lines[-1] if lines else 'it said nothing'}"
        )


async def _listen(stream: ByteReceiveStream, complaints: bytearray) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError):
        while True:
            complaints += await stream.receive()
            del complaints[:-COMPLAINT_BYTES]
