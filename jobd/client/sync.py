"""The client for ordinary programs: every call blocks. Threads may share one."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

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
    from collections.abc import Callable, Generator

    from typing_extensions import Self

    from jobd.client.following import EventFlow
    from jobd.client.sansio import ApiRequest, CallSettings, Flow, Step

P = ParamSpec("P")
T = TypeVar("T")


class _BlockingConnection:
    """A connection to jobd and the answer that is being read from it."""

    def __init__(self, route: Route, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._socket = _connected(route, timeout_s)
        self.answer = ReplyReader()
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        return may_be_reused(self._socket, self.idle_since)

    def send(self, data: bytes) -> None:
        self.answer = ReplyReader()
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(data)

    def read_head(self, timeout_s: float) -> bytes:
        """What came of the body with the head."""
        self._socket.settimeout(timeout_s)
        part = b""
        while not self.answer.status:
            part = self.read()
        return part

    def read(self) -> bytes:
        return self.answer.feed(self._socket.recv(READ_BYTES))

    def close(self) -> None:
        self._socket.close()


def _connected(route: Route, timeout_s: float) -> socket.socket:
    if route.socket is not None:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(timeout_s)
    else:
        made = socket.create_connection((route.host, route.port), timeout_s)
    try:
        if route.socket is not None:
            made.connect(route.socket)
            return made
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if route.tunnel is not None:
            _open_tunnel(made, route.tunnel)
        return made if route.tls is None else route.tls.wrap_socket(made, server_hostname=route.server_name)
    except BaseException:
        made.close()
        raise


def _open_tunnel(made: socket.socket, asking: bytes) -> None:
    answer = TunnelReader()
    made.sendall(asking)
    while not answer.is_open:
        answer.feed(made.recv(READ_BYTES))


class _BlockingExchange:
    """Takes the steps of one call."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream: _BlockingConnection | None = None
        #: What came of the stream's body together with its head.
        self._first = b""

    def take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        try:
            if isinstance(step, Send):
                return self._send(step.request)
            return self._open(step.request) if isinstance(step, Open) else self._read()
        except ConnectFailed as error:
            return Lost(str(error), is_unsent=True)
        except (OSError, BadReply) as error:
            return Lost(str(error) or type(error).__name__)

    def _send(self, request: ApiRequest) -> Reply:
        connection = self._client._begin(request)
        try:
            return self._whole(connection, connection.read_head(self._client._answer_s(request)))
        except BaseException:
            connection.close()
            raise

    def _whole(self, connection: _BlockingConnection, first: bytes) -> Reply:
        parts = [first]
        while not connection.answer.is_complete:
            parts.append(connection.read())
        self._client._put_back(connection)
        return connection.answer.reply(b"".join(parts))

    def _open(self, request: ApiRequest) -> Reply:
        self.close()
        self._stream = connection = self._client._begin(request)
        first = connection.read_head(self._client._answer_s(request))
        if connection.answer.status != 200:
            reply = self._whole(connection, first)  # cut off in the middle, `close` ends the connection
            self._stream = None
            return reply
        self._first = first
        return connection.answer.reply()

    def _read(self) -> bytes:
        assert self._stream is not None, "a flow opens a stream before it reads"
        part, self._first = self._first, b""
        while not part and not self._stream.answer.is_complete:
            part = self._stream.read()
        return part

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _call(flow: Callable[Concatenate[CallSettings, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(flow)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(flow(self._settings, *args, **kwargs))

    return call


def _stream(
    flow: Callable[Concatenate[CallSettings, P], EventFlow],
) -> Callable[Concatenate[Client, P], Generator[Event, None, None]]:
    @functools.wraps(flow)
    def stream(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[Event, None, None]:
        return self._follow(flow(self._settings, *args, **kwargs))

    return stream


class Client(BaseClient):
    """Talks to a jobd.

    `url` is `http://host:port`, `https://...` or `unix:///path`; without it JOBD_URL, else the usual address on this
    machine. `token` is asked for once jobd has one; without it JOBD_TOKEN. `timeout` is in seconds, for each answer;
    a jobd that is away or busy is tried again for `patience_s`.

        with Client() as jobd:
            job = jobd.submit("chat", {"text": "hello"})
            print(jobd.wait(job.job_id).result)
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

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, request: ApiRequest) -> _BlockingConnection:
        """A connection on which the request was sent; raises ConnectFailed while nothing of it can have arrived."""
        data = self._bytes_of(request)
        connection = self._reused() or self._connect()
        try:
            connection.send(data)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reused(self) -> _BlockingConnection | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                connection: _BlockingConnection = self._idle.pop()
                if connection.is_usable():
                    return connection
                connection.close()
        return None

    def _connect(self) -> _BlockingConnection:
        try:
            return _BlockingConnection(self._route, self._timeout_s)
        except (OSError, BadReply) as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error

    def _put_back(self, connection: _BlockingConnection) -> None:
        if connection.answer.may_go_on and len(self._idle) < IDLE_CONNECTIONS:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def _run(self, flow: Flow[T]) -> T:
        line = _BlockingExchange(self)
        came = None
        try:
            while True:
                came = line.take(flow.send(came))
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _follow(self, flow: EventFlow) -> Generator[Event, None, None]:
        line = _BlockingExchange(self)
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
