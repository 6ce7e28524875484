"""What the OpenAPI document says is what the running jobd does, and the pages that show it are safe and whole."""

from __future__ import annotations

import json
import re
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import jsonschema_rs
import pytest
import schemathesis

import jobd
from jobd.http.app import ENDPOINTS, build_app
from jobd.http.openapi import document, path_of
from jobd.wire.problems import CATALOGUE, MEDIA_TYPE

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Answer, Api

DOCUMENT = document(ENDPOINTS)
OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    (method.upper(), path): operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
PAGES = ("/docs", "/problems")
NOBODY = "00000000-0000-0000-0000-000000000000"
JSON_LINES = {"Content-Type": "application/x-ndjson"}
TEXT = {"Content-Type": "text/plain"}
FOREIGN = {"Origin": "http://elsewhere.example"}
HELD = {"job_id": NOBODY, "attempt_id": NOBODY, "lease_token": NOBODY}
REPORT = {"worker_id": "w", **HELD}
JOB = {"task": "chat", "payload": {}}
TICKET = {**JOB, "title": "Count", "created_by": "ann"}
BY = {"by": "bob"}


# The document itself


def test_document_is_openapi_31() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()

    assert DOCUMENT["openapi"].startswith("3.1.")


@pytest.mark.parametrize("name", DOCUMENT["components"]["schemas"])
def test_type_is_a_json_schema(name: str) -> None:
    jsonschema_rs.Draft202012Validator({"components": DOCUMENT["components"], "$ref": f"#/components/schemas/{name}"})


def test_document_is_served(api: Api) -> None:
    answer = api("GET", "/openapi.json")

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == json.loads(json.dumps(DOCUMENT))


def test_document_has_every_route_and_no_other() -> None:
    routes: list[Any] = list(build_app(cast("Any", None)).routes)
    served = {(method, route.path.replace(":path}", "}")) for route in routes for method in route.methods - {"HEAD"}}

    assert served == OPERATIONS.keys()


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_parts_of_a_path_are_described(path: str) -> None:
    for operation in DOCUMENT["paths"][path].values():
        described = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert described == re.findall(r"\{(\w+)\}", path)


def test_calls_ask_for_the_token_that_their_route_asks_for() -> None:
    for endpoint in ENDPOINTS:
        security = OPERATIONS[endpoint.method, path_of(endpoint)]["security"]
        assert security == ([] if endpoint.scope == "public" else [{"token": [endpoint.scope]}])


def test_every_problem_belongs_to_a_call() -> None:
    refusals = DOCUMENT["components"]["responses"].values()
    contents = [refusal["content"] for refusal in refusals]
    schemas = [content[MEDIA_TYPE]["schema"] for content in contents if MEDIA_TYPE in content]
    codes = {code for schema in schemas for code in schema["allOf"][1]["properties"]["code"]["enum"]}

    assert codes == CATALOGUE.keys() - {"method_not_allowed"}  # it is the answer where there is no such call


def test_fields_are_described_by_their_comments() -> None:
    types = DOCUMENT["components"]["schemas"]

    assert types["Submit"]["properties"]["payload"]["description"] == "Handed to the task as it is."
    assert types["CompleteRequest"]["properties"]["stream"]["description"].startswith("What the claim answered.")
    assert types["WorkerEvent"]["properties"]["type"]["description"] == "1 to 64 of a-z 0-9 _ . -"


def test_every_comment_on_a_field_is_in_the_document() -> None:
    """Found by another way than `field_comments`, which would leave them all out if it found no source."""
    types = DOCUMENT["components"]["schemas"]
    commented = {
        (name, field)
        for path in (*Path(jobd.__file__).parent.glob("wire/*.py"), *Path(jobd.__file__).parent.glob("http/*.py"))
        for name, body in re.findall(r"^class (\w+)\(.*\n((?:    .*\n|\n)*)", path.read_text("utf-8"), re.MULTILINE)
        for field in re.findall(r"^    #: .*\n    (\w+): ", body, re.MULTILINE)
    }

    described = {(name, field) for name, field in commented if field in types.get(name, {}).get("properties", {})}

    assert len(described) > 100
    assert {
        (name, field) for name, field in described if "description" not in types[name]["properties"][field]
    } == set()


def test_types_are_called_by_their_names_alone() -> None:
    """Two types of one name would be called by their modules, and lose their comments."""
    assert [name for name in DOCUMENT["components"]["schemas"] if "." in name] == []


def test_patterns_are_those_of_json_schema() -> None:
    assert not re.search(r'"pattern": "[^"]*\\\\[AZz]', json.dumps(DOCUMENT))


# The running jobd against the document


def ticket_in(state: str, api: Api, workers: DatabaseWorkers) -> str:
    ticket_id: str = api("POST", "/v1/tickets", TICKET).json["ticket_id"]
    if state != "ticket":
        api("POST", f"/v1/tickets/{ticket_id}/approve", BY)
    if state == "gone_ticket":
        for step in ("status = 'IN_PROGRESS', step = 'RUN'", "status = 'DONE', step = NULL"):
            workers.rows(f"UPDATE tickets SET {step}, version = version + 1 WHERE ticket_id = $1", UUID(ticket_id))
        workers.prune_tickets()
    return ticket_id


def job_in(state: str, api: Api, workers: DatabaseWorkers) -> str:
    job_id: str = api("POST", "/v1/jobs", JOB).json["job_id"]
    if state == "running":
        workers.start(job_id)
    elif state in ("done", "gone"):
        workers.finish(job_id)
    elif state == "dead":
        workers.fail(job_id)
    if state == "gone":
        workers.prune()
    return job_id


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("POST", "/v1/jobs", JOB, {}, 202),
        ("POST", "/v1/jobs", {**JOB, "queue": "fast", "delay_s": 9, "dedupe": "active"}, {}, 202),
        ("POST", "/v1/jobs", {"task": "chat"}, {}, "invalid"),
        ("POST", "/v1/jobs", [], {}, "not_object"),
        ("POST", "/v1/jobs", b"{", {}, "not_json"),
        ("POST", "/v1/jobs", b"{}", TEXT, "unsupported_media_type"),
        ("POST", "/v1/jobs", JOB, FOREIGN, "foreign_origin"),
        ("POST", "/v1/jobs", JOB, {"Host": "elsewhere.example"}, "wrong_host"),
        ("POST", "/v1/jobs", JOB, {"Idempotency-Key": "a b"}, "bad_idempotency_key"),
        ("POST", "/v1/jobs", {"task": "nobody", "payload": {}}, {}, "unknown_task"),
        ("POST", "/v1/jobs", {**JOB, "queue": "nowhere"}, {}, "unknown_queue"),
        ("POST", "/v1/jobs", {"task": "chat", "payload": {"a": "b" * 204_800}}, {}, "too_large"),
        ("POST", "/v1/jobs", b" " * 400_000, {}, "body_too_large"),
        ("POST", "/v1/jobs?token=x", JOB, {}, "token_in_url"),
        ("POST", "/v1/jobs", JOB, {"X-Long": "x" * 17_000}, "headers_too_large"),
        ("POST", "/v1/jobs/batch", [JOB, JOB], {}, 202),
        ("POST", "/v1/jobs/batch", b'{"task": "chat", "payload": {}}\n', JSON_LINES, 202),
        ("POST", "/v1/jobs/batch", [JOB, {}], {}, "invalid"),
        ("POST", "/v1/jobs/batch", [JOB] * 10_001, {}, "too_many_items"),
        ("GET", "/v1/jobs", None, {}, 200),
        ("GET", "/v1/jobs?limit=1&status=queued&task=chat", None, {}, 200),
        ("GET", "/v1/jobs?limit=0", None, {}, "invalid"),
        ("GET", "/v1/jobs/{queued}", None, {}, 200),
        ("GET", "/v1/jobs/{running}", None, {}, 200),
        ("GET", "/v1/jobs/{done}?wait_s=9", None, {}, 200),
        ("GET", "/v1/jobs/{dead}", None, {}, 200),
        ("GET", "/v1/jobs/{queued}?wait_s=-1", None, {}, "invalid"),
        ("GET", "/v1/jobs/{gone}", None, {}, "gone_job"),
        ("GET", f"/v1/jobs/{NOBODY}", None, {}, "unknown_job"),
        ("GET", "/v1/jobs/a%2Fb", None, {}, "not_found"),
        ("GET", "/v1/jobs/{done}/result", None, {}, 200),
        ("GET", "/v1/jobs/{running}/result", None, {}, "no_result"),
        ("GET", "/v1/jobs/{gone}/result", None, {}, "gone_job"),
        ("GET", f"/v1/jobs/{NOBODY}/result", None, {}, "unknown_job"),
        ("GET", f"/v1/jobs/{NOBODY}/result?a=b", None, {}, "invalid"),
        ("GET", "/v1/jobs/{done}/events", None, {}, 200),
        ("GET", "/v1/jobs/{done}/events", None, {"Last-Event-ID": "x"}, "bad_cursor"),
        ("GET", "/v1/jobs/{done}/events?after=99-0", None, {}, "cursor_ahead"),
        ("GET", "/v1/jobs/{gone}/events", None, {}, "gone_job"),
        ("GET", f"/v1/jobs/{NOBODY}/events", None, {}, "unknown_job"),
        ("GET", "/v1/jobs/{done}/events?before=1", None, {}, "invalid"),
        ("GET", "/v1/events?type=token", None, {}, "invalid"),
        ("POST", "/v1/jobs/{queued}/cancel", None, {}, 200),
        ("POST", "/v1/jobs/{running}/cancel", None, {}, 200),
        ("POST", "/v1/jobs/{done}/cancel", None, {}, "already_final"),
        ("POST", "/v1/jobs/{gone}/cancel", None, {}, "gone_job"),
        ("POST", "/v1/jobs/{dead}/retry", None, {}, 202),
        ("POST", "/v1/jobs/{done}/retry", None, {}, "not_dead"),
        ("GET", "/v1/queues", None, {}, 200),
        ("GET", "/v1/queues?a=b", None, {}, "invalid"),
        ("POST", "/v1/queues/fast/pause", None, {}, 200),
        ("POST", "/v1/queues/fast/resume", None, {}, 200),
        ("POST", "/v1/queues/nowhere/pause", None, {}, "no_such_queue"),
        ("GET", "/v1/tasks", None, {}, 200),
        ("GET", "/v1/tasks?a=b", None, {}, "invalid"),
        ("GET", "/v1/tasks/chat", None, {}, 200),
        ("GET", "/v1/tasks/fly", None, {}, "no_such_task"),
        ("GET", "/v1/workers", None, {}, 200),
        ("GET", "/v1/workers?held=5&limit=10", None, {}, 200),
        ("GET", "/v1/workers?limit=0", None, {}, "invalid"),
        ("GET", "/v1/config", None, {}, 200),
        ("GET", "/v1/config?section=auth", None, {}, "invalid"),
        ("GET", "/v1/audit", None, {}, 200),
        ("GET", "/v1/audit?limit=5&before=7", None, {}, 200),
        ("GET", "/v1/audit?before=x", None, {}, "invalid"),
        ("GET", "/v1/stats", None, {}, 200),
        ("GET", "/v1/stats?a=b", None, {}, "invalid"),
        ("GET", "/v1/dlq", None, {}, 200),
        ("GET", "/v1/dlq?before=x", None, {}, "invalid"),
        ("POST", "/v1/dlq/retry", {"ids": ["{dead}"]}, {}, 200),
        ("POST", "/v1/dlq/retry", {"ids": []}, {}, "invalid"),
        ("POST", "/v1/dlq/retry", b'{"limit": 1, "limit": 2}', {}, "duplicate_key"),
        ("POST", "/internal/worker/claim", {"worker_id": "w", "streams": ["jobs:stream:fast"]}, {}, 200),
        ("POST", "/internal/worker/claim", {"worker_id": "w", "streams": ["x"]}, {}, "unknown_stream"),
        ("POST", "/internal/worker/claim", {"worker_id": "w", "streams": ["jobs:stream:fast"], "max_jobs": 2}, {}, 200),
        ("POST", "/internal/worker/heartbeat", {"worker_id": "w", "job_id": NOBODY, "lease_token": ""}, {}, 200),
        ("POST", "/internal/worker/heartbeat", {"worker_id": "w"}, {}, "invalid"),
        (
            *("POST", "/internal/worker/heartbeat"),
            {"worker_id": "w", "jobs": [{"job_id": NOBODY, "lease_token": NOBODY}]},
            *({}, 200),
        ),
        ("POST", "/internal/worker/complete", {**REPORT, "result": None}, {}, 200),
        ("POST", "/internal/worker/complete", REPORT, {}, "invalid"),
        ("POST", "/internal/worker/complete", b"[" * 40 + b"]" * 40, {}, "result_too_deep"),
        ("POST", "/internal/worker/fail", {**REPORT, "error": {"code": "no"}}, {}, 200),
        ("POST", "/internal/worker/fail", b"\xff", {}, "not_utf8"),
        ("POST", "/internal/worker/release", REPORT, {}, 200),
        ("POST", "/internal/worker/release", {"worker_id": "w"}, {}, "invalid"),
        ("POST", "/internal/worker/complete/batch", {"worker_id": "w", "jobs": [{**HELD, "result": None}]}, {}, 200),
        ("POST", "/internal/worker/complete/batch", {"worker_id": "w", "jobs": [HELD]}, {}, 200),
        ("POST", "/internal/worker/complete/batch", {"worker_id": "w", "jobs": []}, {}, "invalid"),
        (
            "POST",
            "/internal/worker/fail/batch",
            {"worker_id": "w", "jobs": [{**HELD, "error": {"code": "no"}}]},
            {},
            200,
        ),
        ("POST", "/internal/worker/fail/batch", b"\xff", {}, "not_utf8"),
        ("POST", "/internal/worker/release/batch", {"worker_id": "w", "jobs": [HELD]}, {}, 200),
        ("POST", "/internal/worker/release/batch", {"worker_id": "w"}, {}, "invalid"),
        (
            *("POST", "/internal/worker/events"),
            {"worker_id": "w", "job_id": NOBODY, "lease_token": NOBODY, "events": [{"type": "log"}]},
            *({}, 200),
        ),
        ("POST", "/internal/worker/events", {"worker_id": "w"}, {}, "invalid"),
        (
            *("POST", "/internal/worker/events/batch"),
            {"worker_id": "w", "jobs": [{"job_id": NOBODY, "lease_token": NOBODY, "events": [{"type": "log"}]}]},
            *({}, 200),
        ),
        ("POST", "/internal/worker/events/batch", {"worker_id": "w", "jobs": []}, {}, "invalid"),
        ("POST", "/v1/groups", {"name": "a", "callback": {"task": "embed", "payload": {}}}, {}, 201),
        ("POST", "/v1/groups", {"name": ""}, {}, "invalid"),
        ("GET", f"/v1/groups/{NOBODY}", None, {}, "no_such_group"),
        ("GET", "/v1/groups?limit=2", None, {}, 200),
        ("GET", f"/v1/groups/{NOBODY}/events", None, {}, "no_such_group"),
        ("POST", f"/v1/groups/{NOBODY}/seal", None, {}, "no_such_group"),
        ("POST", f"/v1/groups/{NOBODY}/cancel", {}, {}, "no_such_group"),
        ("POST", f"/v1/groups/{NOBODY}/retry", {}, {}, "no_such_group"),
        ("GET", "/v1/jobs/{queued}/graph", None, {}, 200),
        ("POST", "/v1/jobs", {"task": "embed", "payload": {}, "depends_on": ["{queued}"]}, {}, 202),
        ("POST", "/v1/jobs", {"task": "embed", "payload": {}, "depends_on": [NOBODY]}, {}, "unknown_dependency"),
        ("GET", "/livez", None, {}, 200),
        ("GET", "/readyz", None, {}, 200),
        ("GET", "/readyz", None, {"Host": "elsewhere.example"}, "wrong_host"),
        ("POST", "/v1/tickets", TICKET, {}, 201),
        ("POST", "/v1/tickets", {**TICKET, "gates": [{"type": "schema", "schema": {}}, {"type": "sign_off"}]}, {}, 201),
        ("POST", "/v1/tickets", {**TICKET, "task": "nobody"}, {}, "unknown_task"),
        ("POST", "/v1/tickets", {**TICKET, "gates": [{"type": "schema", "schema": {"type": 1}}]}, {}, "bad_schema"),
        ("GET", "/v1/tickets?limit=5&status=NEW", None, {}, 200),
        ("GET", "/v1/tickets?status=OPEN", None, {}, "invalid"),
        ("GET", "/v1/tickets/{ticket}", None, {}, 200),
        ("GET", f"/v1/tickets/{NOBODY}", None, {}, "unknown_ticket"),
        ("GET", "/v1/tickets/{gone_ticket}", None, {}, "gone_ticket"),
        ("GET", "/v1/tickets/{gone_ticket}/trail", None, {}, "gone_ticket"),
        ("GET", "/v1/tickets/{gone_ticket}/events", None, {}, "gone_ticket"),
        ("PATCH", "/v1/tickets/{gone_ticket}", {"title": "Count again"}, {}, "gone_ticket"),
        ("POST", "/v1/tickets/{gone_ticket}/reopen", BY, {}, "gone_ticket"),
        ("PATCH", "/v1/tickets/{ticket}", {"title": "Count again"}, {}, 200),
        ("PATCH", "/v1/tickets/{ticket}", {"blocked_on": ["{ticket}"]}, {}, "blocker_cycle"),
        ("PATCH", "/v1/tickets/{approved}", {"title": "Count again"}, {}, "not_new"),
        ("GET", "/v1/tickets/{approved}/trail", None, {}, 200),
        ("GET", "/v1/tickets/{ticket}/events?after=9", None, {}, "cursor_ahead"),
        ("POST", "/v1/tickets/{ticket}/approve", BY, {}, 200),
        ("POST", "/v1/tickets/{approved}/approve", BY, {}, "illegal_transition"),
        ("POST", "/v1/tickets/{ticket}/reject", BY, {}, 200),
        ("POST", "/v1/tickets/{ticket}/unblock", BY, {}, "illegal_transition"),
        ("POST", "/v1/tickets/{ticket}/reopen", BY, {}, "illegal_transition"),
        ("POST", "/v1/tickets/{ticket}/sign-off", BY, {}, "no_sign_off"),
        ("GET", "/v1/schemas", None, {}, 200),
        ("GET", "/v1/schemas/run_record", None, {}, 200),
        ("GET", "/v1/schemas/nothing", None, {}, "unknown_schema"),
        ("GET", "/openapi.json", None, {}, 200),
        ("GET", "/docs", None, {}, 200),
        ("GET", "/docs/viewer.css", None, {}, 200),
        ("GET", "/docs/viewer.js", None, {}, 200),
        ("GET", "/problems", None, {}, 200),
        ("GET", "/", None, {}, 200),
        ("GET", "/page/app.js", None, {}, 200),
        ("GET", "/page/rooms.js", None, {}, 200),
        ("GET", "/page/app.css", None, {}, 200),
        ("GET", "/page/icon.svg", None, {}, 200),
        ("GET", "/page/manifest.webmanifest", None, {}, 200),
        ("GET", "/problems?" + "x" * 9_000, None, {}, "uri_too_long"),
    ],
)
def test_answer_is_as_described(
    api: Api, workers: DatabaseWorkers, method: str, path: str, body: Any, headers: dict[str, str], expected: int | str
) -> None:
    template = template_of(method, path)
    for state in set(
        re.findall(r"\{(queued|running|done|dead|gone|ticket|approved|gone_ticket)\}", f"{path} {body!r}")
    ):
        is_ticket = state in ("ticket", "approved", "gone_ticket")
        job_id = ticket_in(state, api, workers) if is_ticket else job_in(state, api, workers)
        path = path.replace(f"{{{state}}}", job_id)
        body = json.loads(json.dumps(body).replace(f"{{{state}}}", job_id))

    answer = api(method, path, body, headers)

    assert answer.code == expected if isinstance(expected, str) else answer.status == expected, answer
    check_described(answer, OPERATIONS[method, template])


def template_of(method: str, path: str) -> str:
    """The path in the document; what stands for an id may look like nothing else that there is."""
    plain = path.partition("?")[0]
    fixed = [known for known_method, known in OPERATIONS if known_method == method and known == plain]
    patterns = {
        known: re.sub(r"\{\w+\}", "[^/]+", known) for known_method, known in OPERATIONS if known_method == method
    }
    return (fixed or [known for known, pattern in patterns.items() if re.fullmatch(pattern, plain)])[0]


def check_described(answer: Answer, operation: dict[str, Any]) -> None:
    described = operation["responses"][str(answer.status)]
    if "$ref" in described:
        described = DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    kind = answer.headers["content-type"].partition(";")[0]
    schema = json.dumps(described["content"][kind]["schema"])
    value = answer.json if kind.endswith("json") else answer.body.decode()
    strict(schema).validate(value)
    missing = {name for name in described["headers"] if name.lower() not in answer.headers}
    assert missing == set()


@cache
def strict(schema: str) -> jsonschema_rs.Validator:
    """Answers may grow for clients, but not behind the document's back."""
    components = json.loads(json.dumps(DOCUMENT["components"]))
    for component in components["schemas"].values():
        component["additionalProperties"] = False
    return jsonschema_rs.Draft202012Validator({**json.loads(schema), "components": components}, validate_formats=True)


def test_path_with_a_slash_too_many_is_no_path(api: Api) -> None:
    answer = api("GET", "/v1/jobs/")

    assert (answer.status, answer.code) == (404, "not_found")


# The pages


@pytest.mark.parametrize("path", PAGES)
def test_page_loads_nothing_from_elsewhere_and_has_no_script_in_it(api: Api, path: str) -> None:
    page = api("GET", path)

    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert "unsafe" not in page.headers["content-security-policy"]
    text = page.body.decode()
    sources = re.findall(r'(?:src|href)="([^"#]*)"', text)
    assert {source for source in sources if not source.startswith("data:")} <= {
        *("docs/viewer.css", "docs/viewer.js", "openapi.json", "problems", "docs", ""),
    }
    assert not re.search(r"<style|style=|<script(?! src=)|\son\w+=", text)


def test_viewer_writes_text_and_no_markup(api: Api) -> None:
    script = api("GET", "/docs/viewer.js").body.decode()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://", script)


@pytest.mark.parametrize("code", CATALOGUE)
def test_problem_has_its_place_on_the_page(api: Api, code: str) -> None:
    page = api("GET", "/problems").body.decode()

    row = re.search(rf'<tr id="{code}">.*</tr>', page)
    assert row is not None
    assert f"<td>{CATALOGUE[code].status}</td>" in row[0]


def test_problem_names_its_place_on_the_page(api: Api) -> None:
    problem = api("GET", f"/v1/jobs/{NOBODY}").json

    assert problem["type"] == "/problems#unknown_job"
    assert problem["title"] == HTTPStatus(404).phrase
