"""The batch service: on every node, it carries batches on, one bounded step of each after the other.

    validating   -> failed | in_progress     all lines are looked at
    in_progress  -> finalizing               lines become jobs, until all have ended or the window is over
    finalizing   -> completed | expired      the files are made
    cancelling   -> cancelled                the same, after its jobs were canceled

All that it needs is in the rows: after a kill, the next round goes on where the last commit was. An advisory lock keeps
two nodes from doing the same step. The input lies on the disk of one node, and that one does the work; others that
cannot read it leave the batch to it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

import anyio
import asyncpg
import msgspec
from anyio import to_thread

from jobd.batches.finish import Finish
from jobd.batches.submit import AHEAD, Submitted, submit_some
from jobd.batches.table import (
    FINAL,
    cancel_batch,
    fail_batch,
    finalize_batch,
    finish_batch,
    list_open_batches,
    read_batch,
)
from jobd.batches.validate import Validation, end_validation
from jobd.engine.bulk import change_jobs
from jobd.errors import ServerDown
from jobd.files.storage import FileLost, FileNotKept
from jobd.files.table import read_file_refs
from jobd.lifecycle.search import JobFilter
from jobd.openai.batch_objects import BatchFault, batch_id_text
from jobd.store.leader import leading_once
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from uuid import UUID

    from jobd.batches.table import StoredBatch
    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.engine.results import Results
    from jobd.files.storage import FileStorage, OpenFile
    from jobd.store.session import Session
    from jobd.supervise.service import Handle
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)

#: Batches that are looked at in a round, the oldest first.
MOST_BATCHES = 100
#: Seconds between two looks while batches are open: jobs may end on other nodes.
OPEN_S = 1.0
#: Seconds between two looks while none is: another node may have made one.
IDLE_S = 10.0
#: Least seconds between two rounds that had nothing to do at once: jobs may end hundreds of times a second.
QUIET_S = 0.1
#: Seconds of work on one batch before the others have their turn.
TURN_S = 0.5
#: Jobs that are canceled in one commit.
CANCEL_BATCH = 500
#: Seconds after its jobs were canceled before that is asked for again: a job that runs may take its time to end.
ASK_AGAIN_S = 10.0
#: Seconds for which a batch is left alone after a fault, such as a full disk, before the next try.
ASIDE_S = 10.0


class Stopping(Exception):
    """Raised within a step: jobd ends, and what was done of it does not count."""


class BatchService:
    def __init__(
        self,
        engine: Engine,
        files: FileStorage,
        results: Results,
        config: Callable[[], Config],
        runners: Mapping[str, Runner],
    ) -> None:
        self._engine = engine
        self._database = engine.database
        self._files = files
        self._results = results
        self._config = config
        self._runners = runners
        #: Set when a batch was made or cancelled on this node.
        self.wakeup = Wakeup()
        #: Validations under way, by batch.
        self._validations: dict[UUID, Validation] = {}
        #: When, by time.monotonic(), the jobs of a batch were last canceled.
        self._asked: dict[UUID, float] = {}
        #: Until when, by time.monotonic(), batches with a fault are left alone.
        self._aside: dict[UUID, float] = {}

    async def run(self, handle: Handle) -> None:
        handle.ready()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.wakeup.set_when, handle.stop)
                while not handle.stop.is_set():
                    began = time.monotonic()
                    is_open, has_more = await self.run_once(handle)
                    handle.beat()
                    if not has_more:
                        await self._rest(handle, is_open, began)
        finally:
            self._forget(set())

    async def run_once(self, handle: Handle) -> tuple[bool, bool]:
        """A turn for each open batch: whether there are any, and whether one has more to do at once."""
        batch_ids = await list_open_batches(self._database, most=MOST_BATCHES)
        self._forget(set(batch_ids))
        has_more = False
        for batch_id in batch_ids:
            if handle.stop.is_set():
                break
            if time.monotonic() < self._aside.get(batch_id, 0.0):
                continue
            try:
                has_more = await self._turn(batch_id, handle) or has_more
            except Stopping:
                break
            except (ServerDown, asyncpg.PostgresError):
                raise  # it is not about this batch
            except Exception as error:  # the others go on
                self._aside[batch_id] = time.monotonic() + ASIDE_S
                is_full = isinstance(error, FileNotKept)
                log.log(
                    logging.WARNING if is_full else logging.ERROR,
                    "%s waits for %g s: %s",
                    *(batch_id_text(batch_id), ASIDE_S, error),
                    exc_info=None if is_full else error,
                )
        return bool(batch_ids), has_more

    async def _rest(self, handle: Handle, is_open: bool, began: float) -> None:
        if not is_open:
            until = time.monotonic() + IDLE_S
            while not handle.stop.is_set() and (left_s := until - time.monotonic()) > 0:
                if await self.wakeup.wait(min(left_s, OPEN_S)):
                    return
                handle.beat()
            return
        await anyio.sleep(max(0.0, QUIET_S - (time.monotonic() - began)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_news, tasks.cancel_scope)
            await self._engine.wait_for_settled(OPEN_S)
            tasks.cancel_scope.cancel()

    async def _until_news(self, scope: anyio.CancelScope) -> None:
        if await self.wakeup.wait(OPEN_S):
            scope.cancel()

    def _forget(self, open_ids: set[UUID]) -> None:
        for batch_id in self._validations.keys() - open_ids:
            self._validations.pop(batch_id).close()
        self._aside = {batch_id: until for batch_id, until in self._aside.items() if batch_id in open_ids}
        self._asked = {batch_id: at for batch_id, at in self._asked.items() if batch_id in open_ids}

    # -- one batch ---------------------------------------------------------------------------------------------

    async def _turn(self, batch_id: UUID, handle: Handle) -> bool:
        """Carry a batch on for a moment; whether it has more to do at once."""
        async with leading_once(self._database, _lock_key(batch_id)) as session:
            if session is None:
                return False
            until = time.monotonic() + TURN_S
            while not handle.stop.is_set() and time.monotonic() < until:
                batch = await read_batch(self._database, batch_id)
                if batch is None or batch.status in FINAL:
                    return False
                if not await self._step(batch, handle):
                    return False
                handle.beat()
            return True

    async def _step(self, batch: StoredBatch, handle: Handle) -> bool:
        """One step; False: there is nothing to do before something else happens."""
        if batch.is_over and batch.status in ("validating", "in_progress"):
            return await finalize_batch(self._database, batch.id, "expired")
        if batch.status == "cancelling" or (batch.status == "finalizing" and batch.ending != "completed"):
            if batch.in_progress_at is None:
                return await self._end_without_jobs(batch)
            if not batch.is_settled:
                return await self._cancel_jobs(batch)
        if batch.status == "validating":
            return await self._with_input(batch, self._validate, handle)
        if batch.status == "in_progress":
            if batch.is_settled:
                return await finalize_batch(self._database, batch.id, "completed")
            if batch.is_sealed or batch.pending >= AHEAD:
                return False
            return await self._with_input(batch, self._submit, handle)
        return await self._with_input(batch, self._finish, handle)

    async def _with_input(
        self, batch: StoredBatch, step: Callable[[StoredBatch, OpenFile, Handle], Awaitable[bool]], handle: Handle
    ) -> bool:
        """Take a step that reads the input, if it is on this node."""
        if batch.id in self._validations:
            return await self._go_on_validating(batch, self._validations[batch.id])
        refs = await read_file_refs(self._database, [batch.input_file_id])
        try:
            if not refs:
                raise FileLost("its row was deleted")
            opened = await self._files.open(refs.pop())
        except FileLost as error:
            if error.node is not None:
                return False
            return await self._lose(batch, error)
        with contextlib.ExitStack() as stack:
            stack.enter_context(opened.file)
            has_more = await step(batch, opened, handle)
            if batch.id in self._validations:
                stack.pop_all()  # it is closed when the validation has ended
            return has_more

    async def _lose(self, batch: StoredBatch, error: FileLost) -> bool:
        """Without its input a batch cannot go on, nor say which answer belongs to which line."""
        if batch.in_progress_at is not None and not batch.is_settled:
            return await self._cancel_jobs(batch)
        fault = BatchFault(code="input_lost", message=f"the input file is not to be had any more: {error}")
        return await fail_batch(self._database, batch.id, msgspec.json.encode([fault]).decode(), batch.total)

    # -- the steps ---------------------------------------------------------------------------------------------

    async def _validate(self, batch: StoredBatch, opened: OpenFile, _: Handle) -> bool:
        validation = Validation(batch, opened.file, self._config(), self._runners)
        self._validations[batch.id] = validation
        return await self._go_on_validating(batch, validation)

    async def _go_on_validating(self, batch: StoredBatch, validation: Validation) -> bool:
        is_over = True
        try:
            is_over = await to_thread.run_sync(validation.step)
            if is_over:
                await end_validation(self._database, batch, validation)
        finally:
            if is_over:  # or it failed, and begins again
                del self._validations[batch.id]
                validation.close()
        return True

    async def _submit(self, batch: StoredBatch, opened: OpenFile, _: Handle) -> bool:
        submitted = await submit_some(self._engine, batch, opened.file, self._config(), self._runners)
        if submitted is Submitted.ALL:
            await self._engine.seal_group(batch.id)
        elif submitted is Submitted.SEALED:
            log.info("%s is cancelled: its group was", batch_id_text(batch.id))
            await cancel_batch(self._database, batch.id)
        return submitted is not Submitted.FULL

    async def _cancel_jobs(self, batch: StoredBatch) -> bool:
        """Cancel jobs that have not ended; False: the last ones are about to end."""
        if time.monotonic() < self._asked.get(batch.id, 0.0) + ASK_AGAIN_S:
            return False
        await self._engine.seal_group(batch.id)

        async def record(session: Session, number: int) -> None:
            """The change of the batch is what was asked for."""

        before: UUID | None = None
        while True:
            done = await change_jobs(
                self._engine, "cancel", JobFilter(group=batch.id), most=CANCEL_BATCH, before=before, record=record
            )
            before = getattr(done, "next_before", None)
            if before is None:
                break
        self._asked[batch.id] = time.monotonic()
        now = await read_batch(self._database, batch.id)
        return now is not None and now.is_settled

    async def _end_without_jobs(self, batch: StoredBatch) -> bool:
        return await finish_batch(
            self._database,
            batch.id,
            completed=0,
            failed=0,
            usage=None,
            output_file_id=None,
            error_file_id=None,
        )

    async def _finish(self, batch: StoredBatch, opened: OpenFile, handle: Handle) -> bool:
        def beat() -> None:
            handle.beat()
            if handle.stop.is_set():
                raise Stopping

        finish = Finish(self._database, self._files, self._results, batch, self._config())
        await finish.run(opened.file, beat)
        return True


def _lock_key(batch_id: UUID) -> int:
    """Of the advisory lock of a batch: the last 63 bits of its id, which are random."""
    return batch_id.int & ((1 << 63) - 1)
