"""Every call of both clients against a running jobd, and what it says when a call cannot be."""

from __future__ import annotations

import secrets
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd import AsyncClient, Client
from jobd.auth.token import new_token
from jobd.client import Conflict, Denied, Gone, NotFound, Refused, WaitTimeout
from jobd.errors import ConfigError
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.client.conftest import Connect
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"
MARKER = "do-not-show-me"


# -- submit -------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_answered_as_it_is_kept(client: Client) -> None:
    made = client.submit("chat", {"text": "grüß"})
    kept = client.get(made.job_id)

    assert (made.task, made.status, made.payload) == ("chat", "queued", {"text": "grüß"})
    assert (made.existing, made.is_final, made.attempts) == (False, False, [])
    assert kept.waiting is not None and kept.waiting.reason == "in_line"
    assert msgspec.structs.replace(kept, waiting=None) == made


def test_every_option_of_a_submit_arrives(client: Client) -> None:
    made = client.submit(
        "chat", {}, queue="fast", priority=7, delay_s=3600, max_attempts=9, timeout_s=12.5, ttl_s=77, dedupe="none"
    )
    kept = client.get(made.job_id)

    assert (kept.queue, kept.priority, kept.max_attempts, kept.timeout_s, kept.ttl_s) == ("fast", 7, 9, 12.5, 77)
    assert kept.run_after_ts - kept.created_ts == 3_600_000
    assert kept.waiting is not None and kept.waiting.reason == "delayed"


def test_a_job_can_be_put_off_to_a_moment(client: Client) -> None:
    moment = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=1)

    made = client.submit("chat", {}, run_after=moment)

    assert made.run_after_ts == moment.timestamp() * 1000


def test_one_key_is_one_job(client: Client) -> None:
    key = uuid.uuid4().hex
    first = client.submit("chat", {"n": 1}, idempotency_key=key)
    again = client.submit("chat", {"n": 1}, idempotency_key=key)

    with pytest.raises(Refused) as caught:
        client.submit("chat", {"n": 2}, idempotency_key=key)

    assert (again.job_id, first.existing, again.existing) == (first.job_id, False, True)
    assert (caught.value.status, caught.value.code) == (422, "idempotency_mismatch")


def test_a_twin_is_found_by_what_it_does(client: Client) -> None:
    payload = {"n": uuid.uuid4().hex}
    first = client.submit("embed", payload)

    assert client.submit("embed", payload, dedupe="active").job_id == first.job_id
    assert client.submit("embed", payload, dedupe="active").existing
    assert client.submit("embed", payload).job_id != first.job_id


@dataclass
class Point:
    x: int
    at: datetime


class Shape(msgspec.Struct):
    points: list[Point]


PAYLOADS: dict[str, tuple[Any, Any]] = {
    "plain": ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
    "a Struct of dataclasses": (
        Shape([Point(1, datetime(2026, 1, 2, tzinfo=timezone.utc))]),
        {"points": [{"x": 1, "at": "2026-01-02T00:00:00Z"}]},
    ),
    "keys that are numbers": ({1: "a"}, {"1": "a"}),
    "JSON text": (msgspec.Raw(b'{"a": 1}'), {"a": 1}),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_may_be_anything_that_is_an_object_in_json(client: Client, name: str) -> None:
    sent, kept = PAYLOADS[name]

    assert client.submit("chat", sent).payload == kept


BAD_SUBMITS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown task": ({"task": "nonsense"}, Refused, "submit of nonsense: there is no task nonsense; this jobd has"),
    "an unknown queue": ({"queue": "nowhere"}, Refused, "there is no queue nowhere; this jobd has default, fast"),
    "a list": ({"payload": [MARKER]}, Refused, "payload must be a JSON object"),
    "a NUL": ({"payload": {"a": f"{MARKER}\0"}}, Refused, "(nul)"),
    "half a surrogate pair": ({"payload": {"a": f"{MARKER}\ud800"}}, Refused, "UTF-8"),
    "too much": ({"payload": {"a": MARKER * 400_000}}, Refused, "(body_too_large)"),
    "a priority beyond all": ({"priority": 10**6}, Refused, "$.priority"),
    "a moment without a zone": ({"run_after": datetime(2030, 1, 1)}, Refused, "$.run_after"),
    "a number that JSON has not": ({"payload": {"a": float("nan")}}, ValueError, "not JSON compliant"),
    "an option that is none": ({"color": "red"}, TypeError, "color"),
    "a key with a line break": ({"idempotency_key": "a\nb"}, ValueError, "1 to 255 visible ASCII"),
    "an empty key": ({"idempotency_key": ""}, ValueError, "1 to 255 visible ASCII"),
}


@pytest.mark.parametrize("name", BAD_SUBMITS)
def test_a_bad_submit_says_what_is_wrong_and_leaves_no_trace(
    client: Client, workers: DatabaseWorkers, name: str
) -> None:
    changes, kind, words = BAD_SUBMITS[name]
    before = workers.traces()

    with pytest.raises(kind) as caught:
        client.submit(**{"task": "chat", "payload": {}, **changes})

    assert words in str(caught.value)
    assert MARKER not in f"{caught.value!r} {caught.value}"
    assert workers.traces() == before


# -- batches ------------------------------------------------------------------------------------------------------


def test_a_batch_is_answered_in_its_order(client: Client) -> None:
    made = client.submit_batch([{"task": "chat", "payload": {"n": n}, "queue": "fast"} for n in range(25)])

    assert [client.get(entry.job_id).payload["n"] for entry in made[::8]] == [0, 8, 16, 24]
    assert {(entry.status, entry.existing) for entry in made} == {("queued", False)}


def test_a_batch_with_a_key_is_made_once(client: Client) -> None:
    key = uuid.uuid4().hex
    first, again = (client.submit_batch([{"task": "chat", "payload": {}}], idempotency_key=key) for _ in range(2))

    assert [entry.job_id for entry in first] == [entry.job_id for entry in again]
    assert (first[0].existing, again[0].existing) == (False, True)


def test_a_batch_with_one_bad_job_is_refused_whole_and_names_it(client: Client, workers: DatabaseWorkers) -> None:
    before = workers.traces()

    with pytest.raises(Refused, match="submit of 2 jobs: item 1: there is no task nonsense") as caught:
        client.submit_batch([{"task": "chat", "payload": {}}, {"task": "nonsense", "payload": {}}])

    assert (caught.value.index, caught.value.code) == (1, "unknown_task")
    assert workers.traces() == before


# -- read and wait ------------------------------------------------------------------------------------------------


def test_a_job_tells_its_attempts_and_result(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {}).job_id
    workers.fail(str(job_id), retryable=True, delay_s=0.0)
    workers.finish(str(job_id), f'{{"text": "{MARKER}"}}')

    job = client.get(str(job_id))

    assert (job.status, job.is_final, job.result) == ("done", True, {"text": MARKER})
    assert [(attempt.number, attempt.outcome) for attempt in job.attempts] == [(1, "failed"), (2, "done")]
    assert MARKER not in repr(job) + repr(job.attempts)


def test_waiting_ends_with_the_job(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {}).job_id
    finishing = threading.Timer(0.3, workers.finish, [str(job_id)])
    finishing.start()

    job = client.wait(job_id, 10)
    finishing.join()

    assert (job.status, job.result) == ("done", {"ok": True})
    assert client.wait(job_id).status == "done"


@pytest.mark.parametrize(("call", "option"), [("submit_and_wait", "wait_s"), ("submit", "hold_s")])
def test_submit_that_waits_returns_the_job_that_has_ended(
    client: Client, workers: DatabaseWorkers, call: str, option: str
) -> None:
    mark = secrets.token_hex()
    query = "SELECT id::text FROM jobs WHERE payload->>'mark' = $1"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(getattr(client, call), "chat", {"mark": mark}, **{option: 30})
        ((job_id,),) = wait_until(lambda: workers.rows(query, mark), "no job came", 10)
        workers.finish(job_id)
        job = waiting.result()

    assert (str(job.job_id), job.status, job.result, job.existing) == (job_id, "done", {"ok": True}, False)


def test_submit_that_has_waited_long_enough_returns_the_job_as_it_stands(client: Client) -> None:
    assert client.submit("chat", {}, hold_s=0.2).status == "queued"


@pytest.mark.parametrize("wait_s", [0, 0.3])
def test_submit_and_wait_that_takes_too_long_leaves_the_job_to_go_on(client: Client, wait_s: float) -> None:
    with pytest.raises(WaitTimeout, match="is queued after"):
        client.submit_and_wait("chat", {}, wait_s=wait_s)


@pytest.mark.parametrize("timeout_s", [0, 0.3])
def test_waiting_that_takes_too_long_says_how_the_job_stands(client: Client, timeout_s: float) -> None:
    job_id = client.submit("chat", {}).job_id

    with pytest.raises(WaitTimeout, match=f"job {job_id} is queued after {timeout_s:g} s") as caught:
        client.wait(job_id, timeout_s)

    assert isinstance(caught.value, TimeoutError)


def test_lists_are_filtered_and_paged(client: Client) -> None:
    made = [entry.job_id for entry in client.submit_batch([{"task": "rag", "payload": {}}] * 5)]

    first = client.list(task="rag", status="queued", queue="default", limit=3)
    second = client.list(task="rag", limit=3, before=first.next)

    assert [job.job_id for job in [*first.jobs, *second.jobs]][:5] == made[::-1]


# -- change -------------------------------------------------------------------------------------------------------


def test_cancel_ends_a_waiting_job_and_may_be_said_twice(client: Client) -> None:
    job_id = client.submit("chat", {}).job_id

    answers = [client.cancel(job_id) for _ in range(2)]

    assert {(answer.job_id, answer.status, answer.cancel_requested) for answer in answers} == {
        (job_id, "canceled", True)
    }
    assert client.get(job_id).status == "canceled"


def test_cancel_of_a_running_job_is_on_its_way(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {}).job_id
    workers.start(str(job_id))

    assert client.cancel(job_id).status == "running"
    assert client.get(job_id).cancel_requested


def test_cancel_of_a_finished_job_is_a_conflict(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {}).job_id
    workers.finish(str(job_id))

    with pytest.raises(Conflict, match=f"cancel of job {job_id}: .* is done and stays so .already_final."):
        client.cancel(job_id)


def test_a_job_in_error_runs_again_as_another(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {"n": 1}).job_id
    workers.fail(str(job_id))

    again = client.retry(job_id)

    assert (again.redriven_from, again.status, again.payload) == (job_id, "queued", {"n": 1})
    with pytest.raises(Conflict, match="only a job in error can be run again"):
        client.retry(again.job_id)


def test_queues_and_stats_count(client: Client) -> None:
    client.submit("chat", {}, queue="fast")

    queues = {queue.name: queue for queue in client.queues()}
    stats = client.stats()

    assert queues["fast"].queued > 0
    assert not queues["fast"].paused
    assert (stats.totals.queued, stats.degraded) == (sum(queue.queued for queue in queues.values()), False)


# -- what is not there --------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Client, str], object]] = {
    "get": lambda client, job_id: client.get(job_id),
    "wait": lambda client, job_id: client.wait(job_id),
    "events": lambda client, job_id: list(client.events(job_id)),
    "cancel": lambda client, job_id: client.cancel(job_id),
    "retry": lambda client, job_id: client.retry(job_id),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("job_id", [NOBODY, "x?wait_s=1"])
def test_an_unknown_job_is_not_found(client: Client, name: str, job_id: str) -> None:
    with pytest.raises(NotFound) as caught:
        CALLS[name](client, job_id)

    assert f"job {job_id}: " in str(caught.value)
    assert caught.value.request_id


@pytest.mark.parametrize("name", CALLS)
def test_a_job_that_retention_took_is_gone(client: Client, workers: DatabaseWorkers, name: str) -> None:
    job_id = str(client.submit("chat", {}).job_id)
    workers.finish(job_id)
    workers.prune()

    with pytest.raises(Gone) as caught:
        CALLS[name](client, job_id)

    assert (caught.value.status, caught.value.code) == (410, "gone_job")


# -- where, and who -----------------------------------------------------------------------------------------------


class Guarded:
    """A jobd that asks for a token, and listens on a socket too."""

    def __init__(self, daemon: Jobd, token: str, socket: str) -> None:
        self.url = daemon.addresses["JOBD_URL"]
        self.token = token
        self.socket_url = f"unix://{socket}"


@pytest.fixture
def guarded(folder: Any, jobd: Callable[..., Jobd]) -> Iterator[Guarded]:
    token, socket = new_token(), folder / "jobd.sock"
    entry = f'{{name = "me", sha256 = "{token.sha256.hex()}", scopes = ["client"]}}'
    config = folder / "jobd.toml"
    config.write_text(f'[queues.default]\nslots = 0\n[auth]\ntokens = [{entry}]\n[server]\nsocket = "{socket}"\n')
    daemon = jobd(None, "--config", str(config)).start().until_ready()
    yield Guarded(daemon, token.text, str(socket))


def test_tokens_and_sockets(connect: Connect, guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(guarded.url, guarded.token) as client:
        assert client.submit("chat", {}).status == "queued"
        assert guarded.token not in repr(client)
    with connect(guarded.socket_url) as client:  # root and jobd's own user need none there
        assert client.submit("chat", {}).status == "queued"
        assert client.stats().totals.queued == 2
    for token in (None, guarded.token[:-1] + "!"):
        with connect(guarded.url, token) as client, pytest.raises(Denied, match="set JOBD_TOKEN") as caught:
            client.get(NOBODY)
        assert guarded.token[:-1] not in f"{caught.value!r}"

    monkeypatch.setenv("JOBD_URL", guarded.url)
    monkeypatch.setenv("JOBD_TOKEN", guarded.token)
    with connect() as client:
        assert client.stats().totals.queued == 2


BAD_PLACES: dict[str, tuple[str | None, str | None, str]] = {
    "another scheme": ("redis://localhost", None, "url must be like http://host:port"),
    "no scheme": ("localhost:7433", None, "url must be like http://host:port"),
    "no host": ("http://", None, "url must be like http://host:port"),
    "a query": ("http://h/?token=x", None, "url must be like http://host:port"),
    "a port beyond all": ("http://h:99999999", None, "url must be like http://host:port"),
    "a port that is none": ("http://h:x", None, "url is no URL"),
    "half a path": ("unix://run/jobd.sock", None, "unix:///run/jobd.sock"),
    "a password": (f"http://me:{MARKER}@h", None, "url must not hold a password"),
    "a token with a line break": (None, f"{MARKER}\n", "token must be visible ASCII"),
    "a token of letters from elsewhere": (None, f"{MARKER}é", "token must be visible ASCII"),
}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("name", BAD_PLACES)
def test_a_place_that_cannot_be_is_refused_without_showing_secrets(kind: Any, name: str) -> None:
    url, token, words = BAD_PLACES[name]

    with pytest.raises(ConfigError) as caught:
        kind(url, token)

    assert words in str(caught.value)
    assert MARKER not in str(caught.value)


def test_a_proxy_of_the_environment_is_not_for_this_machine(
    connect: Connect, daemon: Jobd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    with connect(daemon.addresses["JOBD_URL"]) as client:
        assert client.stats().totals.queued >= 0
