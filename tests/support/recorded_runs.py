"""A task that writes each of its runs to a file: a test counts what was really run, not what jobd believes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from tests.support.daemon import TOP
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemon import Jobd

#: Answers as SubmitLoad expects it. A coroutine: what a slot runs without a thread.
HANDLER = """
import os
from pathlib import Path
import anyio

BOOK = os.open(Path(__file__).with_name("runs"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def double(payload, ctx):
    os.write(BOOK, f"begin {ctx.job_id} {ctx.attempt}\\n".encode())
    await anyio.sleep(payload["n"] % 10 / 500)
    os.write(BOOK, f"end {ctx.job_id} {ctx.attempt}\\n".encode())
    return {"twice": payload["n"] * 2}
"""
CONFIG = """
[tasks.double]
run = "python"
handler = "recording:double"
max_attempts = 100
[queues.default]
slots = 4
"""
#: Seconds within which everything is to be done once the faults are over.
DONE_S = 120.0


class Run(NamedTuple):
    job_id: str
    attempt: int


class RecordedRuns:
    """What the slots of a jobd in this folder have run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arguments(self, more_config: str = "") -> tuple[str, ...]:
        """What a jobd needs to run these jobs; `variables` besides."""
        (self._folder / "recording.py").write_text(HANDLER)
        (self._folder / "jobd.toml").write_text(CONFIG + more_config)
        return ("--config", str(self._folder / "jobd.toml"))

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{TOP}:{self._folder}"}

    def begun(self) -> list[Run]:
        return self._lines("begin")

    def ended(self) -> list[Run]:
        return self._lines("end")

    def _lines(self, kind: str) -> list[Run]:
        book = self._folder / "runs"
        lines = [line.split() for line in book.read_text().splitlines()] if book.exists() else []
        return [Run(job_id, int(attempt)) for what, job_id, attempt in lines if what == kind]


def more_than_once(runs: list[str] | list[Run]) -> list[object]:
    return [run for run, times in Counter(runs).items() if times > 1]


def until_all_are_done(daemon: Jobd) -> None:
    """Every job that Postgres has, acknowledged or not."""

    def left() -> dict[str, int]:
        rows = ask(daemon, "SELECT status::text, count(*) FROM jobd.jobs WHERE status <> 'done' GROUP BY 1")
        return {row["status"]: row["count"] for row in rows}

    wait_until(lambda: not left(), lambda: f"not done: {left()}", DONE_S)


def ask(daemon: Jobd, query: str) -> list[asyncpg.Record]:
    async def fetch() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return asyncio.run(fetch())
