"""The slots: `queues.NAME.slots` jobs of each queue run in this process at once.

A slot takes one job and carries it through the same few steps: hold its lease, find its runner, read its payload, run
it, report. While it runs, four things may stop it: its time is up, it is to be canceled, its lease is lost, jobd stops.
Each cancels the runner; then the attempt has failed, was canceled, is left alone, or is handed back uncharged. A job is
handed back only when nothing of its attempt runs any more; of a thread that does not end in time the lease will end.

The report comes last, is written even if jobd stops meanwhile, and is tried again while Postgres is away, for as long
as the lease is this process's. A job whose lease is lost is never written to. While a result is being written, the slot
takes its next job already, but it waits with that one's report. A queue with one slot does its jobs strictly in turn.

Where jobs come from and where their end is written is not the slots' business: in `jobd serve` that is the dispatcher
and the engine, in `jobd worker` a jobd elsewhere. `Intake`, `Desk` and `ResultKeeper` say what they need of either.

A task that nothing here can run (`external`, or gone from the configuration) fails with `no_runner`, retryable: in a
cluster another node may know it, and if none does the job ends as a dead letter that tells why.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec

from jobd.engine.engine import is_item_error
from jobd.engine.results import KeptResult, ResultNotKept
from jobd.job.model import Completed, Conflicting, Superseded
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.fail import Failure
from jobd.tasks.event_buffer import EventKeeper, EventSink
from jobd.tasks.failure import error_text, failure_of
from jobd.tasks.runner import Context, TaskFailed
from jobd.wire.json_check import BadPayload, TooLarge, check_json
from jobd.wire.json_pieces import is_large, json_pieces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from anyio.abc import TaskGroup

    from jobd.config.model import Config
    from jobd.leases.jobs import Hold, JobLeases
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.report import Held
    from jobd.supervise.service import Handle
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)

#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0
#: Seconds that a report is tried, and at least for one lease time, while the lease is kept.
REPORT_S = 120.0
#: Seconds that a report may take once jobd stops.
LAST_REPORT_S = 2.0
#: Seconds that a report may take once jobd was told to hurry (a second signal).
HURRIED_REPORT_S = 0.2
#: Seconds between two tries to write a report while Postgres is away.
RETRY_S = 0.25
#: Last part of a drain in which the jobs that still run are handed back; at most `HAND_BACK_S`.
HAND_BACK_PART = 0.25
#: Longest time in seconds before the end of a drain at which running jobs are handed back.
HAND_BACK_S = 1.0


class Intake(Protocol):
    async def take(self, queues: Sequence[str], owner_id: str) -> list[ClaimedJob]:
        """Wait for a job; cancelled, nothing stays claimed."""
        ...


class Desk(EventKeeper, Protocol):
    """Takes reports. One that raises is made again, as long as the lease is kept; of `complete`, TaskFailed is what to
    report instead, and ResultNotKept likewise.
    """

    async def complete(self, report: Completion) -> object: ...
    async def fail(self, report: Failure) -> object: ...
    async def release(self, holder: Held) -> object: ...


class ResultKeeper(Protocol):
    async def keep(self, job: Held, result: bytes) -> str | None:
        """The `result_ref` to report; None: report it inline."""
        ...

    async def keep_pieces(self, job: Held, pieces: Iterator[bytes]) -> KeptResult | bytes:
        """The same for a large result as it is encoded; bytes: report them inline."""
        ...


class _Run:
    """One job in a slot."""

    def __init__(self, job: ClaimedJob, hold: Hold, sink: EventSink) -> None:
        self.job = job
        self.hold = hold
        self.events = sink.buffer(job, hold.lose)
        self.context = Context(
            job_id=job.job_id,
            task=job.task,
            attempt=job.attempt_no,
            max_attempts=job.max_attempts,
            timeout_s=job.timeout_s,
            emit=self.events.emit,
            lease=hold,
        )
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + job.timeout_s)
        #: Around the report, which has a deadline of its own from its beginning on.
        self.report_scope = anyio.CancelScope(shield=True)
        self.handed_back = False
        #: Whether its handler was started. Before that, a job whose lease is over can be handed back uncharged.
        self.began = False
        hold.on_stop = self.stop

    def stop(self) -> None:
        self.context.cancelled = True
        self.scope.cancel()
        if not self.may_report:
            self.report_scope.cancel()  # nobody would believe it any more

    @property
    def may_report(self) -> bool:
        return not (self.began and self.hold.lost.is_set())

    def hand_back(self, within_s: float = LAST_REPORT_S) -> None:
        self.handed_back = True
        self.stop()
        self.report_within(within_s)

    def report_within(self, seconds: float) -> None:
        self.report_scope.deadline = min(self.report_scope.deadline, anyio.current_time() + seconds)


class Slots:
    def __init__(
        self,
        *,
        engine: Desk,
        dispatcher: Intake,
        leases: JobLeases,
        config: Callable[[], Config],
        runners: Mapping[str, Runner],
        owner_id: str,
        results: ResultKeeper,
    ) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._leases = leases
        self._config = config
        self._runners = runners
        self._owner_id = owner_id
        self._results = results
        self._sink = EventSink(engine)
        self._running: set[_Run] = set()
        self._taking: set[anyio.CancelScope] = set()
        self._stopping = False

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        self._stopping = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sink.run)
                for name, queue in self._config().queues.items():
                    for _ in range(queue.slots):
                        tasks.start_soon(self._work_in_slot, name, tasks if queue.slots > 1 else None)
                handle.ready()
                try:
                    await self._until_stopped(handle)
                    await self._drain()
                finally:
                    for run in self._running:
                        run.hand_back(LAST_REPORT_S if not handle.hurry else HURRIED_REPORT_S)
                tasks.cancel_scope.cancel()
        finally:
            if handle.stop.is_set():
                await self._close_runners()

    async def _until_stopped(self, handle: Handle) -> None:
        while not handle.stop.is_set():
            with anyio.move_on_after(BEAT_S):
                await handle.stop.wait()
            handle.beat()

    async def _drain(self) -> None:
        """Take nothing more, let what runs finish, and hand back the rest while there still is time to write it."""
        self._stopping = True
        for scope in self._taking:
            scope.cancel()
        drain_s = self._config().drain_s
        await self._until_idle(drain_s - min(HAND_BACK_S, drain_s * HAND_BACK_PART))
        if self._running:
            log.info("%d jobs still run and are handed back", len(self._running))
        for run in self._running:
            run.hand_back()
        await self._until_idle(LAST_REPORT_S)

    async def _until_idle(self, most_s: float) -> None:
        deadline = time.monotonic() + most_s
        while self._running and time.monotonic() < deadline:
            await anyio.sleep(0.01)

    async def _close_runners(self) -> None:
        for runner in self._runners.values():
            with anyio.move_on_after(LAST_REPORT_S, shield=True), contextlib.suppress(Exception):
                await runner.close()

    async def _work_in_slot(self, queue: str, tasks: TaskGroup | None) -> None:
        """One job after the other. With `tasks`, the next may begin while the report of the last is being written."""
        reported = anyio.Event()
        reported.set()
        while not self._stopping:
            jobs: list[ClaimedJob] = []
            with anyio.CancelScope() as scope:
                self._taking.add(scope)
                jobs = await self._dispatcher.take((queue,), self._owner_id)
            self._taking.discard(scope)
            for job in jobs:
                run = _Run(job, self._leases.hold(job), self._sink)
                self._running.add(run)
                result = await self._carry(run)
                with anyio.CancelScope(shield=True):  # not for long: that report has its deadline
                    await reported.wait()
                if tasks is not None and isinstance(result, (bytes, KeptResult)):
                    reported = anyio.Event()
                    tasks.start_soon(self._finish, run, result, reported)
                else:
                    await self._finish(run, result, reported)
                result = None  # it may be large, and the next may be long in coming

    async def _carry(self, run: _Run) -> bytes | KeptResult | TaskFailed | None:
        """From its lease to its end; cut off, it is handed back at once."""
        try:
            return await self._result_of(run)
        except anyio.get_cancelled_exc_class():
            run.hand_back()
            await self._finish(run, None, anyio.Event())
            raise

    async def _finish(self, run: _Run, result: bytes | KeptResult | TaskFailed | None, reported: anyio.Event) -> None:
        try:
            await self._report(run, result)
        finally:
            run.events.close()
            self._leases.let_go(run.hold)
            self._running.discard(run)
            reported.set()
        if run.scope.cancel_called:
            await self._until_gone(run)

    async def _until_gone(self, run: _Run) -> None:
        """Keep the slot taken while something of the attempt could not be stopped; its runner knows."""
        runner = self._runners.get(run.job.task)
        if runner is not None:
            await runner.gone(run.context)

    # -- running one job -----------------------------------------------------------------------------------------

    async def _result_of(self, run: _Run) -> bytes | KeptResult | TaskFailed | None:
        """The result as JSON, or why there is none; None if nothing is to be reported."""
        result: bytes | KeptResult | TaskFailed | None = None
        if run.hold.is_over():  # its claim was answered late, or this process stood still: another may have it by now
            run.hand_back()
            return None
        run.began = True
        with run.scope:
            try:
                result = await self._encoded(run.hold.held, await self._run(run))
            except anyio.get_cancelled_exc_class():
                if _is_cancelled():
                    raise
                result = failure_of(RuntimeError("the handler was cancelled from within"))
            except BaseException as error:  # SystemExit too: a handler ends its attempt, not jobd
                result = failure_of(error)
        if run.scope.cancel_called:
            return self._why_stopped(run)
        if _is_cancelled() and isinstance(result, TaskFailed):  # because the slots are cut off
            run.hand_back()
            return None
        return result

    async def _run(self, run: _Run) -> Any:
        runner = self._runners.get(run.job.task)
        if runner is None:
            raise TaskFailed(
                "no_runner",
                f"no slot here runs {run.job.task}, and yet queue {run.job.queue} has slots: configure the task, or"
                " send its jobs to a queue with slots = 0, which only HTTP and raw Redis workers serve",
            )
        payload: dict[str, Any] = msgspec.json.decode(run.job.payload)
        return await runner.run(payload, run.context)

    async def _encoded(self, job: Held, result: object) -> bytes | KeptResult:
        """The result as it is stored. A large one is encoded, checked and put into its file in a thread, in pieces."""
        limits = self._config().limits
        try:
            if not is_large(result, limits.inline_result_bytes):
                text = msgspec.json.encode(result)
                check_json(text, limits.result_bytes)
                return text
            pieces = json_pieces(result, limits.result_bytes)
            del result  # its memory is free as soon as it is encoded
            return await self._results.keep_pieces(job, pieces)
        except TooLarge as error:
            raise TaskFailed(
                "result_too_large",
                f"the result has {error.size} bytes, more than limits.result_bytes = {limits.result_bytes}; keep it"
                " elsewhere and return where",
                retryable=False,
            ) from None
        except BadPayload as error:
            raise TaskFailed("bad_result", f"the result cannot be stored: {error}", retryable=False) from None
        except ResultNotKept as error:
            raise TaskFailed(error.code, str(error)) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise TaskFailed("bad_result", f"the result is not JSON: {error}", retryable=False) from None

    def _why_stopped(self, run: _Run) -> TaskFailed | None:
        if run.hold.lost.is_set() or run.handed_back:
            return None
        if run.hold.cancel.is_set():
            return TaskFailed("canceled", "the job was canceled while it ran", retryable=False)
        return TaskFailed("timeout", f"the attempt took longer than timeout_s = {run.job.timeout_s:g}")

    # -- reporting -----------------------------------------------------------------------------------------------

    async def _report(self, run: _Run, result: bytes | KeptResult | TaskFailed | None) -> None:
        """Write down what came of it. Nothing, once the lease is lost."""
        run.report_within(max(REPORT_S, run.hold.ttl_s(self._config().leases)))
        with run.report_scope:
            if run.handed_back:  # only then may another node begin with it
                await self._until_gone(run)
            if not run.hold.lost.is_set():
                await self._sink.flush(run.events)
            while run.may_report:
                try:
                    self._note(run, result, await self._write(run, result))
                    return
                except Exception as error:  # whatever came of it: the same report again is answered the same
                    log.debug("not reported yet: %s", error, extra=_names(run))
                    is_result = isinstance(result, (bytes, KeptResult))
                    if is_result and isinstance(error, ResultNotKept):
                        result = TaskFailed(error.code, str(error))
                    elif is_result and isinstance(error, TaskFailed):
                        result = error
                    elif is_result and is_item_error(error):
                        message = f"the result cannot be stored: {type(error).__name__}"
                        result = TaskFailed("bad_result", message, retryable=False)
                    else:
                        await anyio.sleep(RETRY_S)
        why = "its lease is lost" if run.hold.lost.is_set() else "no answer came; its lease will end"
        log.warning("nothing was written about an attempt: %s", why, extra=_names(run))

    def _write(self, run: _Run, result: bytes | KeptResult | TaskFailed | None) -> Awaitable[object]:
        if isinstance(result, (bytes, KeptResult)):
            return self._complete(run, result)
        proof: dict[str, Any] = msgspec.structs.asdict(run.hold.held)
        if result is None:
            return self._engine.release(run.hold.held)
        error = error_text(result)
        proof["outcome_hash"] = hashlib.sha256(error.encode()).digest()
        return self._engine.fail(Failure(**proof, error=error, retryable=result.retryable))

    async def _complete(self, run: _Run, result: bytes | KeptResult) -> object:
        proof: dict[str, Any] = msgspec.structs.asdict(run.hold.held)
        if isinstance(result, KeptResult):
            proof["outcome_hash"] = result.digest
            return await self._engine.complete(Completion(**proof, result_ref=result.ref))
        proof["outcome_hash"] = hashlib.sha256(result).digest()
        ref = await self._results.keep(run.hold.held, result)
        text = result.decode() if ref is None else None
        return await self._engine.complete(Completion(**proof, result=text, result_ref=ref))

    def _note(self, run: _Run, result: bytes | KeptResult | TaskFailed | None, answer: object) -> None:
        if isinstance(answer, (Superseded, Conflicting)):
            log.warning("an attempt ended too late, its job was taken over", extra=_names(run))
        elif isinstance(result, TaskFailed):
            log.info("%s failed: %s", run.job.task, result.code, extra=_names(run))
        elif isinstance(answer, Completed):
            log.debug("%s is done", run.job.task, extra=_names(run))


def _is_cancelled() -> bool:
    """Whether this task is being cancelled by one of the scopes around it."""
    return anyio.current_effective_deadline() == -float("inf")


def _names(run: _Run) -> dict[str, str]:
    return {"service": "slots", "job": str(run.job.job_id), "attempt": str(run.job.attempt_no)}
