"""A jobd in small: runs one job in a handler's process, says which process that is, and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

import anyio

from jobd.config.model import Task
from jobd.tasks.isolated.runner import IsolatedRunner
from jobd.tasks.runner import Context


async def main(folder: str, what: str) -> None:
    handler = "tests.tasks.isolated_handlers:act"
    runner = IsolatedRunner("t", Task(run="python", handler=handler, isolate=True), Path(folder))
    pid = runner._idle[0].family.pid

    def emit(kind: str, step: str, data: object) -> None:
        sys.stdout.write(f"{pid} {data}\n")
        sys.stdout.flush()

    context = Context(job_id=UUID(int=1), task="t", attempt=1, max_attempts=1, timeout_s=60, emit=emit)
    await runner.run({"do": what, "seconds": 60}, context)


anyio.run(main, sys.argv[1], sys.argv[2])
