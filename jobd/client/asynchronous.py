"""The client for asynchronous programs, under asyncio or trio: every call is awaited. Tasks may share one."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSStream

from jobd.client import calls, operations
from jobd.client import groups as groups_calls
from jobd.client import responses as response_calls
from jobd.client import schedules as schedule_calls
from jobd.client import tickets as ticket_calls
from jobd.client.answers import Event
from jobd.client.http1 import BadReply, ReplyReader, TunnelReader
from jobd.client.sansio import Lost, Open, Pause, Reply, Send
from jobd.client.transport import (
    IDLE_CONNECTIONS,
    READ_BYTES,
    BaseClient,
    ConnectFailed,
    Route,
    may_be_reused,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from anyio.abc import ByteStream
    from typing_extensions import Self

    from jobd.client.following import EventFlow
    from jobd.client.sansio import ApiRequest, CallSettings, Flow, Step

#: What a connection that breaks raises.
_BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

P = ParamSpec("P")
T = TypeVar("T")


class _AwaitedConnection:
    """A connection to jobd and the answer that is being read from it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._socket = stream.extra(SocketAttribute.raw_socket)
        self.answer = ReplyReader()
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        return may_be_reused(self._socket, self.idle_since)

    async def send(self, data: bytes, timeout_s: float) -> None:
        self.answer = ReplyReader()
        with anyio.fail_after(timeout_s):
            await self._stream.send(data)

    async def ask(self, data: bytes, send_s: float, silence_s: float) -> Reply:
        """Send a request and read its whole answer, with one cancel scope for all of it: each costs 15 us."""
        self.answer = answer = ReplyReader()
        parts = []
        with anyio.CancelScope(deadline=anyio.current_time() + send_s) as scope:
            await self._stream.send(data)
            while not answer.is_complete:
                scope.deadline = anyio.current_time() + silence_s
                parts.append(answer.feed(await self._receive()))
            return answer.reply(parts[0] if len(parts) == 1 else b"".join(parts))
        raise TimeoutError

    async def read_head(self, timeout_s: float) -> bytes:
        """What came of the body with the head."""
        part = b""
        while not self.answer.status:
            part = await self.read(timeout_s)
        return part

    async def read(self, timeout_s: float) -> bytes:
        with anyio.fail_after(timeout_s):
            return self.answer.feed(await self._receive())

    async def _receive(self) -> bytes:
        """No bytes: the connection has ended."""
        try:
            return await self._stream.receive(READ_BYTES)
        except anyio.EndOfStream:
            return b""

    async def close(self) -> None:
        await anyio.aclose_forcefully(self._stream)


async def _connected(route: Route) -> ByteStream:
    if route.socket is not None:
        return await anyio.connect_unix(route.socket)
    stream: ByteStream = await anyio.connect_tcp(route.host, route.port)
    try:
        if route.tunnel is not None:
            await _open_tunnel(stream, route.tunnel)
        if route.tls is not None:
            stream = await TLSStream.wrap(
                stream, hostname=route.server_name, ssl_context=route.tls, standard_compatible=False
            )
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return stream


async def _open_tunnel(stream: ByteStream, asking: bytes) -> None:
    answer = TunnelReader()
    await stream.send(asking)
    while not answer.is_open:
        answer.feed(await stream.receive(READ_BYTES))


class _AwaitedExchange:
    """Takes the steps of one call."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._stream: _AwaitedConnection | None = None
        self._silence_s = 0.0
        #: What came of the stream's body together with its head.
        self._first = b""

    async def take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await anyio.sleep(step.seconds)
        try:
            if isinstance(step, Send):
                return await self._send(step.request)
            return await (self._open(step.request) if isinstance(step, Open) else self._read())
        except ConnectFailed as error:
            return Lost(str(error), is_unsent=True)
        except TimeoutError:
            return Lost("timed out")
        except (*_BROKEN, BadReply) as error:
            return Lost(str(error) or type(error).__name__)

    async def _send(self, request: ApiRequest) -> Reply:
        client = self._client
        data = client._bytes_of(request)
        connection = await client._reused() or await client._connect()
        try:
            reply = await connection.ask(data, client._timeout_s, client._answer_s(request))
        except BaseException:
            await connection.close()
            raise
        await client._put_back(connection)
        return reply

    async def _whole(self, connection: _AwaitedConnection, first: bytes, timeout_s: float) -> Reply:
        parts = [first]
        while not connection.answer.is_complete:
            parts.append(await connection.read(timeout_s))
        await self._client._put_back(connection)
        return connection.answer.reply(b"".join(parts))

    async def _open(self, request: ApiRequest) -> Reply:
        await self.close()
        self._silence_s = self._client._answer_s(request)
        self._stream = connection = await self._client._begin(request)
        first = await connection.read_head(self._silence_s)
        if connection.answer.status != 200:
            reply = await self._whole(connection, first, self._silence_s)  # cut off, `close` ends the connection
            self._stream = None
            return reply
        self._first = first
        return connection.answer.reply()

    async def _read(self) -> bytes:
        assert self._stream is not None, "a flow opens a stream before it reads"
        part, self._first = self._first, b""
        while not part and not self._stream.answer.is_complete:
            part = await self._stream.read(self._silence_s)
        return part

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()
            self._stream = None


def _call(
    flow: Callable[Concatenate[CallSettings, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(flow)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(flow(self._settings, *args, **kwargs))

    return call


def _stream(
    flow: Callable[Concatenate[CallSettings, P], EventFlow],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Event, None]]:
    @functools.wraps(flow)
    def stream(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Event, None]:
        return self._follow(flow(self._settings, *args, **kwargs))

    return stream


class AsyncClient(BaseClient):
    """Talks to a jobd. Arguments and methods are those of `jobd.Client`, the latter to be awaited.

        async with AsyncClient() as jobd:
            job = await jobd.submit("chat", {"text": "hello"})
            async for event in jobd.events(job.job_id):
                print(event.type, event.data)

    To leave the loop over `events` early and close the line at once, put `contextlib.aclosing` around the generator.
    """

    submit = _call(calls.submit)
    submit_and_wait = _call(calls.submit_and_wait)
    submit_batch = _call(calls.submit_batch)
    get = _call(calls.get)
    wait = _call(calls.wait)
    list = _call(calls.list_jobs)
    events = _stream(calls.events)
    cancel = _call(calls.cancel)
    retry = _call(calls.retry)
    result = _call(calls.result)
    result_json = _call(calls.result_json)
    create_group = _call(groups_calls.create_group)
    group = _call(groups_calls.group)
    groups = _call(groups_calls.groups)
    wait_group = _call(groups_calls.wait_group)
    seal_group = _call(groups_calls.seal_group)
    cancel_group = _call(groups_calls.cancel_group)
    retry_group = _call(groups_calls.retry_group)
    chain = _call(groups_calls.chain)
    fan_out = _call(groups_calls.fan_out)
    fan_in = _call(groups_calls.fan_in)
    queues = _call(operations.queues)
    stats = _call(operations.stats)
    board = _call(operations.board)
    workers = _call(operations.workers)
    pause = _call(operations.pause)
    resume = _call(operations.resume)
    pause_task = _call(operations.pause_task)
    resume_task = _call(operations.resume_task)
    pause_all = _call(operations.pause_all)
    resume_all = _call(operations.resume_all)
    limits = _call(operations.limits)
    set_limit = _call(operations.set_limit)
    drop_limit = _call(operations.drop_limit)
    dead_letters = _call(operations.dead_letters)
    dead_letter_groups = _call(operations.dead_letter_groups)
    retry_dead_letters = _call(operations.retry_dead_letters)
    count = _call(operations.count)
    cancel_jobs = _call(operations.cancel_jobs)
    retry_jobs = _call(operations.retry_jobs)
    delete_jobs = _call(operations.delete_jobs)
    config = _call(operations.config)
    audit = _call(operations.audit)
    create_schedule = _call(schedule_calls.create_schedule)
    edit_schedule = _call(schedule_calls.edit_schedule)
    delete_schedule = _call(schedule_calls.delete_schedule)
    pause_schedule = _call(schedule_calls.pause_schedule)
    resume_schedule = _call(schedule_calls.resume_schedule)
    run_schedule = _call(schedule_calls.run_schedule)
    backfill_schedule = _call(schedule_calls.backfill_schedule)
    schedule = _call(schedule_calls.schedule)
    schedules = _call(schedule_calls.schedules)
    schedule_next = _call(schedule_calls.schedule_next)
    create_ticket = _call(ticket_calls.create_ticket)
    edit_ticket = _call(ticket_calls.edit_ticket)
    approve = _call(ticket_calls.approve)
    reject = _call(ticket_calls.reject)
    unblock = _call(ticket_calls.unblock)
    reopen = _call(ticket_calls.reopen)
    sign_off = _call(ticket_calls.sign_off)
    ticket = _call(ticket_calls.ticket)
    tickets = _call(ticket_calls.tickets)
    trail = _call(ticket_calls.trail)
    ticket_events = _stream(ticket_calls.ticket_events)
    models = _call(response_calls.models)
    respond = _call(response_calls.respond)
    response = _call(response_calls.response)
    cancel_response = _call(response_calls.cancel_response)
    response_events = _stream(response_calls.response_events)

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _begin(self, request: ApiRequest) -> _AwaitedConnection:
        """A connection on which the request was sent; raises ConnectFailed while nothing of it can have arrived."""
        data = self._bytes_of(request)
        connection = await self._reused() or await self._connect()
        try:
            await connection.send(data, self._timeout_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _reused(self) -> _AwaitedConnection | None:
        while self._idle:
            connection: _AwaitedConnection = self._idle.pop()
            if connection.is_usable():
                return connection
            await connection.close()
        return None

    async def _connect(self) -> _AwaitedConnection:
        try:
            with anyio.fail_after(self._timeout_s):
                return _AwaitedConnection(await _connected(self._route))
        except TimeoutError:
            raise ConnectFailed("timed out") from None
        except (*_BROKEN, BadReply) as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error

    async def _put_back(self, connection: _AwaitedConnection) -> None:
        if connection.answer.may_go_on and len(self._idle) < IDLE_CONNECTIONS:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            await connection.close()

    async def _run(self, flow: Flow[T]) -> T:
        line = _AwaitedExchange(self)
        came = None
        try:
            while True:
                came = await line.take(flow.send(came))
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def _follow(self, flow: EventFlow) -> AsyncGenerator[Event, None]:
        line = _AwaitedExchange(self)
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
