"""The slots: `queues.NAME.slots` jobs of each queue run in this process at once.

A slot takes one job after the other and carries each through the same few steps: find its runner, read its payload,
run it, report. While it runs, four things may stop it: its time is up, it is to be canceled, its lease is lost, jobd
stops. Each cancels the runner; then the attempt has failed, was canceled, is left alone, or is handed back uncharged. A
job is handed back only when nothing of its attempt runs any more; of a thread that does not end in time the lease ends.

The report comes last, see `reports`. While it is being written the slot takes its next job already. A queue with one
slot does its jobs strictly in turn.

Where jobs come from and where their end is written is not the slots' business: in `jobd serve` that is the dispatcher
and the engine, in `jobd worker` a jobd elsewhere. `Intake`, `ReportTaker` and `ResultKeeper` say what they need.

A task that nothing here can run (`external`, or gone from the configuration) fails with `no_runner`, retryable: in a
cluster another node may know it, and if none does the job ends as a dead letter with that error.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from jobd.board.heat import slots_at
from jobd.board.service import Throttled
from jobd.dispatch.job_run import LAST_REPORT_S, JobRun
from jobd.dispatch.reports import Reports
from jobd.dispatch.slot_pool import SlotPool
from jobd.engine.results import KeptResult, ResultNotKept
from jobd.host.logs import SUBJECT
from jobd.leases.timer import EarliestTimer
from jobd.openai.envelope import envelope_in
from jobd.tasks.event_buffer import EventSink
from jobd.tasks.failure import failure_of
from jobd.tasks.result import RESULT_FAULTS, result_failure
from jobd.tasks.runner import TaskFailed
from jobd.wire.json_check import check_json
from jobd.wire.json_pieces import is_large, json_pieces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from anyio.abc import TaskGroup

    from jobd.board.ledger import MemoryLedger
    from jobd.config.model import Config
    from jobd.dispatch.reports import ReportTaker, ResultKeeper
    from jobd.job.inputs import Input
    from jobd.leases.jobs import JobLeases
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.report import Held
    from jobd.supervise.service import Handle
    from jobd.tasks.runner import Context, Runner
    from jobd.wire.board import HeatLevel

log = logging.getLogger(__name__)

#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0
#: Seconds that a report may take after a second signal to stop, when jobd hurries.
HURRIED_REPORT_S = 0.2
#: Shortest attempt in seconds that is marked if the board was slowed down meanwhile: an event for each of thousands of
#: short jobs would say no more than one.
MARKED_S = 1.0
#: Part of `drain_s`, at its end, that is left for handing back the jobs that still run; at most `HAND_BACK_S`.
HAND_BACK_PART = 0.25
#: Longest time in seconds before the end of a drain at which running jobs are handed back.
HAND_BACK_S = 1.0


class SlotUsage(NamedTuple):
    #: Slots whose job has begun and not ended.
    busy: int
    slots: int


class JobSink(Protocol):
    """The slots of one queue, as those see them who bring jobs."""

    def take_over(self, jobs: Sequence[ClaimedJob], asked: int | None = None) -> None:
        """Jobs were claimed for them, of this many that were asked for; None: as many as are wanted now."""
        ...

    def ask(self, *, at_report: bool = False) -> None:
        """Say how many jobs are wanted now, or of the commit that reports those that have ended."""
        ...


class Intake(Protocol):
    def open(self, queue: str, owner_id: str, sink: JobSink) -> Callable[[int, bool], None]:
        """Bring jobs of the queue to the sink. What is returned says how many more are wanted, 0 at first, and whether
        reports are about to be written, with which they can be taken.
        """
        ...


class ModelServerUse(Protocol):
    def using(self, task: str, context: Context) -> AbstractAsyncContextManager[None]:
        """While a job of this task asks a model server that this process runs, if it asks one."""
        ...


class Slots:
    def __init__(
        self,
        *,
        engine: ReportTaker,
        dispatcher: Intake,
        leases: JobLeases,
        config: Callable[[], Config],
        runners: Mapping[str, Runner],
        owner_id: str,
        results: ResultKeeper,
        read_inputs: Callable[[UUID], Awaitable[Mapping[str, Input]]] | None = None,
        memory: MemoryLedger | None = None,
        throttled: Throttled | None = None,
        model_servers: ModelServerUse | None = None,
    ) -> None:
        """`memory`, `throttled`: of the board under these slots; None: nothing is known of it. `model_servers`: those
        that this process runs; None: none.
        """
        self._dispatcher = dispatcher
        self._leases = leases
        self._config = config
        self._runners = runners
        self._owner_id = owner_id
        self._results = results
        #: What a job gets of those that it waited for; None: that comes with the job.
        self._read_inputs = read_inputs
        self._sink = EventSink(engine)
        self._reports = Reports(engine, results, config, self._until_gone, self._written)
        #: Jobs that were taken and whose report is not written yet.
        self._running: dict[JobRun, _QueueSlots] = {}
        self._deadline = EarliestTimer(self._stop_overdue)
        self._pools: list[_QueueSlots] = []
        self._memory = memory
        self._model_servers = model_servers
        self.throttled = Throttled() if throttled is None else throttled
        self._heat: HeatLevel = "none"

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sink.run)
                tasks.start_soon(self._reports.run, tasks)
                self._pools = [
                    _QueueSlots(self, name, queue.slots, tasks)
                    for name, queue in self._config().queues.items()
                    if queue.slots
                ]
                self.pace(self._heat)
                for pool in self._pools:
                    pool.pool.want = self._dispatcher.open(pool.queue, self._owner_id, pool)
                    for _ in range(pool.pool.slots):
                        tasks.start_soon(pool.work)
                    pool.ask()
                handle.ready()
                try:
                    await self._until_stopped(handle)
                    await self._drain()
                finally:
                    self._hand_back(LAST_REPORT_S if not handle.hurry else HURRIED_REPORT_S)
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
        for pool in self._pools:
            pool.stop()
        drain_s = self._config().drain_s
        await self._until_idle(drain_s - min(HAND_BACK_S, drain_s * HAND_BACK_PART))
        if self._running:
            log.info("%d jobs still run and are handed back", len(self._running))
        self._hand_back(LAST_REPORT_S)
        await self._until_idle(LAST_REPORT_S)

    def _hand_back(self, within_s: float) -> None:
        for pool in self._pools:
            pool.stop()
        for run in list(self._running):
            run.hand_back(within_s)

    async def _until_idle(self, most_s: float) -> None:
        deadline = time.monotonic() + most_s
        while self._running and time.monotonic() < deadline:
            await anyio.sleep(0.01)

    async def _close_runners(self) -> None:
        for runner in self._runners.values():
            with anyio.move_on_after(LAST_REPORT_S, shield=True), contextlib.suppress(Exception):
                await runner.close()

    async def _until_gone(self, run: JobRun) -> None:
        """Keep the slot taken while something of the attempt could not be stopped; its runner knows."""
        runner = self._runners.get(run.job.task)
        if runner is not None and run.context is not None:
            await runner.gone(run.context)

    def take_over(self, pool: _QueueSlots, jobs: Sequence[ClaimedJob]) -> list[JobRun]:
        """Hold the leases of jobs that were taken for the slots of a queue."""
        runs = [JobRun(hold.job, hold, self._sink) for hold in self._leases.hold_all(jobs)]
        self._running.update(dict.fromkeys(runs, pool))
        return runs

    def _written(self, runs: Sequence[JobRun]) -> None:
        """Reports were written, or will never be."""
        if self._memory is not None:
            self._memory.let_go(run.job.lease_token for run in runs)
        self._leases.let_go(*[run.hold for run in runs])
        numbers: dict[_QueueSlots, int] = {}
        for run in runs:
            run.close_events()
            pool = self._running.pop(run, None)
            if pool is not None and run.is_counted:
                run.is_counted = False
                numbers[pool] = numbers.get(pool, 0) + 1
        for pool, number in numbers.items():
            pool.pool.reported(number)

    # -- the board -------------------------------------------------------------------------------------------------

    def pace(self, level: HeatLevel) -> None:
        """Let the slots of hot queues start as many jobs as the heat of the board allows."""
        self._heat = level
        for pool in self._pools:
            if self._config().queues[pool.queue].hot:
                pool.pool.allow(slots_at(level, pool.pool.slots))

    def processes(self) -> dict[UUID, int]:
        """The process of each job that runs in one of its own, by lease token."""
        pids = {run.job.lease_token: run.context.pid for run in self._running if run.context is not None}
        return {token: pid for token, pid in pids.items() if pid}

    def usage(self) -> dict[str, SlotUsage]:
        """By queue; nothing before the slots have begun."""
        return {pool.queue: SlotUsage(pool.pool.busy, pool.pool.slots) for pool in self._pools}

    # -- running one job -------------------------------------------------------------------------------------------

    async def result_of(self, run: JobRun) -> bytes | KeptResult | TaskFailed | None:
        """The result as JSON, or why there is none; None: the job is released, or its lease is lost."""
        if run.stopped or run.hold.is_over():  # claimed late, or this process stood still: another may have it by now
            if not run.stopped:
                run.hand_back()
            return run.why_stopped()
        SUBJECT.set(run)
        context = run.begin()
        self._deadline.watch(context.deadline)
        try:
            return await self._encoded(run.hold.held, await self._run(run))
        except anyio.get_cancelled_exc_class():
            if run.scope is None or run.scope.cancel_called or _is_cancelled():
                raise
            return failure_of(RuntimeError("the handler was cancelled from within"))
        except BaseException as error:  # SystemExit too: a handler ends its attempt, not jobd
            return failure_of(error)

    def _stop_overdue(self) -> list[float]:
        now, left = time.monotonic(), []
        for run in list(self._running):
            if run.scope is not None and run.context is not None and not run.stopped:
                if run.context.deadline <= now:
                    run.stop()
                else:
                    left.append(run.context.deadline)
        return left

    async def _run(self, run: JobRun) -> Any:
        runner = self._runners.get(run.job.task)
        if runner is None:
            raise TaskFailed(
                "no_runner",
                f"no slot here runs {run.job.task}, and yet queue {run.job.queue} has slots: configure the task, or"
                " send its jobs to a queue with slots = 0, which only HTTP and raw Redis workers serve",
            )
        assert run.context is not None  # it has begun
        payload: dict[str, Any] = msgspec.json.decode(run.job.payload)
        if (envelope := envelope_in(payload)) is not None:
            run.told_once = envelope.told_once
        if run.job.inputs is not None:
            run.context.inputs = run.job.inputs
        elif run.job.has_inputs and self._read_inputs is not None:
            run.context.inputs = await self._read_inputs(run.job.job_id)
        if self._model_servers is None:
            return await runner.run(payload, run.context)
        async with self._model_servers.using(run.job.task, run.context):
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
        except ResultNotKept as error:
            raise TaskFailed(error.code, str(error)) from None
        except RESULT_FAULTS as error:
            raise result_failure(error, limits.result_bytes) from None

    async def report(self, run: JobRun, result: bytes | KeptResult | TaskFailed | None) -> None:
        await self._reports.write(run, run.final(result) if isinstance(result, TaskFailed) else result)

    def goes_by_the_batch(self, run: JobRun, result: object) -> bool:
        """Whether a result is small and nothing of its job has to be written before it."""
        return (
            type(result) is bytes
            and len(result) <= self._config().limits.inline_result_bytes
            and not run.has_events
            and not run.stopped
        )

    def add_to_batch(self, run: JobRun, result: bytes) -> None:
        self._reports.add(run, result)


class _QueueSlots:
    """The slots of one queue at work."""

    def __init__(self, slots: Slots, queue: str, number: int, tasks: TaskGroup) -> None:
        self.queue = queue
        self.pool = SlotPool(queue, number, self._hand_back)
        self._slots = slots
        self._tasks = tasks

    # -- jobs in ---------------------------------------------------------------------------------------------------

    def take_over(self, jobs: Sequence[ClaimedJob], asked: int | None = None) -> None:
        runs = self._slots.take_over(self, jobs)
        if self.pool.is_stopping:
            self._hand_back(runs)
        else:
            self.pool.hand_over(runs, asked)

    def ask(self, *, at_report: bool = False) -> None:
        self.pool.ask(at_report=at_report)

    def stop(self) -> None:
        self._hand_back(self.pool.stop())

    def _hand_back(self, runs: Sequence[JobRun]) -> None:
        """Jobs that were not begun."""
        for run in runs:
            run.hand_back()
            self._tasks.start_soon(self._slots.report, run, None)

    # -- slots -----------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """One slot: jobs one after the other, until the slots stop."""
        while True:
            run = self.pool.next()
            if run is not None:
                await self._work_off(run)
            elif self.pool.is_stopping:
                return
            else:
                SUBJECT.set(None)
                await self.pool.wait_for_job()

    async def _work_off(self, run: JobRun) -> None:
        """Run jobs until none waits, or one ends in another way than with a small result."""
        result: bytes | KeptResult | TaskFailed | None = None
        took_s = 0.0
        try:
            with anyio.CancelScope() as scope:
                while True:
                    run.scope = scope
                    started_at = time.monotonic()
                    result = await self._slots.result_of(run)
                    run.scope = None
                    ended_at = time.monotonic()
                    took_s = ended_at - started_at
                    if took_s >= MARKED_S and self._slots.throttled.seen_at >= started_at:
                        run.mark_throttled(self._slots.throttled.by)
                    if not self._slots.goes_by_the_batch(run, result):
                        break
                    assert isinstance(result, bytes)
                    self._slots.add_to_batch(run, result)
                    run.is_counted = True
                    self.pool.ended(took_s)
                    following = self.pool.next()
                    if following is None:
                        self.pool.ask()
                        return
                    run, result = following, None
                    if not self.pool.has_turn(ended_at):
                        await checkpoint()
        except anyio.get_cancelled_exc_class():  # the slots are cut off
            run.scope = None
            run.hand_back()
            await self._slots.report(run, None)
            self.pool.ended(took_s, is_reported=True)
            raise
        run.scope = None
        await self._report_alone(run, run.why_stopped() if run.stopped else result, took_s)

    async def _report_alone(self, run: JobRun, result: bytes | KeptResult | TaskFailed | None, took_s: float) -> None:
        """A result is written while the slot goes on, unless it is the only one; with other reports the slot waits."""
        if isinstance(result, (bytes, KeptResult)) and self.pool.slots > 1:
            run.is_counted = True
            self.pool.ended(took_s)
            self._tasks.start_soon(self._slots.report, run, result)
        else:
            try:
                await self._slots.report(run, result)
            finally:
                self.pool.ended(took_s, is_reported=True)
        self.pool.ask()


def _is_cancelled() -> bool:
    """Whether this task is being cancelled by one of the scopes around it."""
    return anyio.current_effective_deadline() == -float("inf")
