"""One job in a handler's process: sends it, takes its events and output, stops it, and returns its result."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.host.process import signal_name
from jobd.tasks.command.oom import oom_kills
from jobd.tasks.command.output import EventEmitter, LogLines
from jobd.tasks.command.runner import MESSAGE_CHARACTERS
from jobd.tasks.isolated.frames import BadFrame, EmittedEvent, Failed, Run, Stop, frame
from jobd.tasks.runner import Snoozed, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.tasks.isolated.process import HandlerProcess
    from jobd.tasks.runner import Context

#: Seconds that a cancelled job has to return before its process is killed; a job that returns keeps the process warm.
GRACE_S = 0.5


async def run_job(process: HandlerProcess, payload: Mapping[str, Any], context: Context) -> Any:
    """Run the job and return its result as JSON. However this ends, nothing of the job runs any more afterwards."""
    await process.until(lambda: process.ready or process.refused or process.is_lost)
    if process.ready is None:
        raise await _why_not_ready(process)
    process.jobs += 1
    job = process.job = IsolatedJob(process.jobs, context)
    try:
        job.is_asked = await process.write(job.request(payload))
        await process.until(lambda: job.is_over or process.is_lost)
    except anyio.get_cancelled_exc_class():
        job.emitter.muted = True
        with anyio.CancelScope(shield=True):
            await _stop(process, job)
        raise
    finally:
        process.hear_rest()
        job.close()
        process.job = None
    if not job.is_over:
        with anyio.CancelScope(shield=True):
            raise job.why(await process.end(), process.nonsense)
    return job.outcome()


async def _stop(process: HandlerProcess, job: IsolatedJob) -> None:
    """Ask the process to end its job; one that does not within `GRACE_S` is killed."""
    if job.is_asked:
        with anyio.move_on_after(GRACE_S):
            await process.write(frame(Stop(n=job.n)))
            await process.until(lambda: job.is_over or process.is_lost)
    if not job.is_over:
        await process.end()


async def _why_not_ready(process: HandlerProcess) -> TaskFailed:
    refused, oom = process.refused, oom_kills()
    code = await process.end()
    if refused is not None:
        return TaskFailed("import_failed", refused)
    why = why_ended(code, oom)
    why.message = f"its process ended before the handler was imported: {why.message}"
    why.stack = process.early_lines()
    return why


class IsolatedJob:
    def __init__(self, n: int, context: Context) -> None:
        self.n = n
        self.context = context
        self.emitter = EventEmitter(context)
        #: Lines of stdout and of stderr.
        self.lines = LogLines(self.emitter), LogLines(self.emitter)
        self.is_asked = False
        self.is_done = False
        self.result: bytes | None = None
        self.failed: Failed | None = None
        self._oom_kills = oom_kills()

    def request(self, payload: Mapping[str, Any]) -> bytes:
        context = self.context
        return frame(
            Run(
                n=self.n,
                job_id=context.job_id,
                task=context.task,
                attempt=context.attempt,
                max_attempts=context.max_attempts,
                left_s=context.left_s,
                payload=dict(payload),
                traceparent=context.traceparent,
                tracestate=context.tracestate,
                inputs=dict(context.inputs),
            )
        )

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.failed is not None

    def emit(self, event: EmittedEvent) -> None:
        if not self.emitter.muted:
            try:
                self.context.event(event.kind, event.data, event.step)
            except ValueError as error:
                raise BadFrame(str(error)) from None

    def close(self) -> None:
        for lines in self.lines:
            lines.close()
        self.emitter.log_dropped()

    def outcome(self) -> Any:
        if self.failed is not None:
            failed = self.failed
            if failed.snooze_s is not None:
                raise Snoozed(failed.snooze_s)
            raise TaskFailed(failed.code, failed.message, retryable=failed.retryable, stack=failed.stack)
        assert self.result is not None
        return msgspec.Raw(self.result)

    def why(self, code: int | None, nonsense: str) -> TaskFailed:
        """Why the process ended, or had to, in the middle of it."""
        failed = why_ended(code, self._oom_kills)
        if nonsense:
            failed = TaskFailed("killed", f"the handler's process wrote into jobd's own pipe and was ended: {nonsense}")
        failed.stack = self.lines[1].tail()
        if failed.stack and failed.code == "exited":
            failed.message = f"{failed.message}: {failed.stack.splitlines()[-1]}"[:MESSAGE_CHARACTERS]
        return failed


def why_ended(code: int | None, oom_kills_before: int) -> TaskFailed:
    if code is None or code >= 0:
        return TaskFailed("exited", f"the handler's process ended with exit code {code}")
    name = signal_name(-code)
    if -code == signal.SIGKILL and oom_kills() > oom_kills_before:
        return TaskFailed("oom", f"the handler's process was killed by {name}: out of memory")
    return TaskFailed("killed", f"the handler's process was killed by {name}")
