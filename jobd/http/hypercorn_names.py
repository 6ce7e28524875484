"""The private names of Hypercorn and h11 that jobd subclasses or calls, checked at import.

Of Hypercorn only the protocol is used (h11 to ASGI): `jobd.http.http1` subclasses it with rules of its own. Both
libraries may rename or stop calling these names in any version. `check_names` compares each one with what jobd was
written against, so that another version stops the start with one clear error instead of switching off a rule silently.
No other module imports Hypercorn, or a private module of h11.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from jobd.errors import HypercornChanged


def _changed(what: object) -> HypercornChanged:
    return HypercornChanged(
        f"jobd does not work with Hypercorn {version('hypercorn')} and h11 {version('h11')}: {what};"
        " install the versions that jobd names"
    )


try:
    from h11._receivebuffer import ReceiveBuffer
    from hypercorn.asyncio.task_group import TaskGroup
    from hypercorn.asyncio.tcp_server import MAX_RECV
    from hypercorn.asyncio.worker_context import WorkerContext
    from hypercorn.config import Config as HypercornConfig
    from hypercorn.events import Closed, Event, RawData, Updated
    from hypercorn.protocol.events import Request
    from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
    from hypercorn.protocol.http_stream import HTTPStream
    from hypercorn.utils import parse_socket_addr
except ImportError as missing:
    raise _changed(missing) from missing

__all__ = [
    "MAX_RECV",
    "STREAM_ID",
    "Closed",
    "Event",
    "H11Protocol",
    "HTTPStream",
    "HypercornConfig",
    "RawData",
    "ReceiveBuffer",
    "Request",
    "TaskGroup",
    "Updated",
    "WorkerContext",
    "parse_socket_addr",
]

#: Each function that jobd calls or replaces, with the parameters that it must have.
SIGNATURES = {
    "hypercorn.protocol.h11:H11Protocol.__init__": (
        "self app config context task_group connection_state ssl client server send"
    ),
    "hypercorn.protocol.h11:H11Protocol.handle": "self event",
    "hypercorn.protocol.h11:H11Protocol.stream_send": "self event",
    "hypercorn.protocol.h11:H11Protocol._check_protocol": "self event",
    "hypercorn.protocol.h11:H11Protocol._create_stream": "self request",
    "hypercorn.protocol.h11:H11Protocol._send_error_response": "self status_code",
    "hypercorn.protocol.h11:H11Protocol._send_h11_event": "self event",
    "hypercorn.protocol.http_stream:HTTPStream.__init__": (
        "self app config context task_group ssl client server send stream_id"
    ),
    "hypercorn.protocol.http_stream:HTTPStream.handle": "self event",
    "hypercorn.protocol.http_stream:HTTPStream.app_send": "self message",
    "hypercorn.protocol.events:Request.__init__": "self stream_id headers http_version method raw_path state",
    "hypercorn.events:Closed.__init__": "self",
    "hypercorn.events:RawData.__init__": "self data address",
    "hypercorn.events:Updated.__init__": "self idle",
    "hypercorn.config:Config.create_ssl_context": "self",
    "hypercorn.config:Config.response_headers": "self protocol",
    "hypercorn.asyncio.task_group:TaskGroup.__init__": "self loop",
    "hypercorn.asyncio.task_group:TaskGroup.spawn": "self func args",
    "hypercorn.asyncio.worker_context:WorkerContext.__init__": "self max_requests",
    "hypercorn.asyncio.worker_context:EventWrapper.set": "self",
    "hypercorn.asyncio.worker_context:EventWrapper.is_set": "self",
    "hypercorn.utils:parse_socket_addr": "family address",
    "h11._connection:Connection.__init__": "self our_role max_incomplete_event_size",
    "h11._connection:Connection.receive_data": "self data",
    "h11._connection:Connection.next_event": "self",
    "h11._receivebuffer:ReceiveBuffer.__init__": "self",
    "h11._receivebuffer:ReceiveBuffer.__len__": "self",
    "h11._receivebuffer:ReceiveBuffer.maybe_extract_lines": "self",
}
#: Each function of the libraries that must use what jobd replaces or sets, with the names that it must use. A method
#: that the library no longer calls would be a rule that no longer holds.
USES = {
    "hypercorn.protocol.h11:H11Protocol.__init__": (
        "app can_read client config connection connection_state context keep_alive_requests send server ssl stream"
        " task_group"
    ),
    "hypercorn.protocol.h11:H11Protocol._handle_events": (
        "can_read clear connection next_event stream they_are_waiting_for_100_continue wait"
        " _check_protocol _create_stream _send_error_response"
    ),
    "hypercorn.protocol.h11:H11Protocol._maybe_recycle": "can_read set terminated",
    "hypercorn.protocol.h11:H11Protocol.stream_send": "keep_alive_max_requests keep_alive_requests",
    "hypercorn.protocol.http_stream:HTTPStream.handle": "app_put app_send scope spawn_app start_time task_group",
    "hypercorn.protocol.http_stream:HTTPStream._send_closed": "scope start_time",
    "hypercorn.asyncio.worker_context:WorkerContext.__init__": "terminated",
    "h11._connection:Connection.__init__": "_receive_buffer client_is_waiting_for_100_continue",
    "h11._connection:Connection.receive_data": "_receive_buffer",
    "h11._connection:Connection._extract_next_receive_event": "_reader _receive_buffer",
    "h11._readers:maybe_read_from_IDLE_client": "maybe_extract_lines",
    "h11._readers:ChunkedReader.__call__": "maybe_extract_lines",
}
#: Attributes of the libraries' classes that are read or set.
VALUES = (
    "hypercorn.config:Config.alpn_protocols",
    "hypercorn.config:Config.graceful_timeout",
    "hypercorn.config:Config.include_server_header",
    "hypercorn.config:Config.keep_alive_max_requests",
    "hypercorn.config:Config.keep_alive_timeout",
    "hypercorn.config:Config.ssl_handshake_timeout",
    "h11._connection:Connection.our_state",
    "h11._connection:Connection.their_state",
    "h11._connection:Connection.they_are_waiting_for_100_continue",
)


def check_names() -> None:
    """Raise `HypercornChanged` for the first private name that is missing, or differs from what jobd relies on."""
    for name, parameters in SIGNATURES.items():
        actual = " ".join(inspect.signature(_named(name)).parameters)
        if actual != parameters:
            raise _changed(f"{name} takes ({actual}) and not ({parameters})")
    for name, used in USES.items():
        code = getattr(_named(name), "__code__", None)
        for word in used.split():
            if code is None or word not in code.co_names:
                raise _changed(f"{name} does not use {word}")
    for name in VALUES:
        _named(name)


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise _changed(f"{name} is missing") from error
    return value


check_names()
