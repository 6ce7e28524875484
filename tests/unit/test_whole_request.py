"""Requests read without h11 are read as h11 reads them, and whatever is not plain is left to h11."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.http.http1 import StrictH11
from jobd.http.whole_request import WholeRequest, read_whole_request

HOST = b"Host: localhost\r\n"
PLAIN = b"POST /v1/jobs?wait_s=1 HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def read_by_h11(received: bytes) -> WholeRequest | None:
    """What h11 makes of the bytes if they are one request after which the connection goes on."""
    connection = StrictH11()
    connection.receive_data(received)
    body = b""
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request) or connection.client_is_waiting_for_100_continue:
            return None
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.EndOfMessage) or connection.their_state is not h11.DONE or connection.unread_bytes:
        return None
    return WholeRequest(request.method.decode(), request.target, list(request.headers), body, received)


#: Lines of heads as they should be, and as they come from the careless and the malicious.
LINES = [
    *(b"Host: localhost", b"host:127.0.0.1:7433", b"Host: ", b"Host : localhost", b"Content-Length: 2"),
    *(b"content-length:2", b"Content-Length: 02", b"Content-Length: +2", b"Content-Length: 2, 2", b"Content-Length: 3"),
    *(
        b"Content-Length: 9999999",
        b"Content-Length: \xb2",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: identity",
    ),
    *(
        b"Connection: keep-alive",
        b"Connection: close",
        b"Connection: Close, x",
        b"Connection: Upgrade",
        b"Upgrade: h2c",
    ),
    *(b"Expect: 100-continue", b"X: a b\tc", b"X:  a", b"X: a ", b"X:", b"X", b": x", b" folded", b"\tfolded", b""),
    *(
        b"X: a\0b",
        b"X: \xe4",
        b"X: a\rb",
        b"X: a\nHost: b",
        b"Idempotency-Key: k",
        b"Authorization: Bearer t",
        b"X_y: 1",
    ),
]
FIRST_LINES = [
    *(b"POST /v1/jobs HTTP/1.1", b"GET /livez HTTP/1.1", b"GET /a%20b?c=d HTTP/1.1", b"HEAD / HTTP/1.1"),
    *(b"get / HTTP/1.1", b"GET / HTTP/1.0", b"GET / HTTP/2.0", b"GET  / HTTP/1.1", b"GET /\0 HTTP/1.1"),
    *(b"GET /\xe4 HTTP/1.1", b"\r\nGET / HTTP/1.1", b"GET http://localhost/ HTTP/1.1", b"OPTIONS * HTTP/1.1"),
    *(b"GET / HTTP/1.1 ", b"PATCH /x HTTP/1.1", b"noise"),
]
heads = st.builds(
    lambda first, lines, end: first + end + b"".join(line + end for line in lines) + end,
    st.sampled_from(FIRST_LINES),
    st.lists(st.sampled_from(LINES), max_size=6),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]),
)
plain_heads = st.builds(
    lambda first, lines: b"".join(line + b"\r\n" for line in (first, *lines)) + b"\r\n",
    st.sampled_from([b"POST /v1/jobs HTTP/1.1", b"GET /livez?a=b HTTP/1.1"]),
    st.permutations([b"Host: localhost", b"Content-Length: 2", b"X: a  b", b"Connection: Keep-Alive", b"x-y:z"]),
)
bodies = st.sampled_from([b"", b"{}", b"{}\r\n", b"{}GET / HTTP/1.1\r\n\r\n", b"{", b"2\r\n{}\r\n0\r\n\r\n"])
mutations = st.tuples(st.integers(min_value=0, max_value=300), st.binary(max_size=2))


@given(st.one_of(heads, plain_heads), bodies, st.one_of(st.none(), mutations))
def test_what_is_read_without_h11_is_what_h11_reads(
    head: bytes, body: bytes, mutation: tuple[int, bytes] | None
) -> None:
    received = head + body
    if mutation is not None:
        at, put = mutation
        received = received[:at] + put + received[at + 1 :]

    found = read_whole_request(received)

    assert found is None or found == read_by_h11(received)


@given(plain_heads)
def test_plain_request_is_read_without_h11(head: bytes) -> None:
    assert read_whole_request(head + b"{}") == read_by_h11(head + b"{}") != None  # noqa: E711 - a chain


@pytest.mark.parametrize(
    "received",
    [
        PLAIN[:-1],
        PLAIN + b"\r\n",
        PLAIN + PLAIN,
        PLAIN.replace(HOST, b""),
        PLAIN.replace(HOST, HOST + HOST),
        PLAIN.replace(HOST, b"Host:\r\n"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"POST", b"HEAD"),
        PLAIN.replace(b"POST", b"post"),
        PLAIN.replace(b" /v1", b" http://localhost/v1"),
        PLAIN.replace(b"\r\n", b"\n"),
        PLAIN.replace(HOST, HOST + b"Connection: close\r\n"),
        PLAIN.replace(HOST, HOST + b"Expect: 100-continue\r\n"),
        PLAIN.replace(HOST, HOST + b"Transfer-Encoding: chunked\r\n"),
        PLAIN.replace(HOST, HOST + b"Transfer-Encoding : chunked\r\n"),
        PLAIN.replace(HOST, HOST + b"Content-Length: 2\r\n"),
        PLAIN.replace(HOST, HOST + b"X: a\r\n b\r\n"),
        PLAIN.replace(HOST, HOST + b"X: \x80\r\n"),
        PLAIN.replace(b"Length: 2", b"Length: 0000002"),
        PLAIN.replace(b"Length: 2", b"Length: +2"),
        b"",
    ],
    ids=lambda received: ascii(received[:60]),
)
def test_any_other_request_is_left_to_h11(received: bytes) -> None:
    assert read_whole_request(received) is None
