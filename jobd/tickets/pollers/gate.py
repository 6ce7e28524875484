"""The gate: judges executed work orders. Gates that need a process run in tasks of their own, beside the polling.

While a person is to sign off, nobody holds the work order: it is marked `awaits_sign_off` until the answer is there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from jobd.tasks.command.workdir import clear_leftovers
from jobd.tickets.gates import result_of
from jobd.tickets.pollers.claims import ClaimKeeper
from jobd.tickets.pollers.gate_process import KILL_AFTER_S, run_gate_command, run_schema
from jobd.tickets.pollers.judge import find_executed_workorders, read_for_judge, settle, write_settled
from jobd.tickets.pollers.poller import PAGE, Poller
from jobd.wire.tickets import SchemaGate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.tickets.pollers.claims import Claim
    from jobd.tickets.pollers.judge import Case
    from jobd.tickets.wakeups import Wakeups
    from jobd.wire.tickets import CommandGate

log = logging.getLogger(__name__)

#: Most work orders whose gate processes run at once.
AT_ONCE = 4
#: Folder in the data directory for the working directories of gate processes.
FOLDER = "gates"
#: Longest time in seconds that a gate process may take to end when the poller stops: SIGTERM, SIGKILL, one to reap it.
END_S = KILL_AFTER_S + 1.0


class GatePoller(Poller):
    claims: ClaimKeeper

    def __init__(
        self, database: Database, config: Callable[[], Config], wakeups: Wakeups, owners: OwnerNames, data_dir: Path
    ) -> None:
        super().__init__("gate", database, config, wakeups, wakeups.gate)
        self.claims = ClaimKeeper(database, "WORKORDER", owners.of(self.name), config)
        self._root = data_dir / FOLDER
        #: Work orders whose gate processes run now, each with the scope that ends them.
        self._in_processes: dict[UUID, anyio.CancelScope] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self, handle: Handle) -> None:
        if ended := await to_thread.run_sync(clear_leftovers, self._root):
            log.warning("ended %d processes of gates that a killed jobd had left running", ended)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await super().run(handle)
            finally:
                self._tasks = None

    async def _let_go(self) -> None:
        """End the gate processes before their claims are released: another gate runs the same commands then."""
        for scope in self._in_processes.values():
            scope.cancel()
        with anyio.move_on_after(END_S, shield=True):
            while self._in_processes:
                await anyio.sleep(0.01)
        await super()._let_go()

    async def run_once(self) -> bool:
        """Poll once. Called outside of `run`, it also waits for the gate processes that it starts."""
        if self._tasks is not None:
            return await self._poll(self._tasks)
        async with anyio.create_task_group() as tasks:
            is_full = await self._poll(tasks)
        return is_full

    async def _poll(self, tasks: anyio.abc.TaskGroup) -> bool:
        if len(self._in_processes) >= AT_ONCE:
            return False
        order_ids = await find_executed_workorders(self._database, most=PAGE)
        claims = await self.claims.acquire(order_ids) if order_ids else []
        if not claims:
            return False
        cases = await read_for_judge(self._database, [claim.resource_id for claim in claims])
        unjudged = [claim for claim in claims if claim.resource_id in cases]
        quick = [claim for claim in unjudged if not cases[claim.resource_id].process_gates]
        if quick:
            await self._apart(quick, lambda batch: self._judge(batch, cases))
        slow = [claim for claim in unjudged if not claim.is_lost and cases[claim.resource_id].process_gates]
        room = AT_ONCE - len(self._in_processes)
        for claim in slow[:room]:
            self._in_processes[claim.resource_id] = anyio.CancelScope()
            tasks.start_soon(self._judge_beside, claim, cases[claim.resource_id])
        judged_before = [claim for claim in claims if claim.resource_id not in cases]
        await self.claims.release([*slow[room:], *judged_before])
        return len(order_ids) == PAGE and bool(quick)

    async def _judge(self, claims: Sequence[Claim], cases: dict[UUID, Case]) -> None:
        settled = [
            settle(cases[claim.resource_id], claim.record.lease_token, {}) for claim in claims if not claim.is_lost
        ]
        await write_settled(self._database, settled)
        self.claims.let_go(*claims)
        self._wake_others()

    async def _judge_beside(self, claim: Claim, case: Case) -> None:
        """Judge a case whose gates need processes, in a task beside the polling."""
        scope = self._in_processes[claim.resource_id]
        claim.on_stop = scope.cancel
        try:
            with scope:
                await self._apart([claim], lambda batch: self._judge_in_processes(batch, case))
            if claim.is_lost:
                log.warning("the claim of work order %s was lost; another gate goes on with it", case.work_order_id)
        finally:
            del self._in_processes[claim.resource_id]
            self._wakeup.set()  # there is room again

    async def _judge_in_processes(self, claims: Sequence[Claim], case: Case) -> None:
        results = {n: result_of(gate, await self._fault(gate, case)) for n, gate in case.process_gates.items()}
        await write_settled(self._database, [settle(case, claims[0].record.lease_token, results)])
        self.claims.let_go(*claims)
        self._wake_others()

    async def _fault(self, gate: SchemaGate | CommandGate, case: Case) -> str | None:
        """Why the output does not pass this gate; None: it passes."""
        output = (case.output or "null").encode()
        if isinstance(gate, SchemaGate):
            return await run_schema(gate.schema, output, self._root)
        command = self._config().tickets.gates.get(gate.name)
        if command is None:
            return f"there is no [tickets.gates.{gate.name}] in the configuration any more"
        fault = await run_gate_command(command, output, self._root)
        return None if fault is None else f"{gate.name}: {fault}"

    def _wake_others(self) -> None:
        self._wakeups.readiness.set()  # a judged ticket may be TODO again, or another ticket was blocked on it
        self._wakeups.changed.set()
