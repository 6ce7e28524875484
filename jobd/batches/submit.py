"""Lines become jobs, some at a time: no more than `AHEAD` of a batch wait or run, so that none grows old in line.

The jobs of a step and how far the input was read are one commit, so no line becomes a job twice, whatever is killed
when.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from anyio import to_thread

from jobd.batches.lines import decoded, line_job, line_limit, read_lines
from jobd.batches.table import advance_batch
from jobd.engine.limits import with_turns
from jobd.lifecycle.depend import LinkRefused
from jobd.lifecycle.enqueue import Created, enqueue_within
from jobd.openai.batch_lines import LineFault, line_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from jobd.batches.lines import InputLine
    from jobd.batches.table import StoredBatch
    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.lifecycle.enqueue import Enqueued, NewJob
    from jobd.tasks.runner import Runner

#: Jobs of a batch that have not ended, at most: enough for all slots, and few enough to be submitted late.
AHEAD = 500
#: Lines that become jobs in one commit.
STEP_LINES = 100


class Submitted(Enum):
    MORE = "some lines became jobs"
    ALL = "the input was read to its end"
    FULL = "the queue takes no more just now"
    SEALED = "somebody has sealed the group of the batch, so it takes no more jobs"
    MOVED = "somebody else has moved the batch on"


class _Undone(Exception):
    """Raised to undo a step."""

    def __init__(self, outcome: Submitted) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


async def submit_some(
    engine: Engine, batch: StoredBatch, file: BinaryIO, config: Config, runners: Mapping[str, Runner]
) -> Submitted:
    """One step: the next lines of the input become jobs."""
    jobs, lines = await to_thread.run_sync(_next_jobs, batch, file, config, runners)
    if not lines:
        return Submitted.ALL
    jobs = with_turns(jobs, config)
    end = lines[-1]
    try:
        async with engine.database.connection() as connection, connection.transaction():
            if not await advance_batch(connection, batch.id, batch.read_bytes, end.end, end.number):
                raise _Undone(Submitted.MOVED)
            answers = await enqueue_within(connection, jobs, max_queued=config.limits.max_queued) if jobs else []
            _check(answers)
    except _Undone as undone:
        return undone.outcome
    if any(job.limit_key is not None for job in jobs):
        engine.note_limits()
    engine.enqueued(jobs, answers)
    return Submitted.MORE


def _next_jobs(
    batch: StoredBatch, file: BinaryIO, config: Config, runners: Mapping[str, Runner]
) -> tuple[Sequence[NewJob], list[InputLine]]:
    """Blocks. A line that was good and cannot become a job any more, as the configuration has changed, becomes none."""
    longest = line_limit(config)
    room = max(1, min(STEP_LINES, AHEAD - batch.pending))
    lines = read_lines(file, batch.read_bytes, batch.read_lines + 1, most=room, longest=longest)
    jobs: list[NewJob] = []
    for line in lines:
        if line.text:
            try:
                call = line_call(decoded(line, longest), batch.endpoint, config)
                jobs.append(line_job(batch, line.number, call, config, runners))
            except LineFault:
                continue
    return jobs, lines


def _check(answers: Sequence[Enqueued]) -> None:
    for answer in answers:
        if isinstance(answer, LinkRefused):
            raise _Undone(Submitted.SEALED)
        if not isinstance(answer, Created):
            raise _Undone(Submitted.FULL)
