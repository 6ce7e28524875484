"""Following a job: every event once and in order, to the last, whatever happens to the line or to jobd."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.client import Conflict, Refused, Unreachable
from jobd.wire.sse import SseMessage, SseParser
from tests.conftest import NOBODY_WORKS
from tests.http.test_events import claim, complete, emit
from tests.support.http import Api
from tests.support.proxy import proxy
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jobd import Client
    from jobd.client import Event
    from tests.client.conftest import Connect
    from tests.support.daemon import Jobd

WHOLE = ["0-1 queued", "1-0 running", "1-1 token", "1-2 token", "1-3 done"]


def shown(events: list[Event]) -> list[str]:
    return [f"{event.id} {event.type}" for event in events]


def whole(tokens: int) -> list[str]:
    tokens_seen = [f"1-{n} token" for n in range(1, tokens + 1)]
    return ["0-1 queued", "1-0 running", *tokens_seen, f"1-{tokens + 1} done"]


def submit(client: Client) -> str:
    return str(client.submit("chat", {}, queue="told").job_id)


def finished_job(client: Client, api: Api) -> str:
    job_id = submit(client)
    held = claim(api, job_id)
    emit(api, held, "a", "b")
    complete(api, held)
    return job_id


class Reading(threading.Thread):
    """Follows a job in a thread of its own."""

    def __init__(self, client: Client, job_id: str, **options: Any) -> None:
        super().__init__()
        self.seen: list[Event] = []
        self._events = client.events(job_id, **options)
        self.start()

    def run(self) -> None:
        self.seen.extend(self._events)

    def until_seen(self, number: int) -> None:
        wait_until(lambda: len(self.seen) >= number, lambda: f"only {shown(self.seen)}", 15.0)

    def until_over(self) -> list[str]:
        self.join(15)
        assert not self.is_alive(), shown(self.seen)
        return shown(self.seen)


# -- the usual ----------------------------------------------------------------------------------------------------


def test_a_live_job_is_told_to_its_end(client: Client, api: Api) -> None:
    job_id = submit(client)
    reading = Reading(client, job_id)
    reading.until_seen(1)

    held = claim(api, job_id)
    emit(api, held, "a", "b")
    complete(api, held)

    assert reading.until_over() == WHOLE
    event = reading.seen[2]
    assert (event.step, event.data, event.is_last, reading.seen[-1].is_last) == ("model", {"t": "a"}, False, True)
    assert event.ts > 1_700_000_000_000
    assert repr(event) == "<Event 1-1 token>"


def test_every_event_is_a_place_to_go_on_from(client: Client, api: Api) -> None:
    job_id = finished_job(client, api)

    for n, line in enumerate(WHOLE):
        assert shown(list(client.events(job_id, after=line.split()[0]))) == WHOLE[n + 1 :]


def test_a_place_that_cannot_be_is_refused(client: Client, api: Api) -> None:
    job_id = finished_job(client, api)

    with pytest.raises(Conflict, match=f"events of job {job_id}: .*has no event 7-0 yet"):
        list(client.events(job_id, after="7-0"))
    with pytest.raises(Refused, match="bad_cursor"):
        list(client.events(job_id, after="yesterday"))


def test_leaving_early_hangs_up(connect: Connect, client: Client, daemon: Jobd, api: Api) -> None:
    job_id = submit(client)

    with proxy(lambda: daemon.address) as line, connect(line.url) as follower:
        events = follower.events(job_id)
        assert next(events).type == "queued"
        assert line.open == 1
        events.close()

        wait_until(lambda: line.open == 0, "the line is still open", 20)


# -- cut lines ----------------------------------------------------------------------------------------------------

CUTS = 20


@pytest.mark.timeout(180)
def test_a_line_cut_at_random_points_costs_no_event_and_doubles_none(
    connect: Connect, client: Client, daemon: Jobd, api: Api
) -> None:
    chance = random.Random(20)
    job_id = submit(client)
    with proxy(lambda: daemon.address, *(chance.randrange(1500) for _ in range(CUTS))) as line:
        with connect(line.url) as follower:
            reading = Reading(follower, job_id)
            held = claim(api, job_id)
            count = 0
            while line.cuts < CUTS:
                assert reading.is_alive()
                emit(api, held, "x" * chance.randrange(200))
                count += 1
            complete(api, held)

            assert reading.until_over() == whole(count)
    assert line.cuts == CUTS


def stubbornly(call: Callable[[], Any]) -> Any:
    """Until jobd answers, as any worker would; `offset` makes a repeated call harmless."""
    answers: list[Any] = []

    def answered() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, KeyError):
            answer = call()
            answers.append(answer.json)
            return bool(answer.status == 200)
        return False

    wait_until(answered, lambda: str(answers), 15.0)
    return answers[-1]


@pytest.mark.timeout(180)
def test_kill_9_and_restart_cost_no_event_and_double_none(
    connect: Connect, folder: Path, jobd: Callable[..., Jobd]
) -> None:
    (folder / "jobd.toml").write_text(NOBODY_WORKS)
    daemon = jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()
    with proxy(lambda: daemon.address) as line, connect(line.url) as client:
        job_id = submit(client)
        reading = Reading(client, job_id)
        held = claim(Api(daemon.address), job_id)
        emit(Api(daemon.address), held, *"abc", offset=0)
        reading.until_seen(4)
        ticket = client.create_ticket("Count", "chat", {}, created_by="ann")
        changes = client.ticket_events(ticket.ticket_id)
        assert next(changes).id == "1"

        daemon.kill()
        daemon.start().until_ready()
        stubbornly(lambda: emit(Api(daemon.address), held, *"de", offset=3))
        stubbornly(lambda: Api(daemon.address)("POST", "/internal/worker/complete", {**held, "result": {}}))
        assert Api(daemon.address)("POST", f"/v1/tickets/{ticket.ticket_id}/approve", {"by": "bob"}).status == 200

        assert reading.until_over() == whole(5)
        approved = next(changes)
        assert (approved.id, approved.data["status"]) == ("2", "TODO")
        changes.close()
        assert client.wait(job_id).status == "done"


def test_a_jobd_that_stays_away_is_given_up(connect: Connect, client: Client, daemon: Jobd) -> None:
    job_id = submit(client)
    addresses = [daemon.address]

    with proxy(lambda: addresses[-1], 600) as line, connect(line.url) as follower:
        events = follower.events(job_id, give_up_s=0.5)
        assert next(events).type == "queued"
        addresses.append("127.0.0.1:1")
        line.hang_up()

        with pytest.raises(Unreachable, match=f"events of job {job_id}: no answer from {line.url}"):
            next(events)


# -- reading the stream -------------------------------------------------------------------------------------------

STREAM = (
    ": a comment\nretry: 5\nevent: hello\ndata: {}\n\n"
    "id: 1-0\nevent: token\ndata: ä€😀\ndata:second\n\n"
    "event: nothing\n\n"
    "id: 1-1\r\ndata: \r\n\r\n"
    "id:1-2\rdata:  two spaces\r\r"
    "unknown: x\ndata\n\n"
    "id: 1-3\ndata: cut"
).encode()
MESSAGES = [
    SseMessage("", "hello", "{}"),
    SseMessage("1-0", "token", "ä€😀\nsecond"),
    SseMessage("1-1", "message", ""),
    SseMessage("1-2", "message", " two spaces"),
    SseMessage("", "message", ""),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
def test_a_stream_reads_the_same_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    parser = SseParser()
    pieces = [STREAM[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]

    assert [message for piece in pieces for message in parser.feed(piece)] == MESSAGES
