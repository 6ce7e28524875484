"""`GET /metrics`: names and types, bounded labels, and each thing that happens moves its own number."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from jobd.auth.token import new_token
from tests.support.http import Api
from tests.support.wait import wait_until
from tests.support.workerless import KEPT, WorkerlessDaemon, workerless_daemon
from tests.tasks.openai_server import TOKENS, OpenAIServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

#: All names, with their types and labels. Only histograms have `le` besides.
METRICS: dict[str, tuple[str, frozenset[str]]] = {
    name: (kind, frozenset(labels.split()))
    for name, kind, labels in (
        ("jobd_build", "info", "version python"),
        ("jobd_jobs", "gauge", "queue state"),
        ("jobd_jobs_submitted", "counter", "queue task"),
        ("jobd_jobs_finished", "counter", "queue task outcome"),
        ("jobd_attempts", "counter", "queue task outcome"),
        ("jobd_job_wait_seconds", "histogram", "queue"),
        ("jobd_job_run_seconds", "histogram", "queue task"),
        ("jobd_queue_oldest_seconds", "gauge", "queue"),
        ("jobd_queue_paused", "gauge", "queue"),
        ("jobd_slots", "gauge", "queue state"),
        ("jobd_schedule_occurrences", "counter", "outcome"),
        ("jobd_dead_letters", "gauge", "queue"),
        ("jobd_leases_expired", "counter", ""),
        ("jobd_outbox_depth", "gauge", ""),
        ("jobd_outbox_age_seconds", "gauge", ""),
        ("jobd_degraded", "gauge", ""),
        ("jobd_service_up", "gauge", "service"),
        ("jobd_service_restarts", "counter", "service"),
        ("jobd_http_requests", "counter", "route status"),
        ("jobd_http_request_seconds", "histogram", "route"),
        ("jobd_event_streams", "gauge", ""),
        ("jobd_tokens_generated", "counter", "task model"),
        ("jobd_time_to_first_token_seconds", "histogram", "task model"),
        ("jobd_disk_free_bytes", "gauge", ""),
        ("jobd_memory_available_bytes", "gauge", ""),
        ("jobd_memory_reserved_bytes", "gauge", ""),
        ("jobd_temperature_celsius", "gauge", "zone"),
        ("jobd_power_watts", "gauge", "rail"),
        ("jobd_throttled", "gauge", ""),
        ("jobd_disk_written_bytes", "counter", ""),
    )
}
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4;q=0.5"}

#: The parser has no types.
parse_openmetrics: Callable[[str], Any] = _parse_openmetrics

Key = tuple[str, tuple[tuple[str, str], ...]]


def scrape(api: Api) -> dict[Key, float]:
    answer = api("GET", "/metrics", headers=OPENMETRICS)
    assert answer.status == 200, answer.body
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(answer.body.decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> Key:
    return name, tuple(sorted(labels.items()))


def of_jobs(before: Mapping[Key, float], after: Mapping[Key, float]) -> dict[Key, float]:
    """How the counters of jobs have moved; of a histogram only its count."""
    return {
        name: after[name] - before.get(name, 0.0)
        for name in after
        if name[0].startswith(("jobd_job", "jobd_attempts", "jobd_leases"))
        and name[0].endswith(("_total", "_seconds_count"))
        and after[name] != before.get(name, 0.0)
    }


def submit(api: Api, **fields: Any) -> str:
    answer = api("POST", "/v1/jobs", {"task": "chat", "payload": {"n": str(uuid.uuid4())}, "queue": "told", **fields})
    assert answer.status == 202, answer.body
    return str(answer.json["job_id"])


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon() as made:
        yield made


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "parse", "media_type"),
    [
        ({}, parse_text, "text/plain; version=0.0.4; charset=utf-8"),
        (OPENMETRICS, parse_openmetrics, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
    ids=["text", "openmetrics"],
)
def test_every_name_has_its_type_meaning_and_labels(
    api: Api, headers: dict[str, str], parse: Callable[[str], Any], media_type: str
) -> None:
    api("POST", f"/v1/jobs/{submit(api)}/cancel")

    answer = api("GET", "/metrics", headers=headers)

    assert answer.headers["content-type"].startswith(media_type)
    families = {family.name: family for family in parse(answer.body.decode())}
    if parse is parse_text:  # which says them as they are on the wire
        families = {name.removesuffix("_info"): family for name, family in families.items()}
    assert set(families) == set(METRICS)
    for name, family in families.items():
        kind, labels = METRICS[name]
        assert family.type == ("gauge" if kind == "info" and parse is parse_text else kind), name
        assert family.documentation.endswith("."), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample
            assert ("le" in sample.labels) == sample.name.endswith("_bucket"), sample


# -- numbers -----------------------------------------------------------------------------------------------------------


LABELS = {"queue": "gpu", "task": "chat"}
SUBMITTED = key("jobd_jobs_submitted_total", **LABELS)
CLAIMED = key("jobd_job_wait_seconds_count", queue="gpu")
RAN = key("jobd_job_run_seconds_count", **LABELS)


def attempts(outcome: str) -> Key:
    return key("jobd_attempts_total", **LABELS, outcome=outcome)


def finished(outcome: str) -> Key:
    return key("jobd_jobs_finished_total", **LABELS, outcome=outcome)


def test_each_step_of_a_job_moves_its_numbers_and_no_other(workerless: WorkerlessDaemon) -> None:
    api, seen = workerless.api, scrape(workerless.api)

    def moved() -> dict[Key, float]:
        nonlocal seen
        before, seen = seen, scrape(api)
        return of_jobs(before, seen)

    held = workerless.running(queue="gpu")
    assert moved() == {SUBMITTED: 1, CLAIMED: 1}
    assert workerless.beat(held)["ok"]
    assert moved() == {}
    assert workerless.complete(held)["ok"]
    assert moved() == {attempts("done"): 1, finished("done"): 1, RAN: 1}
    assert workerless.complete(held)["ok"]  # the same again
    assert moved() == {}

    held = workerless.running(queue="gpu")
    assert workerless.fail(held, retryable=False)["ok"]
    assert moved() == {SUBMITTED: 1, CLAIMED: 1, attempts("failed"): 1, finished("error"): 1, RAN: 1}
    assert api("POST", f"/v1/jobs/{held['job_id']}/retry").status == 202
    assert moved() == {SUBMITTED: 1}

    (held,) = [workerless.claim("jobs:stream:gpu")]
    assert workerless.post("release", {"worker_id": "w-1", **{name: held[name] for name in KEPT}}).json["ok"]
    assert moved() == {CLAIMED: 1, attempts("released"): 1}
    assert api("POST", f"/v1/jobs/{held['job_id']}/cancel").json["status"] == "canceled"
    assert moved() == {finished("canceled"): 1}


def test_batches_count_each_of_their_jobs(workerless: WorkerlessDaemon) -> None:
    before = scrape(workerless.api)
    jobs = [{"task": "chat", "queue": "gpu", "payload": {"n": n}} for n in range(20)]
    assert workerless.api("POST", "/v1/jobs/batch", jobs).status == 202
    body = {"worker_id": "w-1", "streams": ["jobs:stream:gpu"], "max_wait_ms": 10_000, "max_jobs": 20}
    reports: list[dict[str, Any]] = []
    while len(reports) < len(jobs):
        claimed = workerless.post("claim", body).json["jobs"]
        reports += [{**{name: job[name] for name in KEPT}, "result": {}} for job in claimed]
    answer = workerless.post("complete/batch", {"worker_id": "w-1", "jobs": reports})
    assert answer.status == 200, answer.body

    moved = of_jobs(before, scrape(workerless.api))

    assert moved == dict.fromkeys((SUBMITTED, CLAIMED, attempts("done"), finished("done"), RAN), 20)


def test_counters_only_grow(api: Api) -> None:
    before = scrape(api)
    job_id = submit(api)
    api("POST", f"/v1/jobs/{job_id}/cancel")

    after = scrape(api)

    growing = [name for name in before if name[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert growing
    assert [name for name in growing if after[name] < before[name]] == []


def test_gauges_say_where_jobs_stand(api: Api, workers: DatabaseWorkers) -> None:
    def gauges() -> dict[str, float]:
        found = scrape(api)
        states = {state: found[key("jobd_jobs", queue="fast", state=state)] for state in ("queued", "running", "error")}
        return {
            **states,
            "dead": found[key("jobd_dead_letters", queue="fast")],
            "oldest": found[key("jobd_queue_oldest_seconds", queue="fast")],
            "paused": found[key("jobd_queue_paused", queue="fast")],
        }

    before = gauges()
    job_id = submit(api, queue="fast")
    api("POST", "/v1/queues/fast/pause")
    waiting = gauges()
    api("POST", "/v1/queues/fast/resume")
    workers.fail(job_id)
    failed = gauges()
    workers.start(submit(api, queue="fast"))
    running = gauges()

    assert (waiting["queued"] - before["queued"], waiting["paused"]) == (1.0, 1.0)
    assert waiting["oldest"] > 0.0
    assert (failed["error"] - before["error"], failed["dead"] - before["dead"]) == (1.0, 1.0)
    assert (running["running"] - before["running"], running["paused"]) == (1.0, 0.0)


# -- labels ------------------------------------------------------------------------------------------------------------


def test_unknown_names_make_no_labels(api: Api, workers: DatabaseWorkers) -> None:
    """Neither what a client makes up nor what another node, with other tasks and queues, has left in the tables."""
    made_up = f"made-up-{uuid.uuid4().hex[:8]}"
    assert api("POST", "/v1/jobs", {"task": made_up, "payload": {}}).status == 422
    assert api("GET", f"/v1/jobs/{uuid.uuid4()}").status == 404
    assert api("GET", f"/{made_up}").status == 404
    assert api(made_up.upper(), "/v1/jobs").status in (400, 405)
    job_id = submit(api)
    workers.rows("UPDATE jobs SET task = $2, queue = $2 WHERE id = $1 RETURNING id", uuid.UUID(job_id), made_up)
    workers.rows(
        "INSERT INTO queue_counts (queue, shard, queued) VALUES ($1, 0, 1), ('told', 99, -1) RETURNING queue", made_up
    )
    before = scrape(api)

    api("POST", f"/v1/jobs/{job_id}/cancel")

    after = scrape(api)
    assert of_jobs(before, after) == {
        key("jobd_jobs_finished_total", queue="other", task="other", outcome="canceled"): 1
    }
    assert before[key("jobd_jobs", queue="other", state="queued")] >= 1
    assert [name for name in after if made_up in str(name).lower() or job_id in str(name)] == []


def test_routes_are_their_templates(api: Api) -> None:
    before, unknown = scrape(api), uuid.uuid4()

    api("GET", f"/v1/jobs/{unknown}")
    api("GET", "/nothing/here")

    after = scrape(api)
    moved = {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if name[0] == "jobd_http_requests_total" and value != before.get(name, 0.0)
    }
    assert moved == {
        key("jobd_http_requests_total", route="GET /v1/jobs/{id}", status="404"): 1.0,
        key("jobd_http_requests_total", route="other", status="404"): 1.0,
        key("jobd_http_requests_total", route="GET /metrics", status="200"): 1.0,
    }
    counted = key("jobd_http_request_seconds_count", route="GET /v1/jobs/{id}")
    assert after[counted] == before.get(counted, 0.0) + 1.0


# -- a jobd that works -------------------------------------------------------------------------------------------------


@pytest.fixture
def model_server() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.stop()


def test_slots_streams_and_models_are_shown(
    jobd: Callable[..., Jobd], folder: Path, model_server: OpenAIServer
) -> None:
    (folder / "jobd.toml").write_text(
        f"""
        [queues.default]
        slots = 2
        [tasks.ask]
        run = "openai"
        base_url = "{model_server.base_url}"
        model = "small"
        """
    )
    daemon = jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()
    api = Api(daemon.address)
    model_server.script({}, {}, {"hang_after": 1})
    for fields in ({}, {"model": "made-up"}):
        answer = api("POST", "/v1/jobs?wait_s=60", {"task": "ask", "payload": {"prompt": "hi", **fields}})
        assert answer.json["status"] == "done", answer.body
    hanging = api("POST", "/v1/jobs", {"task": "ask", "payload": {"prompt": "hi"}}).json["job_id"]
    stream = http.client.HTTPConnection(daemon.address, timeout=60)
    stream.request("GET", f"/v1/jobs/{hanging}/events")
    assert stream.getresponse().status == 200

    busy = key("jobd_slots", queue="default", state="busy")
    wait_until(lambda: scrape(api)[busy] == 1.0, daemon.log)

    found = scrape(api)
    assert found[key("jobd_slots", queue="default", state="free")] == 1.0
    assert found[key("jobd_event_streams")] == 1.0
    assert found[key("jobd_degraded")] == 0.0
    assert found[key("jobd_service_up", service="slots")] == 1.0
    assert found[key("jobd_service_restarts_total", service="slots")] == 0.0
    assert found[key("jobd_disk_free_bytes")] > 0
    assert found[key("jobd_memory_available_bytes")] > 0
    for model in ("small", "other"):
        assert found[key("jobd_tokens_generated_total", task="ask", model=model)] == len(TOKENS)
        assert found[key("jobd_time_to_first_token_seconds_count", task="ask", model=model)] == 1.0
    assert "made-up" not in json.dumps([*found])

    stream.close()
    wait_until(lambda: scrape(api)[key("jobd_event_streams")] == 0.0, daemon.log)
    api("POST", f"/v1/jobs/{hanging}/cancel")
    wait_until(lambda: scrape(api)[busy] == 0.0, daemon.log)


def test_without_postgres_the_rest_is_still_said(jobd: Callable[..., Jobd]) -> None:
    """Postgres is away from the start on: jobd waits for it, and knows the tokens of its configuration."""
    token = new_token()
    tokens = json.dumps([{"name": "prometheus", "sha256": token.sha256.hex(), "scopes": ["metrics"]}])
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    daemon = jobd(None, JOBD_POSTGRES_URL=nowhere, JOBD_AUTH_TOKENS=tokens).start()
    wait_until(lambda: daemon.readiness()[0] == 503, daemon.log)

    found = scrape(Api(daemon.address, {"Authorization": f"Bearer {token.text}"}))

    assert found[key("jobd_service_up", service="store")] == 0.0
    assert {"jobd_jobs", "jobd_outbox_depth"}.isdisjoint(name for name, _ in found)
