"""Reports the outcome of the jobs that slots have run: complete, fail or release.

Small results are reported by the batch: what gathers while one batch is being written goes in the next, and the commit
that finishes them takes the next jobs. Everything else (a failure, a large result, events that are not written yet, a
result whose batch got no answer) is reported alone, and tried again while Postgres is away, for as long as the lease is
this process's. A job whose lease is lost is never written to.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec

from jobd.dispatch.job_run import LAST_REPORT_S
from jobd.engine.engine import is_item_error
from jobd.engine.results import KeptResult, ResultNotKept
from jobd.job.model import Completed, Conflicting, Superseded
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.fail import Failure
from jobd.lifecycle.release import Release
from jobd.supervise.wakeup import Wakeup
from jobd.tasks.event_buffer import EventKeeper
from jobd.tasks.failure import error_text
from jobd.tasks.runner import Snoozed, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from anyio.abc import TaskGroup

    from jobd.config.model import Config
    from jobd.dispatch.job_run import JobRun
    from jobd.lifecycle.report import Held

log = logging.getLogger(__name__)

#: Seconds for which a report is tried again while the lease is kept; one lease time, if that is longer.
REPORT_S = 120.0
#: Seconds between two tries to write a report while Postgres is away.
RETRY_S = 0.25


class ReportTaker(EventKeeper, Protocol):
    """Takes reports. One that raises is made again, as long as the lease is kept; of `complete`, TaskFailed is what to
    report instead, and ResultNotKept likewise. An exception among the answers of `complete_many` is as one raised.
    """

    async def complete(self, report: Completion) -> object: ...
    async def complete_many(self, reports: Sequence[Completion]) -> Sequence[object]: ...
    async def fail(self, report: Failure) -> object: ...
    async def release(self, holder: Held) -> object: ...


class ResultKeeper(Protocol):
    async def keep(self, job: Held, result: bytes) -> str | None:
        """The `result_ref` to report; None: report it inline."""
        ...

    async def keep_pieces(self, job: Held, pieces: Iterator[bytes]) -> KeptResult | bytes:
        """The same for a large result as it is encoded; bytes: report them inline."""
        ...


class Reports:
    def __init__(
        self,
        engine: ReportTaker,
        results: ResultKeeper,
        config: Callable[[], Config],
        until_gone: Callable[[JobRun], Awaitable[None]],
        on_written: Callable[[Sequence[JobRun]], None],
    ) -> None:
        self._engine = engine
        self._results = results
        self._config = config
        #: Returns when nothing of a cancelled attempt runs any more.
        self._until_gone = until_gone
        #: Called for jobs whose report is written, or will never be.
        self._on_written = on_written
        #: Small results that wait for the next batch.
        self._waiting: list[tuple[JobRun, bytes]] = []
        #: The batch that is being written.
        self._writing: list[tuple[JobRun, bytes]] = []
        self._wakeup = Wakeup()

    # -- by the batch ------------------------------------------------------------------------------------------------

    def add(self, run: JobRun, result: bytes) -> None:
        """Report a small result with the next batch."""
        self._waiting.append((run, result))
        if len(self._waiting) == 1:
            self._wakeup.set()

    async def run(self, tasks: TaskGroup) -> None:
        """Write batches until cancelled; what is left then is written within LAST_REPORT_S."""
        try:
            while True:
                await self._wakeup.wait(REPORT_S)
                while self._waiting:
                    for run, result in await self._write_batch():
                        tasks.start_soon(self.write, run, result)
        finally:
            with anyio.move_on_after(LAST_REPORT_S, shield=True):
                self._waiting = self._writing + self._waiting  # the same report again is answered the same
                while self._waiting:
                    for run, result in await self._write_batch():
                        run.hand_back()
                        await self.write(run, result)

    async def _write_batch(self) -> list[tuple[JobRun, bytes]]:
        """Write what waits; those are returned that have to be reported alone."""
        self._writing = batch = self._waiting
        self._waiting = []
        sent = [(run, result) for run, result in batch if run.may_report]
        answers = await self._engine.complete_many([_completion(run, result) for run, result in sent]) if sent else ()
        again: list[tuple[JobRun, bytes]] = []
        written = [run for run, _ in batch if not run.may_report] if len(sent) < len(batch) else []
        for run in written:
            log.warning("nothing was written about an attempt: its lease is lost", extra=run.log_fields)
        for (run, result), answer in zip(sent, answers, strict=True):
            if isinstance(answer, Exception):
                again.append((run, result))
            else:
                _note(run, result, answer)
                written.append(run)
        self._writing = []
        self._on_written(written)
        return again

    # -- alone -------------------------------------------------------------------------------------------------------

    async def write(self, run: JobRun, result: bytes | KeptResult | TaskFailed | None) -> None:
        """Write the report of one job, which may take until its lease ends."""
        try:
            await self._report(run, result)
        finally:
            self._on_written([run])
        if run.stopped:
            await self._until_gone(run)

    async def _report(self, run: JobRun, result: bytes | KeptResult | TaskFailed | None) -> None:
        """Write the outcome, tried again until it is answered; nothing once the lease is lost."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + run.report_s) as run.report_scope:
            run.report_within(max(REPORT_S, run.hold.ttl_s(self._config().leases)))
            if run.handed_back:  # only then may another node begin with it
                await self._until_gone(run)
            if not run.hold.is_lost:
                await run.write_events()
            while run.may_report:
                try:
                    _note(run, result, await self._write(run, result))
                    return
                except Exception as error:  # a report is idempotent: if it was written, it gets the same answer again
                    log.debug("not reported yet: %s", error, extra=run.log_fields)
                    instead = _reported_instead(error) if isinstance(result, (bytes, KeptResult)) else None
                    if instead is None:
                        await anyio.sleep(RETRY_S)
                    else:
                        result = instead
        why = "its lease is lost" if run.hold.is_lost else "no answer came; its lease will end"
        run.hold.lost.set()  # given up: what is left of it is for the reaper, and no claim whose answer was lost
        log.warning("nothing was written about an attempt: %s", why, extra=run.log_fields)

    def _write(self, run: JobRun, result: bytes | KeptResult | TaskFailed | None) -> Awaitable[object]:
        if isinstance(result, (bytes, KeptResult)):
            return self._complete(run, result)
        if result is None:
            return self._engine.release(run.hold.held)
        proof: dict[str, Any] = msgspec.structs.asdict(run.hold.held)
        if isinstance(result, Snoozed):
            return self._engine.release(Release(**proof, delay_s=result.delay_s))
        error = error_text(result)
        proof["outcome_hash"] = hashlib.sha256(error.encode()).digest()
        return self._engine.fail(Failure(**proof, error=error, retryable=result.retryable))

    async def _complete(self, run: JobRun, result: bytes | KeptResult) -> object:
        if isinstance(result, KeptResult):
            held = run.hold.held
            proof: dict[str, Any] = msgspec.structs.asdict(held) | {"outcome_hash": result.digest}
            return await self._engine.complete(Completion(**proof, result_ref=result.ref))
        ref = await self._results.keep(run.hold.held, result)
        return await self._engine.complete(_completion(run, result, ref))


def _completion(run: JobRun, result: bytes, ref: str | None = None) -> Completion:
    job = run.job
    return Completion(
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        lease_token=job.lease_token,
        outcome_hash=hashlib.sha256(result).digest(),
        result=result.decode() if ref is None else None,
        result_ref=ref,
    )


def _reported_instead(error: Exception) -> TaskFailed | None:
    """What to report of a job whose result is refused; None: nothing is known about the result."""
    if isinstance(error, TaskFailed):
        return error
    if isinstance(error, ResultNotKept):
        return TaskFailed(error.code, str(error))
    if is_item_error(error):
        return TaskFailed("bad_result", f"the result cannot be stored: {type(error).__name__}", retryable=False)
    return None


def _note(run: JobRun, result: bytes | KeptResult | TaskFailed | None, answer: object) -> None:
    if type(answer) is Completed:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s is done", run.job.task, extra=run.log_fields)
    elif isinstance(answer, (Superseded, Conflicting)):
        log.warning("an attempt ended too late, its job was taken over", extra=run.log_fields)
    elif isinstance(result, Snoozed):
        log.debug("%s is put off for %g s", run.job.task, result.delay_s, extra=run.log_fields)
    elif isinstance(result, TaskFailed):
        log.info("%s failed: %s", run.job.task, result.code, extra=run.log_fields)
