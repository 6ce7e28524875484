"""The client for ordinary programs: every call blocks. Threads may share one."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import httpx

from jobd.client import calls
from jobd.client import operations as house
from jobd.client import tickets as desk
from jobd.client.answers import Event
from jobd.client.sansio import Lost, Open, Pause, Reply, Send
from jobd.client.transport import Caller, built, lost_by, reply_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from typing_extensions import Self

    from jobd.client.following import EventFlow
    from jobd.client.sansio import Flow, Settings, Step

P = ParamSpec("P")
T = TypeVar("T")


class _Line:
    """Takes the steps of one call."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: Iterator[bytes] = iter(())

    def take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        try:
            if isinstance(step, Send):
                response = self._http.send(built(self._http, step.request))
                return reply_of(response, response.content)
            return self._open(step) if isinstance(step, Open) else next(self._parts, b"")
        except httpx.TransportError as error:
            return lost_by(error)

    def _open(self, step: Open) -> Reply | Lost:
        self.close()
        self._response = self._http.send(built(self._http, step.request), stream=True)
        if self._response.status_code != 200:
            return reply_of(self._response, self._response.read())
        self._parts = self._response.iter_bytes()
        return reply_of(self._response)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()


def _call(flow: Callable[Concatenate[Settings, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(flow)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(flow(self._settings, *args, **kwargs))

    return call


def _stream(
    flow: Callable[Concatenate[Settings, P], EventFlow],
) -> Callable[Concatenate[Client, P], Generator[Event, None, None]]:
    @functools.wraps(flow)
    def stream(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[Event, None, None]:
        return self._follow(flow(self._settings, *args, **kwargs))

    return stream


class Client(Caller):
    """Talks to a jobd.

    `url` is `http://host:port`, `https://...` or `unix:///path`; without it JOBD_URL, else the usual address on this
    machine. `token` is asked for once jobd has one; without it JOBD_TOKEN. `timeout` is in seconds, for each answer;
    a jobd that is away or busy is tried again for `patience_s`.

        with Client() as jobd:
            job = jobd.submit("chat", {"text": "hello"})
            print(jobd.wait(job.job_id).result)
    """

    _http: httpx.Client
    _http_kind = httpx.Client
    _transport_kind = httpx.HTTPTransport

    submit = _call(calls.submit)
    submit_batch = _call(calls.submit_batch)
    get = _call(calls.get)
    wait = _call(calls.wait)
    list = _call(calls.list_jobs)
    events = _stream(calls.events)
    cancel = _call(calls.cancel)
    retry = _call(calls.retry)
    result = _call(calls.result)
    result_json = _call(calls.result_json)
    queues = _call(house.queues)
    stats = _call(house.stats)
    workers = _call(house.workers)
    pause = _call(house.pause)
    resume = _call(house.resume)
    dead_letters = _call(house.dead_letters)
    retry_dead_letters = _call(house.retry_dead_letters)
    create_ticket = _call(desk.create_ticket)
    edit_ticket = _call(desk.edit_ticket)
    approve = _call(desk.approve)
    reject = _call(desk.reject)
    unblock = _call(desk.unblock)
    reopen = _call(desk.reopen)
    sign_off = _call(desk.sign_off)
    ticket = _call(desk.ticket)
    tickets = _call(desk.tickets)
    trail = _call(desk.trail)
    ticket_events = _stream(desk.ticket_events)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        line = _Line(self._http)
        came = None
        try:
            while True:
                came = line.take(flow.send(came))
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _follow(self, flow: EventFlow) -> Generator[Event, None, None]:
        line = _Line(self._http)
        came = None
        try:
            while True:
                step = flow.send(came)
                came = None
                if isinstance(step, Event):
                    yield step
                else:
                    came = line.take(step)
        except StopIteration:
            return
        finally:
            line.close()
