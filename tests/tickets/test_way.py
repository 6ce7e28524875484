"""The way of a ticket, from its approval to where it comes to rest, and what it leaves behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest

from jobd.lifecycle.cancel import cancel
from jobd.tickets.schemas import SCHEMA_NAMES, schema_of
from tests.support.clock import TO_1970_S, TO_2056_S, set_clock
from tests.support.disk import small_disk
from tests.support.wait import wait_until_async
from tests.tickets.factories import code_of, new_ticket, todo_ticket

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from jobd.wire.tickets import Trail
    from tests.tickets.ticket_pollers import TicketPollers


async def test_an_approved_ticket_goes_to_done_and_leaves_one_of_each_artifact(pollers: TicketPollers) -> None:
    ticket = await pollers.executed(
        gates=[{"type": "minimum", "pointer": "/score", "value": 0.8}],
        payload={"text": "{{title}} on {{branch_name}}", "n": 1},
        acceptance_criteria=["it is right"],
        repo_ref="a" * 40,
    )

    await pollers.first.gate.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.ticket.status, trail.ticket.step) == ("DONE", None)
    (event,), (snapshot,), (order,) = trail.events, trail.context_snapshots, trail.workorders
    (bundle,), (record,), (pause,) = trail.output_bundles, trail.run_records, trail.pause_states
    assert (event.processed, event.reason) == (True, "SCHEDULED")
    assert (
        snapshot.full_prompt_text == f"Count the cats\n\nAcceptance criteria:\n- it is right\n\nRepository: {'a' * 40}"
    )
    assert snapshot.repo_commit_sha == "a" * 40
    assert msgspec.json.decode(snapshot.payload) == {"text": f"Count the cats on {order.branch_name}", "n": 1}
    assert (order.event_id, order.context_snapshot_id, order.status) == (
        event.event_id,
        snapshot.snapshot_id,
        "EXECUTED",
    )
    assert (order.diazotroph_type, order.budget_ms) == ("work", 600_000)
    assert (bundle.work_order_id, bundle.outcome, bundle.output) == (order.work_order_id, "DONE", {"score": 0.9})
    assert (record.output_id, record.gate_result, record.ticket_status) == (bundle.output_id, "PASS", "DONE")
    assert (pause.reason, pause.work_order_id) == ("RUN_COMPLETE", order.work_order_id)
    assert 1 <= len(pause.prioritized_actions) <= 3
    assert await pollers.claims() == 0


@pytest.mark.parametrize(
    ("gate", "output", "passes"),
    [
        ({"type": "schema", "schema": {"required": ["a"]}}, '{"a": 1}', True),
        ({"type": "schema", "schema": {"required": ["a"]}}, '{"b": 1}', False),
        ({"type": "schema", "schema": False}, "1", False),
        ({"type": "schema", "schema": {"properties": {"a": {"$ref": "#"}}, "maxProperties": 1}}, '{"a": {}}', True),
        ({"type": "schema", "schema": {"properties": {"a": {"$ref": "#"}}, "maxProperties": 0}}, '{"a": {}}', False),
        ({"type": "minimum", "pointer": "/s", "value": 2}, '{"s": 2}', True),
        ({"type": "minimum", "pointer": "/s", "value": 2}, '{"s": 1.5}', False),
        ({"type": "minimum", "pointer": "/s", "value": 2}, "{}", False),
        ({"type": "minimum", "pointer": "/s", "value": 0}, '{"s": true}', False),
        ({"type": "minimum", "pointer": "/l/1", "value": 2}, '{"l": [1, 3]}', True),
        ({"type": "minimum", "pointer": "", "value": 2}, "3", True),
        ({"type": "command", "name": "agree"}, "{}", True),
        ({"type": "command", "name": "object"}, "{}", False),
    ],
    ids=str,
)
async def test_a_gate_decides(pollers: TicketPollers, gate: dict[str, Any], output: str, passes: bool) -> None:
    ticket = await pollers.executed(output, gates=[gate])

    await pollers.first.gate.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    (record,) = trail.run_records
    assert (record.gate_result, trail.ticket.status) == (("PASS", "DONE") if passes else ("FAIL", "BLOCKED"))
    assert [result.result for result in record.gate_results] == [record.gate_result]
    assert trail.ticket.blocked_reason == (None if passes else record.gate_reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_full_disk_is_no_verdict_of_a_gate_and_it_is_asked_again(pollers: TicketPollers, folder: Path) -> None:
    ticket = await pollers.executed("{}", gates=[{"type": "command", "name": "agree"}])
    with small_disk(folder / "gates", "64k") as disk:
        (disk / "full").write_bytes(bytes(64 << 10))
        await pollers.first.gate.run_once()
        while_full = await pollers.trail(ticket.ticket_id)
        (disk / "full").unlink()
        await pollers.expire_claims()
        await pollers.first.gate.run_once()

    assert (while_full.run_records, while_full.ticket.status) == ([], "IN_PROGRESS")
    assert await pollers.status(ticket.ticket_id) == "DONE"


async def test_a_failed_gate_sends_a_ticket_back_until_its_runs_are_used_up(pollers: TicketPollers) -> None:
    ticket = await pollers.executed("1", gates=[{"type": "schema", "schema": False}], max_runs=2)
    await pollers.first.gate.run_once()
    after_one = await pollers.status(ticket.ticket_id)
    await pollers.first.turn()
    await pollers.finish(ticket.ticket_id, "1")
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert after_one == "TODO"
    assert (trail.ticket.status, trail.ticket.run_count) == ("BLOCKED", 2)
    assert [record.ticket_status for record in trail.run_records] == ["TODO", "BLOCKED"]
    assert [pause.reason for pause in trail.pause_states] == ["GATE_FAILED", "GATE_FAILED"]
    assert len({event.todo_no for event in trail.events}) == 2


async def test_a_job_that_failed_is_told_by_the_bundle_and_fails_the_gate(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await pollers.fail(ticket.ticket_id)
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.output_bundles[0].outcome, trail.output_bundles[0].output) == ("ERROR", None)
    assert trail.output_bundles[0].error == {"code": "boom", "message": "it broke"}
    assert trail.run_records[0].gate_reason == "the job gave no output: it broke"
    assert (trail.ticket.status, trail.pause_states[0].reason) == ("BLOCKED", "GATE_FAILED")


async def test_a_job_that_a_client_canceled_fails_the_gate(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.first.runner.run_once()
    await cancel(pollers.db, [await pollers.job_of(ticket.ticket_id)])
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.output_bundles[0].outcome, trail.ticket.status) == ("CANCELED", "BLOCKED")


async def test_no_step_of_the_clock_uses_up_a_budget(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled(budget_ms=600_000)
    await pollers.db.clock.check()
    await pollers.first.turn()

    try:
        for off_by_s in (TO_2056_S, TO_1970_S, 3600.0, 0.0):
            await set_clock(pollers.db.pool, off_by_s)
            await pollers.first.turn()  # before anybody has noticed
            await pollers.db.clock.check()
            await pollers.first.turn()
    finally:
        await set_clock(pollers.db.pool, 0.0)

    assert await pollers.status(ticket.ticket_id) == "IN_PROGRESS"
    assert await pollers.db.pool.fetch("SELECT FROM jobs WHERE status <> 'queued' OR cancel_requested") == []


async def test_a_job_past_its_budget_is_canceled_and_the_ticket_says_so(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled(budget_ms=1, max_runs=5)

    async def has_rested() -> bool:
        await pollers.first.turn()
        return await pollers.status(ticket.ticket_id) == "BLOCKED"

    await wait_until_async(has_rested, timeout_s=15)

    trail = await pollers.trail(ticket.ticket_id)
    assert trail.output_bundles[0].outcome == "BUDGET_EXHAUSTED"
    assert trail.pause_states[0].reason == "BUDGET_EXHAUSTED"
    assert trail.ticket.blocked_reason is not None and "budget of 1 ms" in trail.ticket.blocked_reason


async def test_a_sign_off_is_waited_for_without_a_claim_and_then_counts(pollers: TicketPollers) -> None:
    gates = [{"type": "sign_off"}, {"type": "minimum", "pointer": "/score", "value": 0.5}]
    ticket = await pollers.executed(gates=gates)
    await pollers.first.gate.run_once()
    waiting = (await pollers.trail(ticket.ticket_id)).ticket
    claims, again = await pollers.claims(), await pollers.first.gate.run_once()

    signed = await pollers.first.service.decide("SIGN_OFF", ticket.ticket_id, by="eve", why="nice")
    await pollers.first.gate.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    assert (waiting.status, waiting.step, claims, again) == ("IN_PROGRESS", "SIGN_OFF", 0, False)
    assert (signed.status, signed.step) == ("IN_PROGRESS", "GATE")
    assert trail.ticket.status == "DONE"
    assert [result.type for result in trail.run_records[0].gate_results] == ["minimum", "sign_off"]
    assert trail.decisions[-1].work_order_id == trail.workorders[0].work_order_id
    assert await code_of(pollers.first.service.decide("SIGN_OFF", ticket.ticket_id, by="eve")) == "no_sign_off"


async def test_a_refused_sign_off_fails_the_gate(pollers: TicketPollers) -> None:
    ticket = await pollers.executed(gates=[{"type": "sign_off"}])
    await pollers.first.gate.run_once()

    await pollers.first.service.decide("REFUSE", ticket.ticket_id, by="eve", why="ugly")
    await pollers.first.gate.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.ticket.status, trail.ticket.blocked_reason) == ("BLOCKED", "refused by eve: ugly")
    assert trail.decisions[-1].kind == "REFUSE"


async def test_nobody_is_asked_about_an_output_that_fails_anyway(pollers: TicketPollers) -> None:
    ticket = await pollers.executed("1", gates=[{"type": "sign_off"}, {"type": "schema", "schema": False}])

    await pollers.first.gate.run_once()

    assert await pollers.status(ticket.ticket_id) == "BLOCKED"


async def test_a_ticket_waits_for_others_and_goes_on_by_itself(pollers: TicketPollers) -> None:
    first = await new_ticket(pollers.db)
    second = await todo_ticket(pollers.db, blocked_on=[str(first.ticket_id)])
    await pollers.first.turn()
    blocked = await pollers.trail(second.ticket_id)
    await pollers.first.service.decide("APPROVE", first.ticket_id, by="bob")
    await pollers.first.turn()
    await pollers.finish(first.ticket_id)
    await pollers.first.turn()
    await pollers.first.turn()

    trail = await pollers.trail(second.ticket_id)
    assert (blocked.ticket.status, blocked.events[0].reason) == ("BLOCKED", "BLOCKED")
    assert blocked.ticket.blocked_reason == f"waits for {first.ticket_id}"
    assert (blocked.pause_states[0].reason, blocked.pause_states[0].event_id) == ("BLOCKED", blocked.events[0].event_id)
    assert blocked.workorders == []
    assert await pollers.status(first.ticket_id) == "DONE"
    assert trail.ticket.status in ("TODO", "IN_PROGRESS")
    await pollers.first.turn()
    assert (await pollers.trail(second.ticket_id)).ticket.status == "IN_PROGRESS"


async def test_a_rejected_ticket_waits_for_no_other_any_more(pollers: TicketPollers) -> None:
    first = await new_ticket(pollers.db)
    second = await todo_ticket(pollers.db, blocked_on=[str(first.ticket_id)])
    await pollers.first.turn()
    await pollers.first.service.decide("REJECT", second.ticket_id, by="bob", why="not needed")
    await pollers.db.pool.execute(
        "UPDATE tickets SET blocked_on = '{}', version = version + 1 WHERE status = 'BLOCKED'"
    )

    await pollers.first.turn()

    rejected = (await pollers.trail(second.ticket_id)).ticket
    assert (rejected.status, rejected.blocked_reason) == ("BLOCKED", "rejected by bob: not needed")


async def test_an_event_for_a_rejected_ticket_ends_without_a_work_order(pollers: TicketPollers) -> None:
    ticket = await pollers.ready()
    await pollers.first.service.decide("REJECT", ticket.ticket_id, by="bob")

    await pollers.first.scheduler.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    assert (trail.events[0].reason, trail.workorders) == ("NON_EXECUTABLE_STATUS", [])
    assert trail.ticket.status == "BLOCKED"


async def test_an_event_of_an_earlier_time_starts_nothing(pollers: TicketPollers) -> None:
    ticket = await pollers.ready()
    await pollers.first.service.decide("REJECT", ticket.ticket_id, by="bob")
    await pollers.first.service.decide("UNBLOCK", ticket.ticket_id, by="bob")
    await pollers.first.service.decide("APPROVE", ticket.ticket_id, by="bob")
    await pollers.first.readiness.run_once()

    await pollers.first.scheduler.run_once()

    trail = await pollers.trail(ticket.ticket_id)
    assert [event.reason for event in trail.events] == ["NON_EXECUTABLE_STATUS", "SCHEDULED"]
    assert [order.event_id for order in trail.workorders] == [trail.events[1].event_id]


async def test_an_event_without_a_ticket_is_ended_as_that(pollers: TicketPollers) -> None:
    ticket = await pollers.ready()
    await pollers.db.pool.execute("DELETE FROM tickets WHERE ticket_id = $1", ticket.ticket_id)

    await pollers.first.scheduler.run_once()

    row = await pollers.db.pool.fetchrow("SELECT processed, reason FROM ticket_events")
    assert row is not None and tuple(row) == (True, "MISSING_TICKET")


async def test_a_task_that_is_no_longer_configured_ends_the_run_in_error(pollers: TicketPollers) -> None:
    ticket = await pollers.scheduled()
    await pollers.db.pool.execute("UPDATE workorders SET diazotroph_type = 'gone'")

    await pollers.first.turn()
    await pollers.first.turn()

    bundle = (await pollers.trail(ticket.ticket_id)).output_bundles[0]
    assert bundle.error == {"code": "unknown_task", "message": "there is no task gone any more"}
    assert await pollers.status(ticket.ticket_id) == "BLOCKED"


async def test_every_artifact_is_valid_against_its_published_schema(pollers: TicketPollers) -> None:
    gates = [{"type": "schema", "schema": {}}, {"type": "sign_off"}, {"type": "command", "name": "agree"}]
    ticket = await pollers.executed(gates=gates, acceptance_criteria=["a"])
    await pollers.first.gate.run_once()
    await pollers.first.service.decide("SIGN_OFF", ticket.ticket_id, by="eve")
    await pollers.first.gate.run_once()
    trail: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(await pollers.trail(ticket.ticket_id)))

    found = {name: trail[f"{name}s"] for name in SCHEMA_NAMES if f"{name}s" in trail} | {"ticket": [trail["ticket"]]}

    assert {*found, "claim_record"} == set(SCHEMA_NAMES)
    for name, artifacts in found.items():
        assert artifacts
        for artifact in artifacts:
            jsonschema_rs.validate(schema_of(name), artifact)


async def test_a_payload_without_places_reaches_the_job_as_it_was_written(pollers: TicketPollers) -> None:
    ticket = await new_ticket(pollers.db)
    long = '{"n": 123456789012345678901234567890.5}'
    await pollers.db.pool.execute(
        "UPDATE tickets SET payload = $2::text::jsonb, version = 2 WHERE ticket_id = $1", ticket.ticket_id, long
    )
    await pollers.first.service.decide("APPROVE", ticket.ticket_id, by="bob")
    await pollers.first.turn()

    payload = await pollers.db.pool.fetchval("SELECT payload::text FROM jobs")

    assert payload == long


async def test_reopened_a_ticket_runs_again_from_the_beginning(pollers: TicketPollers) -> None:
    ticket = await pollers.executed()
    await pollers.first.gate.run_once()
    await pollers.first.service.decide("REOPEN", ticket.ticket_id, by="bob", why="more cats")
    await pollers.first.turn()
    await pollers.finish(ticket.ticket_id, "2")
    await pollers.first.turn()

    trail = await pollers.trail(ticket.ticket_id)
    assert [bundle.output for bundle in trail.output_bundles] == [{"score": 0.9}, 2]
    assert (trail.ticket.status, len(trail.workorders), len(trail.run_records)) == ("DONE", 2, 2)


def told_by_artifacts(trail: Trail) -> list[str]:
    """Where a ticket stood, one after the other, as far as the artifacts tell; the ticket itself is not asked."""
    steps: list[tuple[datetime, str]] = [(decision.decided_at, decision.to_status) for decision in trail.decisions]
    after = {"SCHEDULED": "IN_PROGRESS", "BLOCKED": "BLOCKED"}
    for event in trail.events:
        steps.append((event.created_at, "TODO"))
        if event.processed_at is not None and event.reason in after:
            steps.append((event.processed_at, after[event.reason]))
    steps += [(run_record.created_at, run_record.ticket_status) for run_record in trail.run_records]
    statuses = ["NEW", *(status for _, status in sorted(steps))]
    return [status for n, status in enumerate(statuses) if n == 0 or status != statuses[n - 1]]


async def test_the_whole_history_can_be_told_from_the_artifacts_alone(pollers: TicketPollers) -> None:
    blocker = await new_ticket(pollers.db)
    ticket = await todo_ticket(
        pollers.db,
        blocked_on=[str(blocker.ticket_id)],
        gates=[{"type": "minimum", "pointer": "/n", "value": 2}],
        max_runs=2,
    )
    await pollers.first.turn()
    await pollers.first.service.decide("APPROVE", blocker.ticket_id, by="bob")
    await pollers.first.turn()
    await pollers.finish(blocker.ticket_id)
    for _ in range(3):
        await pollers.first.turn()
    for n in (1, 1, 2):
        if n == 2:
            await pollers.first.service.decide("UNBLOCK", ticket.ticket_id, by="bob")
            await pollers.first.turn()
        await pollers.finish(ticket.ticket_id, f'{{"n": {n}}}')
        await pollers.first.turn()
        await pollers.first.turn()
    await pollers.first.service.decide("REOPEN", ticket.ticket_id, by="bob")
    await pollers.first.service.decide("REJECT", ticket.ticket_id, by="bob")

    trail = await pollers.trail(ticket.ticket_id)
    lines = (await pollers.first.service.log({ticket.ticket_id: 0}))[ticket.ticket_id]

    by_log = [msgspec.json.decode(line.data)["status"] for line in lines if line.type in ("created", "status")]
    assert told_by_artifacts(trail) == by_log
    assert (by_log[-1], by_log.count("IN_PROGRESS"), len(trail.run_records)) == ("BLOCKED", 3, 3)
