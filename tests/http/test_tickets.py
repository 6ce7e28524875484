"""Tickets over HTTP: written, approved, carried out by the pollers, followed live, and told whole by their trail."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from tests.support.daemon import run_jobd
from tests.support.sse import Sent, Stream
from tests.support.ticket_daemon import TOKENS, TicketDaemon, ticket_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.http import Api

ARTIFACTS = {
    "events": "event",
    "context_snapshots": "context_snapshot",
    "workorders": "workorder",
    "output_bundles": "output_bundle",
    "run_records": "run_record",
    "pause_states": "pause_state",
}


@pytest.fixture(scope="module")
def tickets() -> Iterator[TicketDaemon]:
    with ticket_daemon() as made:
        yield made


def check_artifacts(tickets: TicketDaemon, trail: dict[str, Any]) -> None:
    """Every artifact is valid against its published schema."""
    check(tickets, "ticket", trail["ticket"])
    for field, name in ARTIFACTS.items():
        for artifact in trail[field]:
            check(tickets, name, artifact)


def check(tickets: TicketDaemon, name: str, artifact: object) -> None:
    schema = tickets.ann("GET", f"/v1/schemas/{name}").json
    assert schema["additionalProperties"] is False
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(artifact)


# -- the whole way -----------------------------------------------------------------------------------------------------


def test_an_approved_ticket_is_carried_out_and_leaves_a_whole_trail(tickets: TicketDaemon) -> None:
    gates = [
        {"type": "schema", "schema": {"type": "object", "required": ["score"]}},
        {"type": "minimum", "pointer": "/score", "value": 0.8},
        {"type": "command", "name": "agree"},
    ]
    ticket = tickets.new(payload={"score": 0.9, "for": "{{title}}"}, gates=gates, acceptance_criteria=["it counts"])
    assert (ticket["status"], ticket["created_by"], ticket["approved_by"]) == ("NEW", "ann", None)

    assert tickets.decide(ticket["ticket_id"], "approve", why="looks right").status == 200
    done = tickets.wait_for_status(ticket["ticket_id"], "DONE")
    trail = tickets.trail(ticket["ticket_id"])

    assert done["approved_by"] == "bob"
    check_artifacts(tickets, trail)
    assert {field: len(found) for field, found in trail.items() if field != "ticket"} == {
        **dict.fromkeys(ARTIFACTS, 1),
        "decisions": 1,
    }
    (event,), (snapshot,), (order,) = trail["events"], trail["context_snapshots"], trail["workorders"]
    (bundle,), (record,), (pause,) = trail["output_bundles"], trail["run_records"], trail["pause_states"]
    assert (event["reason"], order["event_id"], order["status"]) == ("SCHEDULED", event["event_id"], "EXECUTED")
    assert order["context_snapshot_id"] == snapshot["snapshot_id"]
    assert (bundle["work_order_id"], bundle["output"]) == (order["work_order_id"], {"score": 0.9, "for": "Count"})
    assert (record["output_id"], record["gate_result"]) == (bundle["output_id"], "PASS")
    assert [gate_result["type"] for gate_result in record["gate_results"]] == ["schema", "minimum", "command"]
    assert (pause["reason"], len(pause["prioritized_actions"]) in (1, 2, 3)) == ("RUN_COMPLETE", True)
    (decision,) = trail["decisions"]
    assert (decision["kind"], decision["decided_by"], decision["why"]) == ("APPROVE", "bob", "looks right")
    assert tickets.ann("GET", f"/v1/jobs/{order['job_id']}").json["status"] == "done"


@pytest.mark.parametrize(
    "gate",
    [
        {"type": "schema", "schema": {"required": ["missing"]}},
        {"type": "minimum", "pointer": "/n", "value": 2},
        {"type": "command", "name": "object"},
    ],
    ids=lambda gate: gate["type"],
)
def test_a_failed_gate_blocks_the_ticket_and_says_what_to_do(tickets: TicketDaemon, gate: dict[str, Any]) -> None:
    ticket_id = tickets.approved(gates=[gate])

    blocked = tickets.wait_for_status(ticket_id, "BLOCKED")
    trail = tickets.trail(ticket_id)

    check_artifacts(tickets, trail)
    assert trail["run_records"][0]["gate_result"] == "FAIL"
    assert trail["run_records"][0]["gate_reason"] == blocked["blocked_reason"] != ""
    assert trail["pause_states"][0]["reason"] == "GATE_FAILED"
    assert 1 <= len(trail["pause_states"][0]["prioritized_actions"]) <= 3


def test_an_unblocked_ticket_runs_again(tickets: TicketDaemon) -> None:
    ticket_id = tickets.approved(gates=[{"type": "minimum", "pointer": "/n", "value": 2}])
    tickets.wait_for_status(ticket_id, "BLOCKED")

    assert tickets.decide(ticket_id, "unblock", why="once more").json["status"] == "TODO"
    tickets.wait_for_status(ticket_id, "BLOCKED")
    trail = tickets.trail(ticket_id)

    check_artifacts(tickets, trail)
    assert (len(trail["events"]), len(trail["run_records"])) == (2, 2)
    assert [decision["kind"] for decision in trail["decisions"]] == ["APPROVE", "UNBLOCK"]


def test_a_sign_off_is_waited_for_and_then_ends_the_ticket(tickets: TicketDaemon) -> None:
    ticket_id = tickets.approved(gates=[{"type": "sign_off"}])

    waiting = tickets.wait_for_status(ticket_id, "IN_PROGRESS", "SIGN_OFF")
    by_author = tickets.ann("POST", f"/v1/tickets/{ticket_id}/sign-off", {})
    signed = tickets.decide(ticket_id, "sign-off", why="good")
    tickets.wait_for_status(ticket_id, "DONE")
    trail = tickets.trail(ticket_id)

    check(tickets, "ticket", waiting)
    assert (by_author.status, by_author.code) == (403, "four_eyes")
    assert signed.status == 200, signed.body
    check_artifacts(tickets, trail)
    assert [decision["kind"] for decision in trail["decisions"]] == ["APPROVE", "SIGN_OFF"]
    assert "bob" in trail["run_records"][0]["gate_results"][0]["reason"]


def test_a_refused_sign_off_fails_the_gate(tickets: TicketDaemon) -> None:
    ticket_id = tickets.approved(gates=[{"type": "sign_off"}])
    tickets.wait_for_status(ticket_id, "IN_PROGRESS", "SIGN_OFF")

    assert tickets.ann("POST", f"/v1/tickets/{ticket_id}/sign-off", {"accept": False, "why": "wrong"}).status == 200
    tickets.wait_for_status(ticket_id, "BLOCKED")

    trail = tickets.trail(ticket_id)
    check_artifacts(tickets, trail)
    assert (trail["decisions"][-1]["kind"], trail["decisions"][-1]["decided_by"]) == ("REFUSE", "ann")


def test_a_done_ticket_is_not_approved_again_but_can_be_reopened(tickets: TicketDaemon) -> None:
    ticket_id = tickets.approved()
    done = tickets.wait_for_status(ticket_id, "DONE")

    again = tickets.decide(ticket_id, "approve")
    by_author = tickets.ann("POST", f"/v1/tickets/{ticket_id}/reopen", {})
    untouched = tickets.ticket(ticket_id)
    reopened = tickets.decide(ticket_id, "reopen", why="not what was wanted")
    tickets.wait_for_status(ticket_id, "DONE")

    assert (again.status, again.code) == (409, "illegal_transition")
    assert (by_author.status, by_author.code) == (403, "four_eyes")
    assert untouched == done
    assert (reopened.status, reopened.json["status"]) == (200, "TODO")
    assert len(tickets.trail(ticket_id)["run_records"]) == 2


# -- who ---------------------------------------------------------------------------------------------------------------


def test_the_author_may_not_approve_and_another_may(tickets: TicketDaemon) -> None:
    ticket = tickets.new()
    path = f"/v1/tickets/{ticket['ticket_id']}/approve"

    by_author = tickets.ann("POST", path, {"why": "mine"})
    by_name = tickets.boss("POST", path, {"by": " ann ", "why": "hers"})

    assert (by_author.status, by_author.code) == (by_name.status, by_name.code) == (403, "four_eyes")
    assert "tickets.four_eyes" in by_author.json["detail"]
    assert tickets.ticket(ticket["ticket_id"]) == ticket
    assert tickets.bob("POST", path, {}).json["approved_by"] == "bob"


@pytest.mark.parametrize("word", ["approve", "reject", "unblock", "reopen", "sign-off"])
def test_a_workers_token_decides_nothing(tickets: TicketDaemon, word: str) -> None:
    ticket = tickets.new()

    answer = tickets.robot("POST", f"/v1/tickets/{ticket['ticket_id']}/{word}", {"by": "bob"})

    assert (answer.status, answer.code) == (403, "forbidden")
    assert tickets.ticket(ticket["ticket_id"]) == ticket


@pytest.mark.parametrize("word", ["approve", "reject", "unblock", "reopen", "sign-off"])
def test_nobody_decides_in_the_name_of_another(tickets: TicketDaemon, word: str) -> None:
    ticket = tickets.new()

    answer = tickets.ann("POST", f"/v1/tickets/{ticket['ticket_id']}/{word}", {"by": "bob"})

    assert (answer.status, answer.code) == (403, "forbidden")
    assert "'bob'" in answer.json["detail"]
    assert "'ann'" in answer.json["detail"]
    assert tickets.ticket(ticket["ticket_id"]) == ticket


def test_nobody_writes_or_edits_in_the_name_of_another(tickets: TicketDaemon) -> None:
    ticket = tickets.new(created_by=" ann ")
    body = {"title": "Count", "task": "echo", "payload": {}, "created_by": "bob"}

    written = tickets.ann("POST", "/v1/tickets", body)
    edited = tickets.ann("PATCH", f"/v1/tickets/{ticket['ticket_id']}", {"title": "x", "edited_by": "bob"})

    assert [(answer.status, answer.code) for answer in (written, edited)] == [(403, "forbidden")] * 2
    assert tickets.ticket(ticket["ticket_id"]) == ticket


def test_whoever_has_the_scope_admin_acts_for_others(tickets: TicketDaemon) -> None:
    ticket = tickets.new()

    answer = tickets.boss("POST", f"/v1/tickets/{ticket['ticket_id']}/approve", {"by": "dave"})

    assert answer.json["approved_by"] == "dave"


def test_whoever_edited_a_ticket_may_not_approve_it(tickets: TicketDaemon) -> None:
    ticket = tickets.new()
    path = f"/v1/tickets/{ticket['ticket_id']}"

    edited = [tickets.bob("PATCH", path, {"title": title}) for title in ("Count more", "Count less")][-1]
    by_editor = tickets.bob("POST", f"{path}/approve", {})
    by_another = tickets.boss("POST", f"{path}/approve", {})

    assert edited.json["edited_by"] == ["bob"]
    check(tickets, "ticket", edited.json)
    assert (by_editor.status, by_editor.code) == (403, "four_eyes")
    assert (by_another.status, by_another.json["approved_by"]) == (200, "boss")


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_decision_about_a_version_that_has_moved_is_refused(tickets: TicketDaemon, word: str) -> None:
    ticket = tickets.new()
    path = f"/v1/tickets/{ticket['ticket_id']}"
    moved = tickets.ann("PATCH", path, {"payload": {"n": 2}}).json

    late = tickets.bob("POST", f"{path}/{word}", {"version": ticket["version"]})
    unchanged = tickets.ticket(ticket["ticket_id"])
    informed = tickets.bob("POST", f"{path}/{word}", {"version": moved["version"]})

    assert (late.status, late.code) == (409, "version_moved")
    assert unchanged == moved
    assert informed.status == 200, informed.body


def test_the_command_line_decides_in_the_name_of_the_token_and_about_what_was_shown(tickets: TicketDaemon) -> None:
    ticket = tickets.new()
    place = ("--url", f"http://{tickets.daemon.address}")
    edit = ("ticket", "edit", ticket["ticket_id"], "--title", "Count more", *place)
    approve = ("ticket", "approve", ticket["ticket_id"], *place)

    edited = run_jobd(*edit, JOBD_TOKEN=TOKENS["ann"].text)
    late = run_jobd(*approve, "--version", str(ticket["version"]), JOBD_TOKEN=TOKENS["bob"].text)
    approved = run_jobd(*approve, "--version", "2", JOBD_TOKEN=TOKENS["bob"].text)

    assert edited.returncode == 0, edited.stderr
    assert "version" in edited.stdout
    assert (late.returncode, approved.returncode) == (5, 0), (late.stderr, approved.stderr)
    found = tickets.ticket(ticket["ticket_id"])
    assert (found["edited_by"], found["approved_by"]) == (["ann"], "bob")


# -- live events -------------------------------------------------------------------------------------------------------


class TicketStreamReader:
    """Reads a stream beside the test until an event fits, and then leaves."""

    def __init__(self, tickets: TicketDaemon, ticket_id: str, last: str, **headers: str) -> None:
        self.seen: list[Sent] = []
        path = f"/v1/tickets/{ticket_id}/events"
        self._stream = Stream(tickets.daemon.address, path, {**tickets.headers("ann"), **headers}, timeout_s=30.0)
        self._last = last
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            for sent in self._stream:
                self.seen.append(sent)
                if sent.type != "hello" and sent.data["data"]["status"] == self._last:
                    return

    def end(self) -> list[Sent]:
        self._thread.join(30)
        assert not self._thread.is_alive(), self.seen
        return self.seen


def test_a_stream_tells_every_change_once_and_in_order(tickets: TicketDaemon) -> None:
    ticket = tickets.new()
    followers = [TicketStreamReader(tickets, ticket["ticket_id"], "DONE") for _ in range(3)]

    tickets.decide(ticket["ticket_id"], "approve")
    seen, *others = [follower.end() for follower in followers]

    assert (seen[0].type, seen[0].data["ticket_id"]) == ("hello", ticket["ticket_id"])
    assert [int(event.id) for event in seen[1:]] == list(range(1, tickets.ticket(ticket["ticket_id"])["version"] + 1))
    assert [event.data["data"]["status"] for event in seen[1:] if event.type in ("created", "status")] == [
        *("NEW", "TODO", "IN_PROGRESS", "DONE"),
    ]
    assert all(other[1:] == seen[1:] for other in others)


def test_a_stream_goes_on_behind_the_cursor_of_the_one_before(tickets: TicketDaemon) -> None:
    ticket_id = tickets.approved()
    tickets.wait_for_status(ticket_id, "DONE")
    whole = TicketStreamReader(tickets, ticket_id, "DONE").end()[1:]

    for n in range(len(whole) - 1):
        assert (
            TicketStreamReader(tickets, ticket_id, "DONE", **{"Last-Event-ID": whole[n].id}).end()[1:] == whole[n + 1 :]
        )


def test_now_begins_with_what_comes_next(tickets: TicketDaemon) -> None:
    ticket = tickets.new()
    follower = TicketStreamReader(tickets, ticket["ticket_id"], "BLOCKED", **{"Last-Event-ID": "now"})

    assert tickets.decide(ticket["ticket_id"], "reject", why="no").status == 200
    hello, blocked = follower.end()

    assert hello.data["after"] == str(ticket["version"])
    assert (blocked.type, blocked.data["data"]["was"]) == ("status", "NEW")


# -- write and list ----------------------------------------------------------------------------------------------------


def test_an_edit_changes_what_it_names_and_nothing_else(tickets: TicketDaemon) -> None:
    ticket = tickets.new(acceptance_criteria="it counts", gates=[{"type": "sign_off"}])

    edited = tickets.ann("PATCH", f"/v1/tickets/{ticket['ticket_id']}", {"title": "Count again", "max_runs": 3})

    changed = {"title": "Count again", "max_runs": 3, "version": 2, "updated_at": edited.json["updated_at"]}
    assert edited.json == {**ticket, **changed, "edited_by": ["ann"]}
    assert tickets.ticket(ticket["ticket_id"]) == edited.json


def test_a_new_ticket_is_where_its_location_says(tickets: TicketDaemon) -> None:
    answer = tickets.ann("POST", "/v1/tickets", {"title": "Count", "task": "echo", "payload": {}})

    assert tickets.ann("GET", answer.headers["location"]).json == answer.json


def test_the_same_key_leads_to_the_same_ticket(tickets: TicketDaemon) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"title": "Count", "task": "echo", "payload": {}}

    first, again = (tickets.ann("POST", "/v1/tickets", body, key) for _ in range(2))
    other = tickets.ann("POST", "/v1/tickets", {**body, "title": "Another"}, key)
    as_job = tickets.ann("POST", "/v1/jobs", {"task": "echo", "payload": {}}, key)
    refused = tickets.ann(
        "POST", "/v1/tickets", {**body, "task": "fly"}, {"Idempotency-Key": key["Idempotency-Key"] + "x"}
    )
    mended = tickets.ann("POST", "/v1/tickets", body, {"Idempotency-Key": key["Idempotency-Key"] + "x"})

    assert (first.status, first.json) == (again.status, again.json) == (201, tickets.ticket(first.json["ticket_id"]))
    assert (other.status, other.code) == (as_job.status, as_job.code) == (422, "idempotency_mismatch")
    assert (refused.status, mended.status) == (422, 201)


def test_list_says_whether_authors_may_decide(tickets: TicketDaemon, api: Api) -> None:
    assert tickets.ann("GET", "/v1/tickets?limit=1").json["four_eyes"] is True
    assert api("GET", "/v1/tickets?limit=1").json["four_eyes"] is False, "a jobd without the option"


def test_lists_have_pages_and_filters(tickets: TicketDaemon) -> None:
    person = f"eve-{uuid.uuid4()}"
    body = {"title": "Count", "task": "echo", "payload": {}, "created_by": person}
    made = [tickets.boss("POST", "/v1/tickets", body).json["ticket_id"] for _ in range(3)]
    tickets.decide(made[0], "reject")

    def listed(query: str) -> tuple[list[str], str | None]:
        page = tickets.ann("GET", f"/v1/tickets?created_by={person}&{query}").json
        return [ticket["ticket_id"] for ticket in page["tickets"]], page["next"]

    first, more = listed("limit=2")
    assert first == made[:0:-1]
    assert listed(f"limit=2&before={more}")[0] == made[:1]
    assert listed("status=BLOCKED")[0] == made[:1]
    assert listed("status=NEW&task=echo")[0] == made[:0:-1]
    assert listed("task=chat")[0] == []


def test_every_schema_is_published(tickets: TicketDaemon) -> None:
    names = tickets.ann("GET", "/v1/schemas").json["schemas"]

    assert names == [
        *("ticket", "event", "context_snapshot", "workorder"),
        *("output_bundle", "run_record"),
        "pause_state",
        "claim_record",
    ]
    for name in names:
        jsonschema_rs.Draft202012Validator(tickets.ann("GET", f"/v1/schemas/{name}").json)
    assert tickets.ann("GET", "/v1/schemas/secrets").code == "unknown_schema"
