"""Tokens with `own_jobs`: whatever they call, jobs of others are as unknown to them as jobs that never were."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobd.auth.token import new_token
from jobd.http.app import ENDPOINTS
from tests.support.daemon import Jobd
from tests.support.database_workers import DatabaseWorkers, database_workers
from tests.support.forms import send_file
from tests.support.http import Answer, Api
from tests.support.sse import Stream
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.http.endpoint import Endpoint

TOKENS = {name: new_token() for name in ("ann", "bob", "all", "root")}
#: In all that bob's jobs have: labels, payloads, results, errors.
SECRET = "bobs-secret"
MODEL = "maker/small:1b"
NO_JOB = uuid.UUID("01890000-0000-7000-8000-000000000000")

REFUSED = "refused"
OTHER_SCOPE = "another scope"
ONE_JOB = "a job of others is unknown"
ONE_GROUP = "a group of others is unknown"
ONE_FILE = "a file of others is unknown"
ONE_BATCH = "a batch of others is unknown"
ONE_RESPONSE = "a response of others is unknown"
NARROWED = "shows and counts own jobs only"
NUMBERS = "shows numbers, names and what is the same for all"

#: What every endpoint is to a token with own_jobs. A new one has to be thought about, and added here.
TABLE: dict[str, str] = {
    "POST /v1/jobs": NARROWED,
    "POST /v1/jobs/batch": NARROWED,
    "GET /v1/jobs": NARROWED,
    "GET /v1/jobs/{id}": ONE_JOB,
    "GET /v1/jobs/{id}/result": ONE_JOB,
    "GET /v1/jobs/{id}/events": ONE_JOB,
    "POST /v1/jobs/{id}/cancel": ONE_JOB,
    "POST /v1/jobs/{id}/retry": ONE_JOB,
    "GET /v1/jobs/{id}/graph": ONE_JOB,
    "POST /v1/groups": NARROWED,
    "GET /v1/groups": NARROWED,
    "GET /v1/groups/{id}": ONE_GROUP,
    "GET /v1/groups/{id}/events": ONE_GROUP,
    "POST /v1/groups/{id}/seal": ONE_GROUP,
    "POST /v1/groups/{id}/cancel": ONE_GROUP,
    "POST /v1/groups/{id}/retry": ONE_GROUP,
    "POST /v1/files": NARROWED,
    "GET /v1/files": NARROWED,
    "GET /v1/files/{id}": ONE_FILE,
    "GET /v1/files/{id}/content": ONE_FILE,
    "DELETE /v1/files/{id}": ONE_FILE,
    "POST /v1/batches": NARROWED,
    "GET /v1/batches": NARROWED,
    "GET /v1/batches/{id}": ONE_BATCH,
    "POST /v1/batches/{id}/cancel": ONE_BATCH,
    "POST /v1/jobs/count": NARROWED,
    "POST /v1/jobs/cancel": NARROWED,
    "POST /v1/jobs/retry": NARROWED,
    "POST /v1/jobs/delete": NARROWED,
    "GET /v1/events": NARROWED,
    "GET /v1/dlq": NARROWED,
    "GET /v1/workers": NARROWED,
    "GET /v1/queues": NUMBERS,
    "GET /v1/stats": NUMBERS,
    "GET /v1/board": NUMBERS,
    "GET /v1/rollups": NUMBERS,
    "GET /v1/tasks": NUMBERS,
    "GET /v1/tasks/{name}": NUMBERS,
    "POST /v1/chat/completions": NARROWED,
    "POST /v1/completions": NARROWED,
    "POST /v1/embeddings": NARROWED,
    "POST /v1/responses": NARROWED,
    "GET /v1/responses/{id}": ONE_RESPONSE,
    "DELETE /v1/responses/{id}": ONE_RESPONSE,
    "POST /v1/responses/{id}/cancel": ONE_RESPONSE,
    "GET /v1/responses/{id}/input_items": ONE_RESPONSE,
    "GET /v1/models": NUMBERS,
    "GET /v1/models/{id:path}": NUMBERS,
    "POST /v1/dlq/retry": OTHER_SCOPE,
    "POST /v1/queues/{queue}/pause": OTHER_SCOPE,
    "POST /v1/queues/{queue}/resume": OTHER_SCOPE,
    "POST /v1/tasks/{name}/pause": OTHER_SCOPE,
    "POST /v1/tasks/{name}/resume": OTHER_SCOPE,
    "POST /v1/pause": OTHER_SCOPE,
    "POST /v1/resume": OTHER_SCOPE,
    "GET /metrics": OTHER_SCOPE,
    "GET /v1/dlq/groups": REFUSED,
    "GET /v1/queues/{queue}/limits": REFUSED,
    "POST /v1/queues/{queue}/limits": OTHER_SCOPE,
    "POST /v1/queues/{queue}/limits/drop": OTHER_SCOPE,
    "GET /v1/config": OTHER_SCOPE,
    "GET /v1/audit": OTHER_SCOPE,
}
#: Tickets carry payloads and outputs of everybody, and have people of their own; schedules submit in nobody's name.
REFUSED_PATHS = re.compile(r"/v1/(tickets|schemas|schedules)\b")


def kind_of(endpoint: Endpoint) -> str | None:
    if endpoint.scope == "public":
        return NUMBERS
    if endpoint.scope == "worker":
        return OTHER_SCOPE
    return REFUSED if REFUSED_PATHS.match(endpoint.path) else TABLE.get(f"{endpoint.method} {endpoint.path}")


def name_of(value: Any) -> str:
    return f"{value.method} {value.path}" if hasattr(value, "path") else str(value)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Jobd]:
    tokens = [
        {
            "name": name,
            "sha256": token.sha256.hex(),
            "scopes": ["admin" if name == "root" else "client"],
            "own_jobs": name in ("ann", "bob"),
        }
        for name, token in TOKENS.items()
    ]
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    file = folder / "jobd.toml"
    file.write_text(f'[models."{MODEL}"]\ntask = "chat"\n')
    daemon = Jobd(
        folder / "data",
        *("--config", str(file)),
        JOBD_AUTH_TOKENS=json.dumps(tokens),
        JOBD_QUEUES_DEFAULT_SLOTS="0",
    )
    try:
        yield daemon.start().until_ready()
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def workers(daemon: Jobd) -> Iterator[DatabaseWorkers]:
    with database_workers(daemon.addresses["DATABASE_URL"]) as played:
        yield played


def headers_of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name].text}"}


@pytest.fixture
def ann(daemon: Jobd) -> Api:
    return Api(daemon.address, headers_of("ann"))


@pytest.fixture
def bob(daemon: Jobd) -> Api:
    return Api(daemon.address, headers_of("bob"))


@pytest.fixture
def everyone(daemon: Jobd) -> Api:
    return Api(daemon.address, headers_of("all"))


def submit(api: Api, **fields: Any) -> str:
    secret = SECRET if api._headers == headers_of("bob") else "open"
    body = {"task": "embed", "payload": {"of": secret, "n": str(uuid.uuid4())}, "labels": {"of": secret}, **fields}
    answer = api("POST", "/v1/jobs", body)
    assert answer.status == 202, answer
    job_id: str = answer.json["job_id"]
    return job_id


@pytest.fixture
def bobs(daemon: Jobd, workers: DatabaseWorkers) -> dict[str, str]:
    """A job of bob's in every status."""
    bob = Api(daemon.address, headers_of("bob"))
    jobs = {status: submit(bob) for status in ("queued", "running", "done", "error", "canceled")}
    workers.start(jobs["running"])
    workers.finish(jobs["done"], json.dumps({"of": SECRET}))
    workers.fail(jobs["error"])
    assert bob("POST", f"/v1/jobs/{jobs['canceled']}/cancel").status == 200
    return jobs


def called(api: Api, endpoint: Endpoint, job_id: object, body: object = None) -> Answer:
    """A stream is left after its head."""
    path = re.sub(r"\{id\}", str(job_id), endpoint.path).replace("{name}", "embed").replace("{queue}", "default")
    if endpoint.media_type == "text/event-stream":
        with Stream(api.address, path, api._headers) as stream:
            answer = stream.answer
            is_good = answer.status == 200
            return Answer(answer.status, dict(answer.getheaders()), b"" if is_good else answer.read())
    return api(endpoint.method, path, body)


def state_of(api: Api, job_id: str) -> Any:
    """All of a job but its place in the line, which changes when others leave."""
    job = api("GET", f"/v1/jobs/{job_id}").json
    job.pop("waiting", None)
    return job


# -- every endpoint ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_every_endpoint_was_thought_about(endpoint: Endpoint) -> None:
    kind = kind_of(endpoint)

    assert kind is not None, f"say in TABLE what {name_of(endpoint)} is to a token with own_jobs"
    if endpoint.scope != "public":
        assert endpoint.own_jobs == (kind in (ONE_JOB, ONE_GROUP, ONE_FILE, ONE_BATCH, ONE_RESPONSE, NARROWED, NUMBERS))


def test_the_table_has_no_endpoint_that_is_not_there() -> None:
    assert {*TABLE} <= {name_of(endpoint) for endpoint in ENDPOINTS}


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) in (REFUSED, OTHER_SCOPE)], ids=name_of)
def test_what_is_not_for_it_is_refused(ann: Api, endpoint: Endpoint) -> None:
    answer = called(ann, endpoint, NO_JOB, {} if endpoint.method in ("POST", "PATCH") else None)

    assert answer.status == 403


@pytest.mark.parametrize("status", ["queued", "running", "done", "error", "canceled"])
@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_JOB], ids=name_of)
def test_a_job_of_others_is_answered_exactly_as_one_that_never_was(
    ann: Api, everyone: Api, bobs: dict[str, str], endpoint: Endpoint, status: str
) -> None:
    before = state_of(everyone, bobs[status])

    foreign, unknown = called(ann, endpoint, bobs[status]), called(ann, endpoint, NO_JOB)

    for answer in (foreign, unknown):
        assert answer.status == 404
    texts = [
        re.sub(rf"{job_id}|\"request_id\":\"[^\"]*\"", "", answer.body.decode())
        for answer, job_id in ((foreign, bobs[status]), (unknown, NO_JOB))
    ]
    assert texts[0] == texts[1]
    assert state_of(everyone, bobs[status]) == before


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_JOB], ids=name_of)
def test_its_own_job_is_open_to_it(ann: Api, workers: DatabaseWorkers, endpoint: Endpoint) -> None:
    job_id = submit(ann)
    if endpoint.path.endswith("/retry"):
        workers.fail(job_id)
    elif endpoint.path.endswith("/result"):
        workers.finish(job_id)

    assert called(ann, endpoint, job_id).status in (200, 202)


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_GROUP], ids=name_of)
def test_a_group_of_others_is_unknown_and_stays_as_it_is(ann: Api, bob: Api, endpoint: Endpoint) -> None:
    group_id = bob("POST", "/v1/groups", {"name": SECRET}).json["group_id"]
    submit(bob, group=group_id)
    before = bob("GET", f"/v1/groups/{group_id}").json
    body: object = {} if endpoint.method == "POST" else None

    foreign, unknown = called(ann, endpoint, group_id, body), called(ann, endpoint, NO_JOB, body)

    assert (foreign.status, foreign.code) == (unknown.status, unknown.code) == (404, "no_such_group")
    assert SECRET not in foreign.body.decode()
    assert bob("GET", f"/v1/groups/{group_id}").json == before
    assert called(bob, endpoint, group_id, body).status == 200


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_FILE], ids=name_of)
def test_a_file_of_others_is_unknown_and_stays_as_it_is(ann: Api, bob: Api, endpoint: Endpoint) -> None:
    file = send_file(bob, SECRET.encode(), filename=SECRET).json

    foreign, unknown = called(ann, endpoint, file["id"]), called(ann, endpoint, f"file-{NO_JOB.hex}")

    assert foreign.status == unknown.status == 404
    assert SECRET not in foreign.body.decode()
    assert ann("GET", f"/v1/files?after={file['id']}").status == 404
    assert file["id"] not in ann("GET", "/v1/files").body.decode()
    assert bob("GET", f"/v1/files/{file['id']}").json == file
    assert called(bob, endpoint, file["id"]).status == 200


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_BATCH], ids=name_of)
def test_a_batch_of_others_is_unknown_and_stays_as_it_is(ann: Api, bob: Api, endpoint: Endpoint) -> None:
    file_id = send_file(bob, b"no line that anybody could run").json["id"]
    request = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = bob("POST", "/v1/batches", {**request, "metadata": {"of": SECRET}}).json
    path = f"/v1/batches/{batch['id']}"
    wait_until(lambda: bob("GET", path).json["status"] == "failed")
    before = bob("GET", path).json

    foreign, unknown = called(ann, endpoint, batch["id"]), called(ann, endpoint, f"batch_{NO_JOB.hex}")

    assert foreign.status == unknown.status == 404
    assert SECRET not in foreign.body.decode()
    assert ann("POST", "/v1/batches", request).status == 404
    assert ann("GET", f"/v1/batches?after={batch['id']}").status == 404
    assert batch["id"] not in ann("GET", "/v1/batches").body.decode()
    assert bob("GET", path).json == before
    assert called(bob, endpoint, batch["id"]).status in (200, 400)


def respond(api: Api, **fields: Any) -> Answer:
    return api("POST", "/v1/responses", {"model": MODEL, "input": SECRET, "background": True, **fields})


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if kind_of(one) == ONE_RESPONSE], ids=name_of)
def test_a_response_of_others_is_unknown_and_stays_as_it_is(ann: Api, bob: Api, endpoint: Endpoint) -> None:
    made = respond(bob).json["id"]
    before = bob("GET", f"/v1/responses/{made}").json
    nobodys = f"resp_{NO_JOB.hex}"

    foreign, unknown = called(ann, endpoint, made), called(ann, endpoint, nobodys)

    assert foreign.status == unknown.status == 404
    assert foreign.body.decode().replace(made, "") == unknown.body.decode().replace(nobodys, "")
    assert bob("GET", f"/v1/responses/{made}").json == before
    assert called(bob, endpoint, made).status == 200


def test_a_response_does_not_continue_that_of_others(ann: Api, bob: Api, workers: DatabaseWorkers) -> None:
    answer = respond(bob)
    workers.finish(answer.headers["x-jobd-job-id"], json.dumps({"text": SECRET}))
    made, nobodys = answer.json["id"], f"resp_{NO_JOB.hex}"

    foreign, unknown = respond(ann, previous_response_id=made), respond(ann, previous_response_id=nobodys)

    assert foreign.status == unknown.status == 400
    assert foreign.body.decode().replace(made, "") == unknown.body.decode().replace(nobodys, "")
    assert respond(bob, previous_response_id=made).status == 200


def test_a_job_neither_waits_for_what_others_own_nor_enters_it(ann: Api, bob: Api, bobs: dict[str, str]) -> None:
    group_id = bob("POST", "/v1/groups", {}).json["group_id"]
    job = {"task": "embed", "payload": {}}

    for fields, code in (
        ({"depends_on": [bobs["done"]]}, "unknown_dependency"),
        ({"depends_on": [{"group": group_id}]}, "unknown_group"),
        ({"group": group_id}, "unknown_group"),
    ):
        assert ann("POST", "/v1/jobs", {**job, **fields}).code == code
        assert bob("POST", "/v1/jobs", {**job, **fields}).status == 202


READS = [one for one in ENDPOINTS if one.method == "GET" and kind_of(one) in (NARROWED, NUMBERS)]


@pytest.mark.parametrize("endpoint", [one for one in READS if one.media_type == "application/json"], ids=name_of)
def test_no_read_shows_anything_of_others(
    daemon: Jobd, ann: Api, workers: DatabaseWorkers, bobs: dict[str, str], endpoint: Endpoint
) -> None:
    query = {"/v1/workers": "?held=100", "/v1/jobs": "?limit=100", "/v1/dlq": "?limit=100"}.get(endpoint.path, "")
    for api in (ann, Api(daemon.address, {"Cookie": _cookie(daemon)})):
        answer = api("GET", endpoint.path.replace("{name}", "embed").replace("{id:path}", MODEL) + query)

        assert answer.status == 200, answer
        text = answer.body.decode()
        assert SECRET not in text
        assert not [job_id for job_id in bobs.values() if job_id in text]
        assert '"bob"' not in text


def _cookie(daemon: Jobd) -> str:
    answer = Api(daemon.address)("POST", "/v1/session", {"token": TOKENS["ann"].text})
    assert answer.json["own_jobs"] is True
    return answer.headers["set-cookie"].partition(";")[0]


# -- lists, counts and changes of many ---------------------------------------------------------------------------------


def listed(api: Api, query: str = "") -> set[str]:
    jobs, before = set(), ""
    while True:
        page = api("GET", f"/v1/jobs?limit=100{query}{before}").json
        jobs |= {job["job_id"] for job in page["jobs"]}
        if page["next"] is None:
            return jobs
        before = f"&before={page['next']}"


def test_lists_and_searches_have_own_jobs_only(ann: Api, everyone: Api, bobs: dict[str, str]) -> None:
    own = submit(ann)

    assert own in listed(ann)
    assert {*bobs.values()} < listed(everyone)
    for query in ("", "&status=error", "&status=running", "&status=queued", "&status=done", "&error=boom", "&text=o"):
        assert not listed(ann, query) & {*bobs.values()}
    assert listed(ann, f"&label=of:{SECRET}") == listed(ann, "&owner=bob") == set()
    assert own in listed(ann, "&owner=ann")


def test_a_search_by_specification_has_own_jobs_only(ann: Api, bob: Api) -> None:
    payload = {"same": str(uuid.uuid4())}
    own, foreign = (api("POST", "/v1/jobs", {"task": "embed", "payload": payload}).json for api in (ann, bob))
    assert own["spec_hash"] == foreign["spec_hash"]

    assert listed(ann, f"&spec_hash={own['spec_hash']}") == {own["job_id"]}
    assert listed(bob, f"&spec_hash={own['spec_hash']}") == {foreign["job_id"]}


def test_counts_are_of_own_jobs(ann: Api, everyone: Api, bobs: dict[str, str]) -> None:
    submit(ann)

    def count(api: Api, **body: Any) -> int:
        number: int = api("POST", "/v1/jobs/count", body).json["count"]
        return number

    assert count(ann) == len(listed(ann)) < count(everyone)
    assert count(ann, owner="bob") == count(ann, labels={"of": SECRET}) == 0
    assert count(everyone, owner="bob") >= len(bobs)


@pytest.mark.parametrize("action", ["cancel", "retry", "delete"])
@pytest.mark.parametrize("body", [{"all": True}, {"owner": "bob"}, {"labels": {"of": SECRET}}], ids=str)
def test_changes_of_many_leave_jobs_of_others_alone(
    ann: Api, everyone: Api, bobs: dict[str, str], action: str, body: dict[str, Any]
) -> None:
    before = [state_of(everyone, job_id) for job_id in bobs.values()]

    answer = ann("POST", f"/v1/jobs/{action}", body)

    assert answer.status == 200, answer
    assert [state_of(everyone, job_id) for job_id in bobs.values()] == before


def test_changes_of_many_reach_own_jobs(ann: Api, workers: DatabaseWorkers) -> None:
    waiting, dead = submit(ann), submit(ann)
    workers.fail(dead)

    assert ann("POST", "/v1/jobs/cancel", {"all": True}).json["changed"] >= 1
    assert ann("POST", "/v1/jobs/retry", {"all": True}).json["changed"] >= 1
    assert ann("GET", f"/v1/jobs/{waiting}").json["status"] == "canceled"
    assert ann("POST", "/v1/jobs/delete", {"all": True}).json["changed"] >= 2
    assert ann("GET", f"/v1/jobs/{waiting}").code == "gone_job"


def test_dead_letters_are_own_jobs(ann: Api, everyone: Api, workers: DatabaseWorkers, bobs: dict[str, str]) -> None:
    dead = submit(ann)
    workers.fail(dead)

    def letters(api: Api) -> set[str]:
        return {letter["job_id"] for letter in api("GET", "/v1/dlq?limit=100").json["letters"]}

    assert dead in letters(ann)
    assert bobs["error"] in letters(everyone) - letters(ann)


def test_workers_are_a_number_and_own_jobs_in_their_hands(
    ann: Api, everyone: Api, workers: DatabaseWorkers, bobs: dict[str, str]
) -> None:
    running = submit(ann)
    workers.start(running)

    found, all_ = ann("GET", "/v1/workers?held=100").json, everyone("GET", "/v1/workers?held=100").json

    assert found["workers"] == []
    assert found["total"] == all_["total"] == len(all_["workers"])
    assert running in {held["job_id"] for held in found["held"]}
    assert bobs["running"] in {held["job_id"] for held in all_["held"]} - {held["job_id"] for held in found["held"]}


# -- twins and keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dedupe", ["active", "result"])
@pytest.mark.parametrize("sender", ["single", "batch"])
def test_a_twin_of_others_does_not_answer(
    ann: Api, bob: Api, everyone: Api, workers: DatabaseWorkers, dedupe: str, sender: str
) -> None:
    body = {"task": "embed", "payload": {"twin": str(uuid.uuid4())}, "dedupe": dedupe}
    foreign = bob("POST", "/v1/jobs", body).json["job_id"]
    if dedupe == "result":
        workers.finish(foreign, json.dumps({"of": SECRET}))

    def sent(api: Api) -> Any:
        answer = api("POST", "/v1/jobs", body) if sender == "single" else api("POST", "/v1/jobs/batch", [body])
        assert answer.status in (200, 202), answer
        assert SECRET not in answer.body.decode() or api is not ann
        return answer.json if sender == "single" else answer.json["jobs"][0]

    own, again = sent(ann), sent(ann)

    assert not own.get("existing")
    assert own["job_id"] != foreign
    assert (again["job_id"], again["existing"]) == (own["job_id"], True)
    assert sent(everyone)["existing"] is True  # who sees every job is answered by any


def test_the_same_key_of_two_tokens_makes_two_jobs(ann: Api, bob: Api) -> None:
    body, key = {"task": "embed", "payload": {}}, {"Idempotency-Key": str(uuid.uuid4())}
    first = bob("POST", "/v1/jobs", body, key).json
    second, again = ann("POST", "/v1/jobs", body, key).json, ann("POST", "/v1/jobs", body, key).json

    assert len({first["job_id"], second["job_id"]}) == 2
    assert (again["job_id"], again["existing"]) == (second["job_id"], True)


# -- deleted jobs ------------------------------------------------------------------------------------------------------


def test_a_deleted_job_is_gone_for_its_owner_and_unknown_to_others(
    ann: Api, bob: Api, everyone: Api, workers: DatabaseWorkers
) -> None:
    job_id = submit(ann)
    ann("POST", f"/v1/jobs/{job_id}/cancel")
    workers.prune()

    codes = [api("GET", f"/v1/jobs/{job_id}").code for api in (ann, everyone, bob)]

    assert codes == ["gone_job", "gone_job", "unknown_job"]


# -- the firehose ------------------------------------------------------------------------------------------------------


def test_the_firehose_has_own_jobs_only(daemon: Jobd, ann: Api, bob: Api, workers: DatabaseWorkers) -> None:
    with Stream(daemon.address, "/v1/events", headers_of("ann")) as stream:
        events = iter(stream)
        assert next(events).type == "hello"
        foreign = [submit(bob) for _ in range(3)]
        bob("POST", f"/v1/jobs/{foreign[0]}/cancel")
        own = submit(ann)
        ann("POST", f"/v1/jobs/{own}/cancel")

        seen = []
        for event in events:
            if event.type != "gap":
                seen.append((event.data["job_id"], event.type))
            if seen and seen[-1] == (own, "canceled"):
                break

    # Events of her jobs of earlier tests may come late, by way of Redis.
    assert {ann("GET", f"/v1/jobs/{job_id}").status for job_id, _ in seen} == {200}
    assert [kind for job_id, kind in seen if job_id == own] == ["queued", "canceled"]
