"""A history, out of the tables and the file of the handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.chaos.records import AttemptRow, CountRow, GroupRow, JobRow, NotedRun
from jobd.store.postgres import connect
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jobd.chaos.records import History

DRILL_JOBS = statement("drill_jobs", "jobd.chaos")
DRILL_ATTEMPTS = statement("drill_attempts", "jobd.chaos")
DRILL_GROUPS = statement("drill_groups", "jobd.chaos")
DRILL_COUNTS = statement("drill_counts", "jobd.chaos")
DRILL_LEASES = statement("drill_leases", "jobd.chaos")
DRILL_UNFINISHED = statement("drill_unfinished", "jobd.chaos")

#: Whole tables are read, which no statement of the engine may.
FOR_READING = "SET statement_timeout = 0; SET enable_hashjoin = on; SET enable_seqscan = on"
#: Seconds between two looks whether all jobs have ended.
LOOK_S = 0.2


def completed(url: str, queue: str, sent: History, runs: Path, group_ids: Sequence[str], wait_s: float) -> History:
    """What was sent with what became of it, once all jobs have ended; after `wait_s` seconds as it stands."""
    return anyio.run(_completed, url, queue, sent, runs, group_ids, wait_s)


async def _completed(
    url: str, queue: str, sent: History, runs: Path, group_ids: Sequence[str], wait_s: float
) -> History:
    connection = await connect(url)
    try:
        await connection.execute(FOR_READING)
        with anyio.move_on_after(wait_s):
            while await connection.fetchval(DRILL_UNFINISHED, queue):
                await anyio.sleep(LOOK_S)
        async with connection.transaction(isolation="repeatable_read"):
            return msgspec.structs.replace(
                sent,
                runs=tuple(runs_in(runs)),
                jobs=_rows(JobRow, await connection.fetch(DRILL_JOBS, queue)),
                attempts=_rows(AttemptRow, await connection.fetch(DRILL_ATTEMPTS, queue)),
                groups=_rows(GroupRow, await connection.fetch(DRILL_GROUPS, group_ids)),
                counts=_rows(CountRow, await connection.fetch(DRILL_COUNTS, queue)),
                leases=await connection.fetchval(DRILL_LEASES, queue),
            )
    finally:
        await connection.close()


def _rows(kind: Any, rows: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(kind(**dict(row)) for row in rows)


def runs_in(file: Path) -> list[NotedRun]:
    """A line that was cut off by the end of its writer is left out: it is the last of that run at most."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    parts = [line.split() for line in lines]
    return [
        NotedRun(job_id=part[1], attempt=int(part[2]), at=float(part[3]), is_end=part[0] == "end")
        for part in parts
        if len(part) == 4
    ]
