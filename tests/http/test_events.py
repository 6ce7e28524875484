"""Event streams: complete, in order, from any cursor on, and ended by the last event."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sse import Sent, Stream

if TYPE_CHECKING:
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api


def submit(api: Api, queue: str = "told") -> str:
    answer = api("POST", "/v1/jobs", {"task": "chat", "payload": {}, "queue": queue})
    assert answer.status == 202, answer.body
    job_id: str = answer.json["job_id"]
    return job_id


def claim(api: Api, job_id: str) -> dict[str, Any]:
    """Claims until it has this very job; others of the session may have left some."""
    asked = {"worker_id": "w1", "streams": ["jobs:stream:told"], "max_wait_ms": 5000}
    while (found := api("POST", "/internal/worker/claim", asked).json)["claimed"]:
        if found["job_id"] == job_id:
            return {name: found[name] for name in ("job_id", "attempt_id", "lease_token")} | {"worker_id": "w1"}
    raise AssertionError(f"{job_id} was not to be had")


def emit(api: Api, held: dict[str, Any], *tokens: str, **more: Any) -> Any:
    proof = {name: held[name] for name in ("worker_id", "job_id", "lease_token")}
    events = [{"type": "token", "step": "model", "data": {"t": token}} for token in tokens]
    return api("POST", "/internal/worker/events", {**proof, "events": events, **more})


def complete(api: Api, held: dict[str, Any]) -> None:
    assert api("POST", "/internal/worker/complete", {**held, "result": {"ok": True}}).json["ok"]


def finished_job(api: Api) -> str:
    job_id = submit(api)
    held = claim(api, job_id)
    emit(api, held, "a", "b")
    complete(api, held)
    return job_id


def shown(events: list[Sent]) -> list[str]:
    return [f"{event.id} {event.type}" for event in events if event.type != "hello"]


WHOLE = ["0-1 queued", "1-0 running", "1-1 token", "1-2 token", "1-3 done"]


def test_a_live_stream_tells_everything_in_order_and_ends(api: Api, daemon: Jobd) -> None:
    job_id = submit(api)
    seen: list[Sent] = []
    with Stream(daemon.address, f"/v1/jobs/{job_id}/events") as stream:
        reading = threading.Thread(target=lambda: seen.extend(stream))
        reading.start()

        held = claim(api, job_id)
        emit(api, held, "a", "b")
        complete(api, held)
        reading.join(10)

    assert not reading.is_alive()
    assert (seen[0].type, seen[0].data["job_id"]) == ("hello", job_id)
    assert shown(seen) == WHOLE
    assert seen[3].data["data"] == {"t": "a"}


def test_a_client_of_an_old_version_of_http_gets_its_events_without_chunks(api: Api, daemon: Jobd) -> None:
    job_id = submit(api)
    host, _, port = daemon.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = line.recv(65536)

        held = claim(api, job_id)
        for token in ("a", "b"):
            emit(api, held, token)
        complete(api, held)
        while some := line.recv(65536):
            answer += some

    head, _, body = answer.decode().partition("\r\n\r\n")
    lines = body.splitlines()
    assert "chunked" not in head.lower()
    assert [text for text in lines if text.startswith("id: ")] == [f"id: {text.split()[0]}" for text in WHOLE]
    assert {text.partition(":")[0] for text in lines} <= {"", "id", "event", "data", "retry"}


def test_a_stream_says_that_it_is_not_to_be_buffered(api: Api, daemon: Jobd) -> None:
    with Stream(daemon.address, f"/v1/jobs/{finished_job(api)}/events") as stream:
        headers = {name.lower(): value for name, value in stream.answer.getheaders()}

    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")


@pytest.mark.parametrize("name", ["Last-Event-ID", "after"])
def test_every_cursor_of_a_finished_job_continues_exactly(api: Api, daemon: Jobd, name: str) -> None:
    job_id = finished_job(api)

    for n, line in enumerate(WHOLE):
        cursor = line.split()[0]
        path = f"/v1/jobs/{job_id}/events" + (f"?after={cursor}" if name == "after" else "")
        with Stream(daemon.address, path, {name: cursor} if name != "after" else {}) as stream:
            assert shown(list(stream)) == WHOLE[n + 1 :]


def test_a_finished_job_whose_keys_are_gone_from_redis_is_told_whole(api: Api, daemon: Jobd) -> None:
    import redis

    job_id = finished_job(api)
    with redis.Redis.from_url(daemon.addresses["REDIS_URL"]) as client:
        client.delete(f"job:{job_id}", f"job:{job_id}:events")

    with Stream(daemon.address, f"/v1/jobs/{job_id}/events") as stream:
        assert shown(list(stream)) == WHOLE


BAD_CURSORS: dict[str, tuple[int, str]] = {
    "x": (400, "bad_cursor"),
    "-1": (400, "bad_cursor"),
    "1-": (400, "bad_cursor"),
    "1-2-3": (400, "bad_cursor"),
    "-1-0": (400, "bad_cursor"),
    "1-0 ": (200, ""),  # spaces around a header's value are not part of it
    "\u00b9-\u00b2": (400, "bad_cursor"),
    "99999999999999999999-0": (400, "bad_cursor"),
    "1-4": (409, "cursor_ahead"),
    "7-0": (409, "cursor_ahead"),
    "": (200, ""),
}


@pytest.mark.parametrize("cursor", BAD_CURSORS)
def test_a_cursor_that_cannot_be_is_refused(api: Api, cursor: str) -> None:
    job_id = finished_job(api)

    answer = api("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": cursor.encode().decode("latin-1")})

    assert (answer.status, answer.code or "") == BAD_CURSORS[cursor]


def test_streams_of_unknown_jobs_are_not_found(api: Api) -> None:
    for job_id in ("01a1e32b-6742-7000-927b-55333af42aa0", "x", "1"):
        answer = api("GET", f"/v1/jobs/{job_id}/events")
        assert (answer.status, answer.code) == (404, "unknown_job")


def test_the_stream_of_a_job_past_its_retention_is_gone(api: Api, workers: DatabaseWorkers) -> None:
    job_id = finished_job(api)
    workers.prune()

    answer = api("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "1-0"})

    assert (answer.status, answer.code) == (410, "gone_job")


def test_text_of_a_worker_cannot_forge_an_event(api: Api, daemon: Jobd) -> None:
    evil = "x\n\nid: 9-9\nevent: done\ndata: {}\n\r\r\n"
    job_id = submit(api)
    held = claim(api, job_id)
    emit(api, held, evil)
    complete(api, held)

    with Stream(daemon.address, f"/v1/jobs/{job_id}/events") as stream:
        seen = list(stream)

    assert shown(seen) == ["0-1 queued", "1-0 running", "1-1 token", "1-2 done"]
    assert seen[3].data["data"] == {"t": evil}


BAD_EVENTS: dict[str, Any] = {
    "none": [],
    "too many": [{"type": "token"}] * 201,
    "told by jobd": [{"type": "done"}],
    "a line break in the type": [{"type": "a\nb"}],
    "no type": [{"data": {}}],
    "an unknown field": [{"type": "token", "level": 1}],
    "data that is no object": [{"type": "token", "data": []}],
    "a long step": [{"type": "token", "step": "x" * 201}],
    "a negative time": [{"type": "token", "ts": -1}],
    "much data": [{"type": "token", "data": {"x": "y" * 20_000}}],
    "a NUL": [{"type": "token", "data": {"x": "\0"}}],
}


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_bad_events_are_refused_and_change_nothing(api: Api, daemon: Jobd, name: str) -> None:
    job_id = submit(api)
    held = claim(api, job_id)
    proof = {name: held[name] for name in ("worker_id", "job_id", "lease_token")}

    answer = api("POST", "/internal/worker/events", {**proof, "events": BAD_EVENTS[name]})
    complete(api, held)

    assert answer.status in (413, 422), answer.body
    with Stream(daemon.address, f"/v1/jobs/{job_id}/events") as stream:
        assert shown(list(stream)) == ["0-1 queued", "1-0 running", "1-1 done"]


def test_events_sent_twice_with_their_offset_are_kept_once(api: Api, daemon: Jobd) -> None:
    job_id = submit(api)
    held = claim(api, job_id)

    answers = [emit(api, held, "a", "b", offset=0).json for _ in range(2)]
    skipped = emit(api, held, "z", offset=5).json
    complete(api, held)

    assert answers == [{"ok": True, "last_event_id": "1-2"}] * 2
    assert skipped == {"ok": False, "reason": "out_of_step", "offset": 2}
    with Stream(daemon.address, f"/v1/jobs/{job_id}/events") as stream:
        assert shown(list(stream)) == WHOLE


def test_who_no_longer_holds_the_job_tells_nothing(api: Api) -> None:
    job_id = submit(api)
    held = claim(api, job_id)
    complete(api, held)

    assert emit(api, held, "late").json == {"ok": False, "reason": "lease_lost"}
    assert emit(api, {**held, "lease_token": "nonsense"}, "x").json == {"ok": False, "reason": "lease_lost"}


def test_events_of_several_jobs_are_told_in_one_call(api: Api, daemon: Jobd) -> None:
    held = [claim(api, submit(api)) for _ in range(2)]
    lost = {"job_id": held[0]["job_id"], "lease_token": held[1]["lease_token"]}
    nonsense = {"job_id": "x", "lease_token": "y"}
    jobs = [
        {**{name: one[name] for name in ("job_id", "lease_token")}, "offset": 0, "events": events_of(str(n))}
        for n, one in enumerate([held[0], lost, nonsense, held[1]])
    ]

    answers = [api("POST", "/internal/worker/events/batch", {"worker_id": "w", "jobs": jobs}) for _ in range(2)]

    assert answers[0].json == answers[1].json
    assert [(one["ok"], one.get("reason")) for one in answers[0].json["jobs"]] == [
        (True, None),
        (False, "lease_lost"),
        (False, "lease_lost"),
        (True, None),
    ]
    for one, text in zip(held, "03", strict=True):
        complete(api, one)
        with Stream(daemon.address, f"/v1/jobs/{one['job_id']}/events") as events:
            assert [event.data["data"] for event in events if event.type == "token"] == [{"text": text}]


def events_of(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "token", "data": {"text": text}} for text in texts]


def test_a_bad_event_among_several_jobs_is_named_and_nothing_is_kept(api: Api) -> None:
    held = claim(api, submit(api))
    proof = {name: held[name] for name in ("job_id", "lease_token")}
    jobs = [{**proof, "events": events_of("a")}, {**proof, "events": [*events_of("b"), {"type": "done"}]}]

    answer = api("POST", "/internal/worker/events/batch", {"worker_id": "w", "jobs": jobs})

    assert (answer.code, answer.json["index"]) == ("invalid", 1)
    assert "$.jobs[1].events[1].type" in answer.json["detail"]
    assert emit(api, held, "c", offset=0).json["ok"]


def test_the_firehose_tells_of_all_jobs_that_fit(api: Api, daemon: Jobd) -> None:
    seen: list[Sent] = []
    with Stream(daemon.address, "/v1/events?queue=told&type=done") as stream:
        events = iter(stream)
        assert next(events).type == "hello"

        job_id = finished_job(api)
        while not seen or seen[-1].data.get("job_id") != job_id:
            seen.append(next(events))

    seen = [event for event in seen if event.type != "gap"]  # it may have been deaf at first
    assert {event.type for event in seen} == {"done"}
    assert {event.data["queue"] for event in seen} == {"told"}


@pytest.mark.parametrize("query", ["type=token", "status=done", "after=1"])
def test_unknown_filters_of_the_firehose_are_refused(api: Api, query: str) -> None:
    answer = api("GET", f"/v1/events?{query}")

    assert (answer.status, answer.code) == (422, "invalid")
