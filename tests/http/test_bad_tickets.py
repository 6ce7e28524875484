"""Bad tickets and decisions out of turn: each is refused with its status and code, and leaves no trace."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"
GOOD: dict[str, Any] = {"title": "Count the cats", "task": "embed", "payload": {}, "created_by": "ann"}
DEEP: Any = "leaf"
for _ in range(40):
    DEEP = [DEEP]

TRACES = """
SELECT
    (SELECT string_agg(tickets::text, ';' ORDER BY ticket_id) FROM tickets), (SELECT count(*) FROM ticket_log),
    (SELECT count(*) FROM ticket_decisions), (SELECT count(*) FROM ticket_events),
    (SELECT count(*) FROM idempotency_keys)
"""
#: The way to each status, and the columns that have to change with it.
STEPS: dict[str, tuple[str, ...]] = {
    "NEW": (),
    "TODO": ("status = 'TODO', approved_by = 'bob', todo_no = 1, todo_at = now()",),
}
STEPS["BLOCKED"] = (*STEPS["TODO"], "status = 'BLOCKED', blocked_reason = 'it failed'")
STEPS["IN_PROGRESS"] = (*STEPS["TODO"], "status = 'IN_PROGRESS', ready_no = 1, step = 'RUN'")
STEPS["DONE"] = (*STEPS["IN_PROGRESS"], "status = 'DONE', step = NULL")
STATUSES = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE")


def new(api: Api, **fields: Any) -> str:
    answer = api("POST", "/v1/tickets", {**GOOD, **fields})
    assert answer.status == 201, answer.body
    ticket_id: str = answer.json["ticket_id"]
    return ticket_id


def ticket_in(api: Api, workers: DatabaseWorkers, status: str) -> str:
    """A ticket as if it had come there; nobody works on tickets here."""
    ticket_id = new(api)
    for step in STEPS[status]:
        workers.rows(f"UPDATE tickets SET {step}, version = version + 1 WHERE ticket_id = $1", uuid.UUID(ticket_id))
    return ticket_id


def traces(workers: DatabaseWorkers) -> tuple[Any, ...]:
    return workers.rows(TRACES)[0]


def rows(found: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*row[1:], id=row[0]) for row in found]


# -- what a ticket may not say -----------------------------------------------------------------------------------------


def gate(**fields: Any) -> dict[str, Any]:
    return {"gates": [fields]}


FIELDS: list[tuple[str, dict[str, Any], int, str]] = [
    ("unknown task", {"task": "fly"}, 422, "unknown_task"),
    ("task that is no name", {"task": "Fly!"}, 422, "invalid"),
    ("payload is an array", {"payload": []}, 422, "not_object"),
    ("payload is null", {"payload": None}, 422, "not_object"),
    ("payload too large", {"payload": {"text": "x" * 204_800}}, 413, "too_large"),
    (
        "payload too large when filled in",
        {"payload": {"text": "{{title}}" * 900}, "title": "x" * 500},
        413,
        "too_large",
    ),
    ("payload too deep", {"payload": {"deep": DEEP}}, 400, "too_deep"),
    ("nul in the payload", {"payload": {"text": "\0"}}, 422, "nul"),
    ("nul in the title", {"title": "a\0b"}, 422, "nul"),
    ("half a pair", {"title": "\ud800"}, 422, "surrogate"),
    ("empty title", {"title": ""}, 422, "invalid"),
    ("blank title", {"title": " \t\n"}, 422, "invalid"),
    ("long title", {"title": "x" * 501}, 422, "invalid"),
    ("title is a number", {"title": 1}, 422, "invalid"),
    ("long criteria", {"acceptance_criteria": "x" * 20_001}, 422, "invalid"),
    ("many criteria", {"acceptance_criteria": ["x"] * 101}, 422, "invalid"),
    ("criteria of numbers", {"acceptance_criteria": [1]}, 422, "invalid"),
    ("criteria are null", {"acceptance_criteria": None}, 422, "invalid"),
    ("blank repo_ref", {"repo_ref": " "}, 422, "invalid"),
    ("long base_branch", {"base_branch": "x" * 501}, 422, "invalid"),
    *[(f"budget_ms = {bad!r}", {"budget_ms": bad}, 422, "invalid") for bad in (0, -1, 1.5, "5", True, None, 2**62)],
    *[(f"max_runs = {bad!r}", {"max_runs": bad}, 422, "invalid") for bad in (0, -1, 101, 1.5, "5", True, None)],
    ("unknown field", {"priority": 1}, 422, "invalid"),
    ("status of one's own", {"status": "TODO"}, 422, "invalid"),
    ("approved by oneself", {"approved_by": "bob"}, 422, "invalid"),
    ("id of one's own", {"ticket_id": NOBODY}, 422, "invalid"),
    ("gates are an object", {"gates": {}}, 422, "invalid"),
    ("gates are null", {"gates": None}, 422, "invalid"),
    ("too many gates", {"gates": [{"type": "minimum", "pointer": "", "value": 1}] * 21}, 422, "invalid"),
    ("gate without a type", gate(schema={}), 422, "invalid"),
    ("gate of an unknown type", gate(type="prayer"), 422, "invalid"),
    ("gate is a string", {"gates": ["sign_off"]}, 422, "invalid"),
    ("schema gate without a schema", gate(type="schema"), 422, "invalid"),
    ("schema is a string", gate(type="schema", schema="{}"), 422, "invalid"),
    ("schema with an unknown type", gate(type="schema", schema={"type": "cat"}), 422, "bad_schema"),
    ("schema with a bad pattern", gate(type="schema", schema={"pattern": "("}), 422, "bad_schema"),
    ("schema that points nowhere", gate(type="schema", schema={"$ref": "#/$defs/none"}), 422, "bad_schema"),
    ("schema that points outside", gate(type="schema", schema={"$ref": "http://127.0.0.1:1/x"}), 422, "bad_schema"),
    ("schema that points to a file", gate(type="schema", schema={"$ref": "file:///etc/passwd"}), 422, "bad_schema"),
    ("schema too large", gate(type="schema", schema={"enum": ["x" * 70_000]}), 422, "bad_schema"),
    ("schema gate with more", gate(type="schema", schema={}, name="x"), 422, "invalid"),
    ("minimum without a pointer", gate(type="minimum", value=1), 422, "invalid"),
    ("minimum without a value", gate(type="minimum", pointer="/a"), 422, "invalid"),
    ("minimum of a text", gate(type="minimum", pointer="/a", value="1"), 422, "invalid"),
    ("minimum of null", gate(type="minimum", pointer="/a", value=None), 422, "invalid"),
    ("minimum with no pointer of JSON", gate(type="minimum", pointer="score", value=1), 422, "bad_gate"),
    ("minimum with a bad escape", gate(type="minimum", pointer="/~2", value=1), 422, "bad_gate"),
    ("minimum with a long pointer", gate(type="minimum", pointer="/" * 1001, value=1), 422, "invalid"),
    ("sign_off with more", gate(type="sign_off", by="bob"), 422, "invalid"),
    ("two sign_offs", {"gates": [{"type": "sign_off"}] * 2}, 422, "bad_gate"),
    ("command that is not configured", gate(type="command", name="lint"), 422, "unknown_gate"),
    ("command without a name", gate(type="command"), 422, "invalid"),
    ("command that is a path", gate(type="command", name="../bin/sh"), 422, "invalid"),
    ("command of one's own", gate(type="command", name="lint", argv=["sh"]), 422, "invalid"),
    ("unknown blocker", {"blocked_on": [NOBODY]}, 422, "unknown_blocker"),
    ("blocker that is no id", {"blocked_on": ["x"]}, 422, "invalid"),
    ("too many blockers", {"blocked_on": [NOBODY] * 101}, 422, "invalid"),
]
ONLY_NEW: list[tuple[str, dict[str, Any], int, str]] = [
    *[(f"created_by = {bad!r}", {"created_by": bad}, 422, "invalid") for bad in ("", " \n", "x" * 201, None, 5)],
]
WHOLE: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, "not_json"),
    ("cut short", json.dumps(GOOD).encode()[:-1], 400, "not_json"),
    ("null", b"null", 422, "not_object"),
    ("array", b"[]", 422, "not_object"),
    ("twice the title", b'{"title": "a", "title": "b"}', 400, "duplicate_key"),
    ("NaN", b'{"title": NaN}', 400, "nan"),
    ("too large", b" " * 600_000, 413, "body_too_large"),
]


@pytest.mark.parametrize(("fields", "status", "code"), rows(FIELDS + ONLY_NEW))
def test_a_bad_ticket_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, fields: dict[str, Any], status: int, code: str
) -> None:
    before = traces(workers)

    answer = api("POST", "/v1/tickets", {**GOOD, **fields}, {"Idempotency-Key": "bad-ticket"})

    assert (answer.status, answer.code) == (status, code), answer.body
    assert traces(workers) == before


@pytest.mark.parametrize(("fields", "status", "code"), rows(FIELDS))
def test_a_bad_edit_is_refused_and_changes_nothing(
    api: Api, workers: DatabaseWorkers, fields: dict[str, Any], status: int, code: str
) -> None:
    ticket_id = new(api)
    before = traces(workers)

    answer = api("PATCH", f"/v1/tickets/{ticket_id}", {"title": "x", **fields})

    assert (answer.status, answer.code) == (status, code), answer.body
    assert traces(workers) == before


@pytest.mark.parametrize(("body", "status", "code"), rows(WHOLE))
@pytest.mark.parametrize("word", ["", "/{id}", "/{id}/approve", "/{id}/sign-off"])
def test_a_bad_body_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, word: str, body: bytes, status: int, code: str
) -> None:
    path = f"/v1/tickets{word.replace('{id}', new(api))}"
    before = traces(workers)

    answer = api("PATCH" if word == "/{id}" else "POST", path, body)

    assert (answer.status, answer.code) == (status, code), answer.body
    assert traces(workers) == before


@pytest.mark.parametrize("field", ["title", "task", "payload", "created_by"])
def test_a_missing_field_is_named(api: Api, field: str) -> None:
    answer = api("POST", "/v1/tickets", {name: value for name, value in GOOD.items() if name != field})

    assert (answer.status, answer.code) == (422, "invalid")
    assert field in answer.json["detail"]


def test_tickets_cannot_wait_for_each_other(api: Api, workers: DatabaseWorkers) -> None:
    first = new(api)
    second = new(api, blocked_on=[first])
    before = traces(workers)

    answer = api("PATCH", f"/v1/tickets/{first}", {"blocked_on": [second]})
    of_itself = api("PATCH", f"/v1/tickets/{first}", {"blocked_on": [first]})

    assert (answer.status, answer.code) == (of_itself.status, of_itself.code) == (422, "blocker_cycle")
    assert traces(workers) == before


# -- decisions ---------------------------------------------------------------------------------------------------------

#: Where each verb applies, and what it says elsewhere.
VERBS = {
    "approve": (("NEW",), "illegal_transition"),
    "reject": (("NEW", "TODO", "BLOCKED"), "illegal_transition"),
    "unblock": (("BLOCKED",), "illegal_transition"),
    "reopen": (("DONE",), "illegal_transition"),
    "sign-off": ((), "no_sign_off"),
}
ILLEGAL = [
    (f"{verb} a ticket that is {status}", verb, status, code)
    for verb, (legal, code) in VERBS.items()
    for status in STATUSES
    if status not in legal
]


@pytest.mark.parametrize(("verb", "status", "code"), rows(ILLEGAL))
def test_an_illegal_transition_is_refused_and_changes_nothing(
    api: Api, workers: DatabaseWorkers, verb: str, status: str, code: str
) -> None:
    ticket_id = ticket_in(api, workers, status)
    before = traces(workers)

    answer = api("POST", f"/v1/tickets/{ticket_id}/{verb}", {"by": "carol", "why": "why not"})

    assert (answer.status, answer.code) == (409, code), answer.body
    assert status in answer.json["detail"]
    assert traces(workers) == before


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "NEW"])
def test_only_a_new_ticket_is_edited(api: Api, workers: DatabaseWorkers, status: str) -> None:
    ticket_id = ticket_in(api, workers, status)
    before = traces(workers)

    answer = api("PATCH", f"/v1/tickets/{ticket_id}", {"title": "Count the dogs"})

    assert (answer.status, answer.code) == (409, "not_new"), answer.body
    assert traces(workers) == before


def test_a_ticket_is_approved_once(api: Api, workers: DatabaseWorkers) -> None:
    ticket_id = new(api)
    first = api("POST", f"/v1/tickets/{ticket_id}/approve", {"by": "bob"})
    before = traces(workers)

    again = api("POST", f"/v1/tickets/{ticket_id}/approve", {"by": "carol"})

    assert (first.status, first.json["approved_by"]) == (200, "bob")
    assert (again.status, again.code) == (409, "illegal_transition")
    assert traces(workers) == before


def test_a_ticket_is_rejected_once(api: Api, workers: DatabaseWorkers) -> None:
    ticket_id = new(api)
    first = api("POST", f"/v1/tickets/{ticket_id}/reject", {"by": "bob"})
    before = traces(workers)

    again = api("POST", f"/v1/tickets/{ticket_id}/reject", {"by": "carol"})

    assert (first.status, first.json["status"]) == (200, "BLOCKED")
    assert (again.status, again.code) == (409, "illegal_transition")
    assert traces(workers) == before


WORDS: list[tuple[str, dict[str, Any]]] = [
    *[(f"by = {bad!r}", {"by": bad}) for bad in ("", "  ", "x" * 201, None, 5, ["bob"])],
    *[(f"why = {bad!r:.20}", {"by": "bob", "why": bad}) for bad in ("x" * 20_001, None, 5)],
    *[(f"version = {bad!r}", {"by": "bob", "version": bad}) for bad in (0, -1, 1 << 31, 1.5, "1", None)],
    ("by is missing, and there is no token", {"why": "fine"}),
    ("unknown field", {"by": "bob", "status": "DONE"}),
]


@pytest.mark.parametrize("body", rows(WORDS))
@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_without_a_name_or_with_odd_words_is_refused(
    api: Api, workers: DatabaseWorkers, verb: str, body: dict[str, Any]
) -> None:
    ticket_id = new(api)
    before = traces(workers)

    answer = api("POST", f"/v1/tickets/{ticket_id}/{verb}", body)

    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert traces(workers) == before


@pytest.mark.parametrize("accept", [None, 1, "yes"])
def test_a_sign_off_is_yes_or_no(api: Api, accept: Any) -> None:
    answer = api("POST", f"/v1/tickets/{new(api)}/sign-off", {"by": "bob", "accept": accept})

    assert (answer.status, answer.code) == (422, "invalid")


# -- paths and queries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ticket_id", [NOBODY, NOBODY.replace("-", ""), "x", "0" * 36, "{id}"])
def test_an_unknown_ticket_is_not_there(api: Api, ticket_id: str) -> None:
    path = f"/v1/tickets/{ticket_id}"
    answers = [
        *[api("GET", f"{path}{more}") for more in ("", "/trail", "/events")],
        *[api("POST", f"{path}/{verb}", {"by": "bob"}) for verb in VERBS],
        api("PATCH", path, {"title": "x"}),
    ]

    assert {(answer.status, answer.code) for answer in answers} == {(404, "unknown_ticket")}


def test_a_ticket_that_retention_deleted_is_gone(api: Api, workers: DatabaseWorkers) -> None:
    path = f"/v1/tickets/{ticket_in(api, workers, 'DONE')}"
    workers.prune_tickets()

    answers = [
        *[api("GET", f"{path}{more}") for more in ("", "/trail", "/events")],
        *[api("POST", f"{path}/{verb}", {"by": "bob"}) for verb in VERBS],
        api("PATCH", path, {"title": "x"}),
    ]

    assert {(answer.status, answer.code) for answer in answers} == {(410, "gone_ticket")}


@pytest.mark.parametrize(
    "query",
    [
        *("status=OPEN", "status=new", "status=", "status=NEW&status=TODO", "task=*", "task=Fly", "created_by="),
        *("created_by=%20", "created_by=" + "x" * 201, "limit=0", "limit=101", "limit=x", "before=x", "before="),
        *("approved=1", "offset=3"),
    ],
)
def test_a_bad_filter_is_refused_by_name(api: Api, query: str) -> None:
    answer = api("GET", f"/v1/tickets?{query}")

    assert (answer.status, answer.code) == (422, "invalid")
    assert query.partition("=")[0] in answer.json["detail"]


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        *[("", {"Last-Event-ID": bad}, 400, "bad_cursor") for bad in ("x", "-1", "1.5", "1-0", "9" * 20, "NOW")],
        ("?after=1", {"Last-Event-ID": "2"}, 400, "bad_cursor"),
        ("?after=99", {}, 409, "cursor_ahead"),
        ("", {"Last-Event-ID": "2"}, 409, "cursor_ahead"),
        ("?since=1", {}, 422, "invalid"),
    ],
)
def test_a_cursor_that_is_none_is_refused(
    api: Api, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = api("GET", f"/v1/tickets/{new(api)}/events{query}", headers=headers)

    assert (answer.status, answer.code) == (status, code), answer.body
