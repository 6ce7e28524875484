"""The gate: judges executed work orders. What needs a process of its own is judged apart and keeps nobody waiting.

A sign-off is waited for without a claim: the work order is set aside, and a person's answer brings it back.
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
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.tickets.pollers.claims import Claim, OwnerNames
    from jobd.tickets.pollers.judge import Case
    from jobd.tickets.wakeups import Wakeups
    from jobd.wire.tickets import CommandGate

log = logging.getLogger(__name__)

#: Work orders whose processes run at once.
AT_ONCE = 4
FOLDER = "gates"
#: How long a command that is cut off may take to end.
END_S = KILL_AFTER_S + 1.0


class GatePoller(Poller):
    claims: ClaimKeeper

    def __init__(
        self, database: Database, config: Callable[[], Config], wakeups: Wakeups, owners: OwnerNames, data_dir: Path
    ) -> None:
        super().__init__("gate", database, config, wakeups, wakeups.gate)
        self.claims = ClaimKeeper(database, "WORKORDER", owners.of(self.name), config)
        self._root = data_dir / FOLDER
        #: What is judged apart.
        self._slow: dict[UUID, anyio.CancelScope] = {}
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
        """A command that is cut off is run again by another, but not before it has ended here."""
        for scope in self._slow.values():
            scope.cancel()
        with anyio.move_on_after(END_S, shield=True):
            while self._slow:
                await anyio.sleep(0.01)
        await super()._let_go()

    async def run_once(self) -> bool:
        """Look once. Without `run` around it, it waits for the processes too."""
        if self._tasks is not None:
            return await self._look(self._tasks)
        async with anyio.create_task_group() as tasks:
            is_full = await self._look(tasks)
        return is_full

    async def _look(self, tasks: anyio.abc.TaskGroup) -> bool:
        room = PAGE if len(self._slow) < AT_ONCE else 0
        found = await find_executed_workorders(self._database, most=room) if room else []
        claimed = await self.claims.acquire(found) if found else []
        if not claimed:
            return False
        cases = await read_for_judge(self._database, [claim.resource_id for claim in claimed])
        fast = [claim for claim in claimed if claim.resource_id in cases and not cases[claim.resource_id].apart]
        if fast:
            await self._apart(fast, lambda some: self._judge(some, cases))
        held = [claim for claim in claimed if claim.resource_id in cases and not claim.is_lost]
        left = [claim for claim in held if cases[claim.resource_id].apart]
        room = AT_ONCE - len(self._slow)
        for claim in left[:room]:
            self._slow[claim.resource_id] = anyio.CancelScope()
            tasks.start_soon(self._judge_slow, claim, cases[claim.resource_id])
        await self.claims.release([*left[room:], *(one for one in claimed if one.resource_id not in cases)])
        return len(found) == PAGE and bool(fast)

    async def _judge(self, claims: Sequence[Claim], cases: dict[UUID, Case]) -> None:
        settled = [
            settle(cases[claim.resource_id], claim.record.lease_token, {}) for claim in claims if not claim.is_lost
        ]
        await write_settled(self._database, settled)
        self.claims.let_go(*claims)
        self._tell()

    async def _judge_slow(self, claim: Claim, case: Case) -> None:
        scope = self._slow[claim.resource_id]
        claim.on_stop = scope.cancel
        try:
            with scope:
                await self._apart([claim], lambda some: self._judge_in_processes(some, case))
            if claim.is_lost:
                log.warning("the claim of work order %s was lost; another gate goes on with it", case.work_order_id)
        finally:
            del self._slow[claim.resource_id]
            self._wakeup.set()  # there is room again

    async def _judge_in_processes(self, claims: Sequence[Claim], case: Case) -> None:
        said = {n: result_of(gate, await self._fault(gate, case)) for n, gate in case.apart.items()}
        await write_settled(self._database, [settle(case, claims[0].record.lease_token, said)])
        self.claims.let_go(*claims)
        self._tell()

    async def _fault(self, gate: SchemaGate | CommandGate, case: Case) -> str | None:
        output = (case.output or "null").encode()
        if isinstance(gate, SchemaGate):
            return await run_schema(gate.schema, output, self._root)
        command = self._config().tickets.gates.get(gate.name)
        if command is None:
            return f"there is no [tickets.gates.{gate.name}] in the configuration any more"
        fault = await run_gate_command(command, output, self._root)
        return None if fault is None else f"{gate.name}: {fault}"

    def _tell(self) -> None:
        self._wakeups.readiness.set()  # a ticket may be TODO again, or another have waited for it
        self._wakeups.changed.set()
