"""The client for asynchronous programs, under asyncio or trio: every call is awaited. Tasks may share one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio
import httpx

from jobd.client import calls
from jobd.client import operations as house
from jobd.client import tickets as desk
from jobd.client.answers import Event
from jobd.client.sansio import Lost, Open, Pause, Reply, Send
from jobd.client.transport import Caller, built, lost_by, reply_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine

    from typing_extensions import Self

    from jobd.client.following import EventFlow
    from jobd.client.sansio import Flow, Settings, Step

P = ParamSpec("P")
T = TypeVar("T")


class _Line:
    """Takes the steps of one call."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None

    async def take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await anyio.sleep(step.seconds)
        try:
            if isinstance(step, Send):
                response = await self._http.send(built(self._http, step.request))
                return reply_of(response, response.content)
            return await (self._open(step) if isinstance(step, Open) else self._read())
        except httpx.TransportError as error:
            return lost_by(error)

    async def _open(self, step: Open) -> Reply | Lost:
        await self.close()
        self._response = await self._http.send(built(self._http, step.request), stream=True)
        if self._response.status_code != 200:
            return reply_of(self._response, await self._response.aread())
        self._parts = self._response.aiter_bytes()
        return reply_of(self._response)

    async def _read(self) -> bytes:
        assert self._parts is not None, "a flow opens a stream before it reads"
        try:
            return await self._parts.__anext__()
        except StopAsyncIteration:
            return b""

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()


def _call(
    flow: Callable[Concatenate[Settings, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(flow)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(flow(self._settings, *args, **kwargs))

    return call


def _stream(
    flow: Callable[Concatenate[Settings, P], EventFlow],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Event, None]]:
    @functools.wraps(flow)
    def stream(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Event, None]:
        return self._follow(flow(self._settings, *args, **kwargs))

    return stream


class AsyncClient(Caller):
    """Talks to a jobd. Arguments and methods are those of `jobd.Client`, the latter to be awaited.

        async with AsyncClient() as jobd:
            job = await jobd.submit("chat", {"text": "hello"})
            async for event in jobd.events(job.job_id):
                print(event.type, event.data)

    Whoever leaves the loop over `events` early closes the line at once with `contextlib.aclosing` around the generator.
    """

    _http: httpx.AsyncClient
    _http_kind = httpx.AsyncClient
    _transport_kind = httpx.AsyncHTTPTransport

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

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, flow: Flow[T]) -> T:
        line = _Line(self._http)
        came = None
        try:
            while True:
                came = await line.take(flow.send(came))
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def _follow(self, flow: EventFlow) -> AsyncGenerator[Event, None]:
        line = _Line(self._http)
        came = None
        try:
            while True:
                step = flow.send(came)
                came = None
                if isinstance(step, Event):
                    yield step
                else:
                    came = await line.take(step)
        except StopIteration:
            return
        finally:
            await line.close()
