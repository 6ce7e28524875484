"""HTTP/1.1 as the clients speak it: requests as bytes, answers out of bytes however they are cut."""

from __future__ import annotations

import pytest

from jobd.client.http1 import HEAD_BYTES, BadReply, ReplyReader, RequestWriter, TunnelReader
from jobd.client.sansio import ApiRequest

ALWAYS = {"Host": "h:1", "User-Agent": "jobd/1"}
WRITER = RequestWriter("", ALWAYS)

#: Name -> the answer, whether the connection ends after it, its status and body, whether another request may follow.
ANSWERS: dict[str, tuple[bytes, bool, int, bytes, bool]] = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False, 200, b"hello", True),
    "no reason": (b"HTTP/1.1 202\r\ncontent-length: 0\r\n\r\n", False, 202, b"", True),
    "an empty reason": (b"HTTP/1.1 202 \r\ncontent-length:0\r\n\r\n", False, 202, b"", True),
    "nothing by its status": (b"HTTP/1.1 204 No Content\r\n\r\n", False, 204, b"", True),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
        False,
        200,
        b"hello",
        True,
    ),
    "chunks with a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
        False,
        200,
        b"0123456789",
        True,
    ),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhello", True, 200, b"hello", False),
    "closed afterwards": (
        b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        False,
        503,
        b"{}",
        False,
    ),
    "an old version": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", False, 200, b"{}", False),
    "an interim answer before": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx",
        False,
        200,
        b"x",
        True,
    ),
    "more than was asked for": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200", False, 200, b"x", False),
}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_answer_is_read_however_it_is_cut(name: str, size: int) -> None:
    data, ends, status, body, may_go_on = ANSWERS[name]
    reader, parts = ReplyReader(), []

    for start in range(0, len(data), size):
        parts.append(reader.feed(data[start : start + size]))
        if reader.is_complete and name != "more than was asked for":
            break
    if ends:
        assert not reader.is_complete
        parts.append(reader.feed(b""))

    assert (reader.status, b"".join(parts), reader.is_complete) == (status, body, True)
    assert reader.may_go_on is may_go_on or (size < 1000 and name == "more than was asked for")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (HEAD_BYTES + 1),
        b"x" * (HEAD_BYTES + 1),
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        ReplyReader().feed(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "before an answer came"),
        (b"HTTP/1.1 200", "before an answer came"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "in the middle"),
    ],
)
def test_answer_that_is_cut_off_is_no_answer(data: bytes, words: str) -> None:
    reader = ReplyReader()
    if data:
        reader.feed(data)

    with pytest.raises(BadReply, match=words):
        reader.feed(b"")


def test_headers_that_come_twice_are_joined() -> None:
    reader = ReplyReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 0\r\n\r\n")

    assert reader.reply().headers == {"x-a": "1, 2", "content-length": "0"}


def test_request_says_all_it_has_to() -> None:
    request = ApiRequest(
        what="x", method="POST", path="/v1/jobs/ä b", query={"q": "a&b"}, body=b"{}", headers={"X": "y"}
    )

    assert RequestWriter("/under", ALWAYS).write(request) == (
        b"POST /under/v1/jobs/%C3%A4%20b?q=a%26b HTTP/1.1\r\nContent-Type: application/json\r\nHost: h:1\r\n"
        b"User-Agent: jobd/1\r\nX: y\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Content-Length: 0" in WRITER.write(ApiRequest(what="x", method="POST", path="/"))
    assert b"Content-Length" not in WRITER.write(ApiRequest(what="x", path="/"))


def test_header_of_a_request_replaces_that_of_its_client() -> None:
    own = {"User-Agent": "me", "Content-Type": "text/plain"}

    assert WRITER.write(ApiRequest(what="x", method="POST", path="/", body=b"{}", headers=own)) == (
        b"POST / HTTP/1.1\r\nContent-Type: text/plain\r\nHost: h:1\r\nUser-Agent: me\r\nContent-Length: 2\r\n\r\n{}"
    )
    with pytest.raises(ValueError, match="the header Authorization must be printable ASCII"):
        RequestWriter("", {"Authorization": "a\nb"})


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "é", "\0"])
def test_header_that_would_be_more_than_one_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="the header Idempotency-Key must be printable ASCII"):
        WRITER.write(ApiRequest(what="x", path="/", headers={"Idempotency-Key": value}))


def test_line_break_in_a_path_stays_in_the_path() -> None:
    assert WRITER.write(ApiRequest(what="x", path="/a\r\nX: y")).startswith(b"GET /a%0D%0AX:%20y HTTP/1.1\r\n")


def test_tunnel_is_open_once_the_proxy_has_said_so() -> None:
    tunnel = TunnelReader()
    tunnel.feed(b"HTTP/1.1 200 Connection")
    assert not tunnel.is_open
    tunnel.feed(b" established\r\n\r\n")
    assert tunnel.is_open


@pytest.mark.parametrize("data", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"hello\r\n\r\n", b""])
def test_tunnel_that_is_refused_says_why(data: bytes) -> None:
    with pytest.raises(BadReply, match="the proxy"):
        TunnelReader().feed(data)
