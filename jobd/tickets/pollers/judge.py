"""Judge: evaluate the gates over an output, and move the ticket accordingly. Each work order gets one run record.

Gates evaluated here need nothing but the output and are quick. The caller evaluates the others in processes, between
`read_for_judge` and `settle`. While a person is to sign off, nobody holds a lease of the work order.
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

    import asyncpg

    from jobd.store.session import Session

FIND_EXECUTED_WORKORDERS = statement("find_executed_workorders", "jobd.tickets.pollers")
READ_FOR_JUDGE = statement("read_for_judge", "jobd.tickets.pollers")
AWAIT_SIGN_OFF_IF_HELD = statement("await_sign_off_if_held", "jobd.tickets.pollers")
JUDGE_IF_HELD = statement("judge_if_held", "jobd.tickets.pollers")

_decode_gates = msgspec.json.Decoder(list[wire.Gate]).decode
_decode_results = msgspec.json.Decoder(list[wire.GateResult]).decode


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision about an output: signed off or refused."""

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
    #: Name of the file that has the output.
    output_ref: str | None
    error: str | None
    #: Results of the other gates, kept when a person was asked; None: nobody was asked yet.
    results_so_far: list[wire.GateResult] | None
    #: None: nobody was asked, or nobody has answered.
    answer: Answer | None

    @property
    def is_out_of_reach(self) -> bool:
        """There is an output, in a file that is not on this node."""
        return self.output is None and self.output_ref is not None

    @property
    def process_gates(self) -> dict[int, wire.SchemaGate | wire.CommandGate]:
        """The gates, by their index in `gates`, that are still to be evaluated in processes of their own."""
        if self.outcome != "DONE" or self.results_so_far is not None or self.is_out_of_reach:
            return {}
        size = len(self.output or "")
        return {
            n: gate
            for n, gate in enumerate(self.gates)
            if isinstance(gate, wire.CommandGate) or (isinstance(gate, wire.SchemaGate) and not is_cheap(gate, size))
        }


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a case: judged, or left to a person."""

    work_order_id: UUID
    lease_token: UUID
    results: list[wire.GateResult]
    #: None: a person has to be asked.
    judged: Judged | None


async def find_executed_workorders(connection: Session, *, most: int) -> list[UUID]:
    return [row["work_order_id"] for row in await connection.fetch(FIND_EXECUTED_WORKORDERS, most)]


async def read_for_judge(connection: Session, work_order_ids: Sequence[UUID]) -> dict[UUID, Case]:
    """The cases by work_order_id; one that is judged or awaits a sign-off is left out."""
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
        results_so_far=None if so_far is None else _decode_results(so_far),
        answer=None if kind is None else Answer(by=row["decided_by"], why=row["why"], accepted=kind == "SIGN_OFF"),
    )


def settle(case: Case, lease_token: UUID, process_results: Mapping[int, wire.GateResult]) -> Settled:
    """Judge a case; `process_results` has the results of `case.process_gates`. PURE."""
    results: list[wire.GateResult] = []
    verdict: GateVerdict = _no_output(case)
    if case.outcome == "DONE":
        results, verdict = _evaluated(case, process_results)
    judged = None if isinstance(verdict, AwaitSignOff) else decide_judge(view_of(case.ticket), case.outcome, verdict)
    return Settled(work_order_id=case.work_order_id, lease_token=lease_token, results=results, judged=judged)


def _no_output(case: Case) -> Pass | Fail:
    error = {} if case.error is None else msgspec.json.decode(case.error)
    text = error.get("message") or error.get("code") if isinstance(error, dict) else None
    return Fail(f"the job gave no output: {text or case.outcome}"[:500])


def _evaluated(case: Case, process_results: Mapping[int, wire.GateResult]) -> tuple[list[wire.GateResult], GateVerdict]:
    results = list(case.results_so_far) if case.results_so_far is not None else _automatic(case, process_results)
    verdicts: list[GateVerdict] = [Pass("") if result.result == "PASS" else Fail(result.reason) for result in results]
    if any(isinstance(gate, wire.SignOffGate) for gate in case.gates):
        if case.answer is None:
            verdicts.append(AwaitSignOff())
        else:
            answer = case.answer
            result = sign_off_result(answer.by, answer.why, accepted=answer.accepted)
            results.append(result)
            verdicts.append(Pass("") if answer.accepted else Fail(result.reason))
    return results, decide_gates(verdicts)


def _automatic(case: Case, process_results: Mapping[int, wire.GateResult]) -> list[wire.GateResult]:
    """The results of all gates but the sign-off."""
    gates = [(n, gate) for n, gate in enumerate(case.gates) if not isinstance(gate, wire.SignOffGate)]
    if case.is_out_of_reach:
        reason = f"the output is in the file {case.output_ref}, which cannot be read here"
        return [wire.GateResult(type=_type(gate), result="FAIL", reason=reason) for _, gate in gates]
    output = None if case.output is None else msgspec.json.decode(case.output)
    return [process_results[n] if n in process_results else _result(gate, output) for n, gate in gates]


def _result(gate: wire.Gate, output: Any) -> wire.GateResult:
    if isinstance(gate, wire.SchemaGate):
        return passes_schema(gate, output)
    assert isinstance(gate, wire.MinimumGate)
    return passes_minimum(gate, output)


def _type(gate: wire.Gate) -> Any:
    return type(gate).__struct_config__.tag


async def write_settled(connection: Session, settled: Sequence[Settled]) -> dict[UUID, str]:
    """Write the outcome of cases whose leases the caller holds; the new ticket status of each that was judged."""
    ordered = sorted(settled, key=lambda case: case.work_order_id)
    waiting = [case for case in ordered if case.judged is None]
    if waiting:
        await connection.fetch(
            AWAIT_SIGN_OFF_IF_HELD,
            [case.work_order_id for case in waiting],
            [case.lease_token for case in waiting],
            [_text(case.results) for case in waiting],
        )
    ready = [(case, case.judged) for case in ordered if case.judged is not None]
    if not ready:
        return {}
    rows = await connection.fetch(
        JUDGE_IF_HELD,
        [case.work_order_id for case, _ in ready],
        [case.lease_token for case, _ in ready],
        new_ids(len(ready)),
        [judged.gate_result for _, judged in ready],
        [judged.gate_reason for _, judged in ready],
        [_text(case.results) for case, _ in ready],
        [judged.status.value for _, judged in ready],
        [judged.blocked_reason for _, judged in ready],
        new_ids(len(ready)),
        [judged.pause_reason for _, judged in ready],
        [_text(judged.actions) for _, judged in ready],
    )
    return {row["work_order_id"]: row["ticket_status"] for row in rows}


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
