"""Stands for a jobd that is killed while a command runs: says `ready` when it does, and waits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[3]))

from jobd.tasks.command.runner import CommandRunner
from tests.support.wait import wait_until_async
from tests.tasks.commands import Notes, command


async def main(folder: str) -> None:
    notes = Notes()
    async with anyio.create_task_group() as running:
        running.start_soon(CommandRunner(command("family.py", "daemon", "hang"), Path(folder)).run, {}, notes.context)
        await wait_until_async(lambda: "ready" in notes.lines)
        os.write(1, b"ready\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
