"""Judge: the gates say whether an output passes, and the ticket goes where that leads. One work order, one run record.

What is evaluated here needs nothing but the output and is quick. Other gates are evaluated by the caller, between
`read_for_judge` and `settle`; a person is waited for without a lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from jobd.store.ids import new_ids
from jobd.store.statements import statement
from jobd.tickets.gates import is_cheap, passes_minimum, passes_schema, sign_off_result
from jobd.tickets.machine import AwaitSignOff, Fail, GateVerdict, Judged, Outcome, Pass, decide_gates, decide_judge
from jobd.tickets.read import ticket_of, view_of
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from jobd.store.session import Session

FIND_EXECUTED_WORKORDERS = statement("find_executed_workorders", "jobd.tickets.pollers")
READ_FOR_JUDGE = statement("read_for_judge", "jobd.tickets.pollers")
AWAIT_SIGN_OFF_IF_HELD = statement("await_sign_off_if_held", "jobd.tickets.pollers")
JUDGE_IF_HELD = statement("judge_if_held", "jobd.tickets.pollers")

_decode_gates = msgspec.json.Decoder(list[wire.Gate]).decode
_decode_results = msgspec.json.Decoder(list[wire.GateResult]).decode


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said of an output."""

    by: str
    why: str
    accepted: bool


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A work order that is to be judged."""

    work_order_id: UUID
    ticket: wire.Ticket
    gates: list[wire.Gate]
    outcome: Outcome
    #: JSON text; None if there is none, or if it is in a file.
    output: str | None
    output_ref: str | None
    error: str | None
    #: What the gates said before a person was asked.
    so_far: list[wire.GateResult] | None
    answer: Answer | None

    @property
    def is_out_of_reach(self) -> bool:
        """There is an output, in a file that is not here."""
        return self.output is None and self.output_ref is not None

    @property
    def apart(self) -> dict[int, wire.SchemaGate | wire.CommandGate]:
        """The gates, by their places, that are still to be evaluated in processes of their own."""
        if self.outcome != "DONE" or self.so_far is not None or self.is_out_of_reach:
            return {}
        size = len(self.output or "")
        return {
            n: gate
            for n, gate in enumerate(self.gates)
            if isinstance(gate, wire.CommandGate) or (isinstance(gate, wire.SchemaGate) and not is_cheap(gate, size))
        }


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a case: judged, or left to a person."""

    work_order_id: UUID
    lease_token: UUID
    results: list[wire.GateResult]
    #: None: a person has to be asked.
    judged: Judged | None


async def find_executed_workorders(connection: Session, *, most: int, now: datetime | None = None) -> list[UUID]:
    return [row["work_order_id"] for row in await connection.fetch(FIND_EXECUTED_WORKORDERS, most, now)]


async def read_for_judge(connection: Session, work_order_ids: Sequence[UUID]) -> dict[UUID, Case]:
    """Those that are not judged yet."""
    rows = await connection.fetch(READ_FOR_JUDGE, list(work_order_ids))
    return {row["work_order_id"]: _case(row) for row in rows}


def _case(row: asyncpg.Record) -> Case:
    kind, so_far = row["sign_off"], row["gate_results_so_far"]
    return Case(
        work_order_id=row["work_order_id"],
        ticket=ticket_of(row),
        gates=_decode_gates(row["gates_then"]),
        outcome=row["outcome"],
        output=row["output"],
        output_ref=row["output_ref"],
        error=row["error"],
        so_far=None if so_far is None else _decode_results(so_far),
        answer=None if kind is None else Answer(by=row["decided_by"], why=row["why"], accepted=kind == "SIGN_OFF"),
    )


def settle(case: Case, lease_token: UUID, said: Mapping[int, wire.GateResult]) -> Settled:
    """Judge a case; `said` has the results of those gates that are evaluated apart. PURE."""
    results: list[wire.GateResult] = []
    verdict: GateVerdict = _no_output(case)
    if case.outcome == "DONE":
        results, verdict = _evaluated(case, said)
    judged = None if isinstance(verdict, AwaitSignOff) else decide_judge(view_of(case.ticket), case.outcome, verdict)
    return Settled(work_order_id=case.work_order_id, lease_token=lease_token, results=results, judged=judged)


def _no_output(case: Case) -> Pass | Fail:
    error = {} if case.error is None else msgspec.json.decode(case.error)
    said = error.get("message") or error.get("code") if isinstance(error, dict) else None
    return Fail(f"the job gave no output: {said or case.outcome}"[:500])


def _evaluated(case: Case, said: Mapping[int, wire.GateResult]) -> tuple[list[wire.GateResult], GateVerdict]:
    results = list(case.so_far) if case.so_far is not None else _without_people(case, said)
    verdicts: list[GateVerdict] = [Pass("") if one.result == "PASS" else Fail(one.reason) for one in results]
    if any(isinstance(gate, wire.SignOffGate) for gate in case.gates):
        if case.answer is None:
            verdicts.append(AwaitSignOff())
        else:
            answer = case.answer
            result = sign_off_result(answer.by, answer.why, accepted=answer.accepted)
            results.append(result)
            verdicts.append(Pass("") if answer.accepted else Fail(result.reason))
    return results, decide_gates(verdicts)


def _without_people(case: Case, said: Mapping[int, wire.GateResult]) -> list[wire.GateResult]:
    gates = [(n, gate) for n, gate in enumerate(case.gates) if not isinstance(gate, wire.SignOffGate)]
    if case.is_out_of_reach:
        reason = f"the output is in the file {case.output_ref}, which cannot be read here"
        return [wire.GateResult(type=_type(gate), result="FAIL", reason=reason) for _, gate in gates]
    output = None if case.output is None else msgspec.json.decode(case.output)
    return [said[n] if n in said else _result(gate, output) for n, gate in gates]


def _result(gate: wire.Gate, output: Any) -> wire.GateResult:
    if isinstance(gate, wire.SchemaGate):
        return passes_schema(gate, output)
    assert isinstance(gate, wire.MinimumGate)
    return passes_minimum(gate, output)


def _type(gate: wire.Gate) -> Any:
    return type(gate).__struct_config__.tag


async def write_settled(
    connection: Session, settled: Sequence[Settled], *, now: datetime | None = None
) -> dict[UUID, str]:
    """Write what became of cases that the caller holds; the new status of each ticket that was judged by that."""
    ordered = sorted(settled, key=lambda one: one.work_order_id)
    waiting = [one for one in ordered if one.judged is None]
    if waiting:
        await connection.fetch(
            AWAIT_SIGN_OFF_IF_HELD,
            [one.work_order_id for one in waiting],
            [one.lease_token for one in waiting],
            [_text(one.results) for one in waiting],
            now,
        )
    ready = [(one, one.judged) for one in ordered if one.judged is not None]
    if not ready:
        return {}
    rows = await connection.fetch(
        JUDGE_IF_HELD,
        [one.work_order_id for one, _ in ready],
        [one.lease_token for one, _ in ready],
        new_ids(len(ready)),
        [judged.gate_result for _, judged in ready],
        [judged.gate_reason for _, judged in ready],
        [_text(one.results) for one, _ in ready],
        [judged.status.value for _, judged in ready],
        [judged.blocked_reason for _, judged in ready],
        new_ids(len(ready)),
        [judged.pause_reason for _, judged in ready],
        [_text(judged.actions) for _, judged in ready],
        now,
    )
    return {row["work_order_id"]: row["ticket_status"] for row in rows}


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
