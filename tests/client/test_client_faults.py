"""What the clients do when lines are cut, jobd is busy, or something else answers in its place."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from jobd.client import ApiProblem, BadAnswer, Refused, Unavailable, Unreachable
from tests.support.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jobd import Client
    from tests.client.conftest import Connect
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

JOB = {
    "job_id": "01a1e32b-6742-7000-927b-55333af42aa0",
    "task": "chat",
    "payload": {},
    "status": "queued",
    "created_ts": 1,
    "updated_ts": 1,
    "ttl_s": 1,
    "result": None,
    "error": None,
    "queue": "default",
    "priority": 0,
    "run_after_ts": 1,
    "attempt_count": 0,
    "max_attempts": 3,
    "timeout_s": 1.0,
    "spec_hash": None,
}


class ScriptedAnswer(NamedTuple):
    """An answer of a server that says what it is told; status 0: it hangs up."""

    status: int
    body: Any = b""
    headers: Mapping[str, str] = {}


class Heard(NamedTuple):
    line: str
    key: str | None
    body: bytes


class Puppet:
    def __init__(self, *answers: ScriptedAnswer) -> None:
        self.heard: list[Heard] = []
        self._answers = iter(answers)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        puppet = self

        class FaultHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                puppet.heard.append(Heard(self.requestline, self.headers.get("idempotency-key"), body))
                puppet.answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        return FaultHandler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        said = next(self._answers)
        if not said.status:
            handler.close_connection = True
            return
        body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
        handler.send_response(said.status)
        for name, value in {"Content-Length": str(len(body)), **said.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    @contextmanager
    def serving(self) -> Iterator[Puppet]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def problem(status: int, code: str, **headers: str) -> ScriptedAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ScriptedAnswer(status, {"status": status, "code": code, "detail": "so it is"}, named)


# -- trying again -------------------------------------------------------------------------------------------------

HUNG_UP = ScriptedAnswer(0)
BUSY = problem(503, "unavailable", Retry_After="0")
FULL = problem(429, "queue_full", Retry_After="0")
BAD_GATEWAY = ScriptedAnswer(502, b"<html>")


@pytest.mark.parametrize("first", [HUNG_UP, BUSY, FULL, BAD_GATEWAY], ids=lambda said: str(said.status))
def test_a_submit_is_sent_again_with_the_same_key_and_body(connect: Connect, first: ScriptedAnswer) -> None:
    with Puppet(first, first, ScriptedAnswer(202, JOB)).serving() as puppet, connect(puppet.url) as client:
        job = client.submit("chat", {"a": 1})

    assert str(job.job_id) == JOB["job_id"]
    assert len(puppet.heard) == 3
    assert len(set(puppet.heard)) == 1
    assert len(puppet.heard[0].key or "") >= 16


def test_two_submits_have_two_keys(connect: Connect) -> None:
    with Puppet(ScriptedAnswer(202, JOB), ScriptedAnswer(202, JOB)).serving() as puppet, connect(puppet.url) as client:
        client.submit("chat", {})
        client.submit("chat", {})

    assert puppet.heard[0].key != puppet.heard[1].key


def test_a_submit_whose_answer_is_lost_makes_one_job(connect: Connect, daemon: Jobd, workers: DatabaseWorkers) -> None:
    before = workers.rows("SELECT count(*) FROM jobs")[0][0]

    with proxy(lambda: daemon.address, 0, 0, 40) as line, connect(line.url) as client:
        job = client.submit("chat", {"n": 1})
        entries = client.submit_batch([{"task": "chat", "payload": {}}] * 3)

    assert line.cuts == 3
    assert not job.existing and not any(entry.existing for entry in entries)
    assert workers.rows("SELECT count(*) FROM jobs")[0][0] == before + 4


def test_a_cancel_whose_answer_is_lost_is_answered(connect: Connect, daemon: Jobd, client: Client) -> None:
    job_id = client.submit("chat", {}).job_id

    with proxy(lambda: daemon.address, 0) as line, connect(line.url) as cut:
        assert cut.cancel(job_id).status == "canceled"

    assert line.cuts == 1


@pytest.mark.parametrize("first", [HUNG_UP, BUSY], ids=["cut", "503"])
def test_a_retry_that_may_have_been_done_is_not_sent_again(connect: Connect, first: ScriptedAnswer) -> None:
    with Puppet(first).serving() as puppet, connect(puppet.url) as client, pytest.raises(Unavailable):
        client.retry("x")

    assert len(puppet.heard) == 1


def test_a_retry_that_was_turned_away_is_sent_again(connect: Connect) -> None:
    turned_away = problem(429, "too_many_requests", Retry_After="0")
    with Puppet(turned_away, ScriptedAnswer(202, JOB)).serving() as puppet, connect(puppet.url) as client:
        assert client.retry("x").status == "queued"


# -- giving up ----------------------------------------------------------------------------------------------------


def test_nobody_there_is_unreachable_and_says_what_to_do(connect: Connect) -> None:
    with connect("http://127.0.0.1:1", patience_s=0.3) as client, pytest.raises(Unreachable) as caught:
        client.submit("chat", {"a": "do-not-show-me"})

    assert str(caught.value).startswith("submit of chat: no answer from http://127.0.0.1:1: ")
    assert "`jobd serve` starts one" in str(caught.value)
    assert (caught.value.status, caught.value.code) == (0, "unreachable")


def test_a_jobd_that_asks_for_more_time_than_there_is_is_given_up_at_once(connect: Connect) -> None:
    full = problem(429, "queue_full", Retry_After="3600")
    with Puppet(full).serving() as puppet, connect(puppet.url) as client, pytest.raises(Unavailable) as caught:
        client.submit("chat", {})

    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 3600.0)
    assert len(puppet.heard) == 1


FINAL: dict[str, tuple[ScriptedAnswer, type[Exception], str]] = {
    "a fault of jobd": (problem(500, "internal"), ApiProblem, "so it is (internal)"),
    "a refusal": (problem(422, "invalid"), Refused, "so it is (invalid)"),
    "too many bad tokens": (problem(429, "too_many_attempts"), Unavailable, "(too_many_attempts)"),
    "an error page": (ScriptedAnswer(403, b"<html>"), Refused, "not as jobd does; is it behind a proxy? (http_403)"),
    "another place": (ScriptedAnswer(301, b"", {"Location": "http://127.0.0.1:1/"}), BadAnswer, "status 301"),
    "a web page": (ScriptedAnswer(200, b"<html>"), BadAnswer, "check the URL"),
    "other JSON": (ScriptedAnswer(200, {"hello": "world"}), BadAnswer, "missing required field `job_id`"),
    "no UTF-8": (ScriptedAnswer(200, b'{"job_id": "\xff"}'), BadAnswer, "check the URL"),
}


@pytest.mark.parametrize("name", FINAL)
def test_an_answer_that_will_not_get_better_is_raised_at_once(connect: Connect, name: str) -> None:
    said, kind, words = FINAL[name]

    with Puppet(said).serving() as puppet, connect(puppet.url) as client, pytest.raises(kind) as caught:
        client.get("x")

    assert "job x: " in str(caught.value)
    assert words in str(caught.value)
    assert len(puppet.heard) == 1


def test_a_stream_that_is_none_is_a_bad_answer(connect: Connect) -> None:
    page = ScriptedAnswer(200, b"<html>", {"Content-Type": "text/html"})
    with Puppet(page).serving() as puppet, connect(puppet.url) as client, pytest.raises(BadAnswer, match="no event"):
        list(client.events("x"))


# -- another version ----------------------------------------------------------------------------------------------


def test_what_a_newer_jobd_adds_is_passed_over(connect: Connect) -> None:
    newer = {
        **JOB,
        "colour": "red",
        "waiting": {"reason": "no_worker", "position": 3, "since": 1},
        "attempts": [
            {
                "number": 1,
                "attempt_id": JOB["job_id"],
                "owner_id": "w",
                "outcome": "evicted",
                "error": None,
                "started_ts": 1,
                "ended_ts": 2,
                "node": "n1",
            }
        ],
    }
    with Puppet(ScriptedAnswer(200, newer)).serving() as puppet, connect(puppet.url) as client:
        job = client.get("x")

    assert job.waiting is not None
    assert (job.waiting.reason, job.attempts[0].outcome) == ("no_worker", "evicted")


def test_a_path_in_the_url_is_kept(connect: Connect) -> None:
    with Puppet(ScriptedAnswer(200, JOB)).serving() as puppet, connect(f"{puppet.url}/jobs/here/") as client:
        client.get("x")

    assert puppet.heard[0].line == "GET /jobs/here/v1/jobs/x HTTP/1.1"


def test_waiting_asks_again_of_a_server_that_does_not_hold_its_answers(connect: Connect) -> None:
    done = ScriptedAnswer(200, {**JOB, "status": "done"})
    with Puppet(ScriptedAnswer(200, JOB), done).serving() as puppet, connect(puppet.url) as client:
        assert client.wait("x", 10).status == "done"

    assert [heard.line.partition("?")[0] for heard in puppet.heard] == ["GET /v1/jobs/x"] * 2


def test_connection_of_a_refused_stream_that_is_cut_short_is_closed(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with ThreadPoolExecutor(1) as pool, connect(url, patience_s=0) as client:
            following = pool.submit(lambda: list(client.events(str(JOB["job_id"]), give_up_s=0)))
            held, _ = server.accept()
            with held:
                held.recv(65_536)
                held.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 10\r\n\r\nabc")
                held.shutdown(socket.SHUT_WR)

                with pytest.raises(Unreachable):
                    following.result()

                held.settimeout(20)
                assert held.recv(1) == b""
