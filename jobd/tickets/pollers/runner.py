"""The runner: submits the job of each work order, waits for it, and keeps what comes of it.

It holds the claim of a work order from the submission to the bundle, and renews it, all claims with one statement;
while jobs run for hours it holds no transaction and no slot. A runner that dies loses its claims and nothing else: the
next one submits the same job again, which is the same job, and goes on waiting.
A job that has used up the budget of its work order is canceled.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio
import asyncpg
import msgspec
from anyio import to_thread

from jobd.engine import batch
from jobd.engine.results import ResultLost
from jobd.lifecycle.enqueue import Created, Existing, KeyMismatch
from jobd.tickets.pollers.claims import ClaimKeeper
from jobd.tickets.pollers.poller import PAGE, Poller
from jobd.tickets.pollers.run import (
    Bundle,
    bundle_of,
    execute,
    failed,
    find_open_workorders,
    job_for,
    read_for_run,
    watch_jobs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.engine.results import Results
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.tickets.pollers.claims import Claim
    from jobd.tickets.pollers.run import Order
    from jobd.tickets.wakeups import Wakeups

log = logging.getLogger(__name__)

#: Work orders that one runner waits for at once.
MOST_HELD = 2_000
#: Bytes of the largest output that is copied out of its file into the database. A larger one stays in its file, and its
#: job, which has the file, is kept for as long as the ticket.
OUTPUT_BYTES = 16 << 20
#: Shortest pause between two checks of finished jobs in seconds, a debounce: jobs that end meanwhile are read together.
SHORTEST_GAP_S = 0.05
#: Longest pause between two checks of finished jobs in seconds.
LONGEST_GAP_S = 1.0
#: The pause after a check, as a multiple of the time that the check took.
GAP_FACTOR = 5
#: Times that a work order is left to other nodes because its output is in a file of one of them.
PASSES = 3
#: Seconds that a work order is left to other nodes, each time.
PASS_S = 5.0
#: Seconds after which the count of these times is forgotten, to bound memory.
FORGET_S = 600.0


class _Held:
    """A work order whose job is waited for."""

    def __init__(self, claim: Claim, order: Order) -> None:
        self.claim = claim
        self.order = order
        self.is_submitted = order.is_submitted


class RunnerPoller(Poller):
    claims: ClaimKeeper

    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        wakeups: Wakeups,
        owners: OwnerNames,
        engine: Engine,
        results: Results,
    ) -> None:
        super().__init__("runner", database, config, wakeups, wakeups.runner)
        self.claims = ClaimKeeper(database, "WORKORDER", owners.of(self.name), config)
        self._engine = engine
        self._results = results
        self._held: dict[UUID, _Held] = {}
        self._took_s = 0.0
        #: Work orders left to other nodes: how many times, and until when by time.monotonic().
        self._passed: dict[UUID, tuple[int, float]] = {}

    async def run(self, handle: Handle) -> None:
        self._held.clear()
        try:
            await super().run(handle)
        finally:
            self._wakeups.awaited_jobs = ()

    async def run_once(self) -> bool:
        began = time.monotonic()
        is_full = await self._take_on()
        # Before the jobs are read: one that ends after the read sets the wakeup.
        self._wakeups.awaited_jobs = {held.order.job_id for held in self._held.values()}
        await self._submit()
        await self._watch()
        self._took_s = time.monotonic() - began
        return is_full

    async def _wait(self, handle: Handle) -> None:
        if self._held:
            await anyio.sleep(min(LONGEST_GAP_S, max(SHORTEST_GAP_S, GAP_FACTOR * self._took_s)))
            await self._wait_for_wakeup(handle, self._poll_s())  # a job may end elsewhere, or use up its budget
        else:
            await super()._wait(handle)

    # -- taking on -----------------------------------------------------------------------------------------------

    async def _take_on(self) -> bool:
        room = min(PAGE, MOST_HELD - len(self._held))
        order_ids = await find_open_workorders(self._database, most=room) if room > 0 else []
        wanted = [order_id for order_id in order_ids if self._passed.get(order_id, (0, 0.0))[1] <= time.monotonic()]
        claimed = await self.claims.acquire(wanted) if wanted else []
        orders = await read_for_run(self._database, [claim.resource_id for claim in claimed]) if claimed else {}
        for claim in claimed:
            if claim.resource_id in orders and not claim.is_lost:
                self._hold(claim, orders[claim.resource_id])
        await self.claims.release([claim for claim in claimed if claim.resource_id not in orders])
        return len(wanted) == PAGE

    def _hold(self, claim: Claim, order: Order) -> None:
        def lost() -> None:
            log.warning("the claim of work order %s was lost; another runner goes on with it", order.work_order_id)
            self._held.pop(order.work_order_id, None)

        claim.on_stop = lost
        self._held[order.work_order_id] = _Held(claim, order)

    # -- submitting ----------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        waiting = [held for held in self._held.values() if not held.is_submitted]
        if waiting:
            refused: list[Bundle] = []
            async with anyio.create_task_group() as tasks:
                for held in waiting:
                    tasks.start_soon(self._submit_one, held, refused)
            await self._finish(refused)

    async def _submit_one(self, held: _Held, refused: list[Bundle]) -> None:
        """An order that cannot be submitted now is tried again at the next poll; one that never can ends in error."""
        order = held.order
        job = job_for(order, self._config())
        if job is None:
            refused.append(self._failed(held, "unknown_task", f"there is no task {order.task} any more"))
            return
        try:
            answer = await self._engine.enqueue(job)
        except asyncpg.UniqueViolationError:  # its key was forgotten, the job was not
            held.is_submitted = True
        except (batch.BatcherFull, batch.Closed, batch.OutcomeUnknown) as error:
            log.debug("work order %s is submitted later: %s", order.work_order_id, error)
        else:
            held.is_submitted = isinstance(answer, Created | Existing)
            if isinstance(answer, KeyMismatch):
                refused.append(self._failed(held, "key_mismatch", "its idempotency key stands for another job"))

    def _failed(self, held: _Held, code: str, message: str) -> Bundle:
        return failed(held.order.work_order_id, held.claim.record.lease_token, "ERROR", code, message)

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        submitted = [held.order.work_order_id for held in self._held.values() if held.is_submitted]
        if not submitted:
            return
        bundles, overdue = [], []
        for seen in await watch_jobs(self._database, submitted):
            held = self._held.get(seen.work_order_id)
            bundle = None if held is None else bundle_of(seen, held.claim.record.lease_token)
            if held is not None and bundle is not None:
                whole = await self._with_output(bundle)
                if whole is not None or not await self._pass_on(held):
                    bundles.append(whole or bundle)
            elif seen.is_overdue and not seen.cancel_requested:
                overdue.append(seen.job_id)
        if overdue:
            await self._engine.cancel(overdue)
        await self._finish(bundles)

    async def _with_output(self, bundle: Bundle) -> Bundle | None:
        """An output in a file is taken out of it, since the file goes when the job does; None: the file is not here."""
        if bundle.output_ref is None:
            return bundle
        try:
            opened = await self._results.open(bundle.output_ref)
        except ResultLost as error:
            log.info("the output of work order %s is not here: %s", bundle.work_order_id, error)
            return None
        with opened.file as file:
            if opened.size > OUTPUT_BYTES:
                log.warning("the output of work order %s is too large and stays in its file", bundle.work_order_id)
                return bundle
            text = await to_thread.run_sync(file.readall)  # type: ignore[attr-defined]  # an unbuffered file
        return msgspec.structs.replace(bundle, output=text.decode(), output_ref=None)

    async def _pass_on(self, held: _Held) -> bool:
        """Leave a work order to the node that has the file of its output; False once that was tried often enough."""
        order_id = held.order.work_order_id
        times, _ = self._passed.get(order_id, (0, 0.0))
        if times == PASSES:
            return False
        now = time.monotonic()
        self._passed = {known: passed for known, passed in self._passed.items() if now - passed[1] < FORGET_S}
        self._passed[order_id] = times + 1, now + PASS_S
        self._held.pop(order_id, None)
        await self.claims.release([held.claim])
        return True

    async def _finish(self, bundles: Sequence[Bundle]) -> None:
        held = {bundle.work_order_id: self._held.get(bundle.work_order_id) for bundle in bundles}
        claims = [order.claim for order in held.values() if order is not None and not order.claim.is_lost]
        by_id = {bundle.work_order_id: bundle for bundle in bundles}

        async def keep(batch: Sequence[Claim]) -> None:
            await execute(self._database, [by_id[claim.resource_id] for claim in batch])
            self.claims.let_go(*batch)

        if claims:
            await self._apart(claims, keep)
            for claim in claims:
                self._held.pop(claim.resource_id, None)
                self._passed.pop(claim.resource_id, None)
            self._wakeups.gate.set()
            self._wakeups.changed.set()
