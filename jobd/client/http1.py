"""HTTP/1.1 without I/O, as far as a client of jobd needs it: a request as bytes, an answer out of bytes as they come.

Written for one purpose: a submit or a claim is a few hundred bytes each way, and general clients take 2 to 3 ms of CPU
for it where this takes 0.05. An answer is framed by its length, by chunks, or by the end of the connection; nothing is
ever compressed, since no request asks for it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from jobd.client.sansio import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.client.sansio import ApiRequest

#: Most bytes of a status line with its headers; more is no answer of a server that means well.
HEAD_BYTES: Final = 65_536
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(r"HTTP/1\.([01]) ([0-9]{3})(?: [^\r\n]*)?(?=\r\n|\Z)")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?")
#: What stands in a path as it is; everything else is percent-encoded.
_PATH_SAFE: Final = "/%:@!$&'()*+,;=~"
_HEADER: Final = re.compile(r"[\x20-\x7e]*")
_HEADER_LINE: Final = re.compile(r"\r\n([^:\r\n]*):[ \t]*([^\r\n]*)")
#: Headers that a request may replace, beside those of its client.
_ALWAYS_OWN: Final = frozenset({"Content-Type"})


class BadReply(Exception):
    """What came is no HTTP/1.1 answer, or it was cut off."""


class RequestWriter:
    """Writes requests as bytes. `prefix` stands before each path, `headers` go with every request."""

    def __init__(self, prefix: str, headers: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._headers = dict(headers)
        self._lines = _lines(self._headers)
        self._typed_lines = _lines({"Content-Type": "application/json", **self._headers})

    def write(self, request: ApiRequest) -> bytes:
        """Raises ValueError for what HTTP cannot say."""
        target = self._prefix + _quoted(request.path)
        if request.query:
            target = f"{target}?{urlencode(request.query, doseq=True)}"
        own, body = request.headers, request.body
        if own.keys() & _ALWAYS_OWN or not own.keys().isdisjoint(self._headers):
            own = {**self._headers, **own}
            own = own if body is None else {"Content-Type": "application/json", **own}
            lines = ""
        else:
            lines = self._lines if body is None else self._typed_lines
        length = "" if body is None and request.method == "GET" else f"Content-Length: {len(body or b'')}\r\n"
        head = f"{request.method} {target} HTTP/1.1\r\n{lines}{_lines(own)}{length}\r\n".encode("ascii")
        return head + body if body else head


def _lines(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if not _HEADER.fullmatch(value):
            raise ValueError(f"the header {name} must be printable ASCII in one line")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(maxsize=256)
def _quoted(path: str) -> str:
    return quote(path, safe=_PATH_SAFE)


class ReplyReader:
    """One answer. After `feed` has returned its last part `is_complete`; without a body that may be an empty one."""

    def __init__(self) -> None:
        self.status = 0
        #: By lower-case name.
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._version = "1"
        #: What was received and not read yet.
        self._kept = bytearray()
        #: Bytes that are left of the body or of the present chunk; None: until the connection ends.
        self._left: int | None = 0
        self._is_chunked = False
        #: A chunk has ended, and the line end behind it has not been read.
        self._is_behind_chunk = False
        self._in_trailer = False

    @property
    def may_go_on(self) -> bool:
        """Whether the connection can take another request."""
        is_kept = self._version == "1" and "close" not in self.headers.get("connection", "").lower()
        return self.is_complete and is_kept and not self._kept and self._left is not None

    def reply(self, body: bytes = b"") -> Reply:
        return Reply(self.status, self.headers, body)

    def feed(self, data: bytes) -> bytes:
        """What `data` adds to the body; no data means that the connection has ended. Raises BadReply."""
        if not data:
            return self._ended()
        if not self.status:
            data = self._behind_head(bytes(self._kept) + data if self._kept else data)
            if self._left == len(data) and not self._is_chunked:  # all of the body, as most answers come
                self._left, self.is_complete = 0, bool(self.status)
                return data
        self._kept += data
        if not self.status:
            return b""
        return self._read_chunks() if self._is_chunked else self._read_body()

    def _ended(self) -> bytes:
        if not self.status:
            raise BadReply("the connection was closed before an answer came")
        if self._left is not None and not self.is_complete:
            raise BadReply("the connection was closed in the middle of the answer")
        self.is_complete = True
        return b""

    def _behind_head(self, data: bytes) -> bytes:
        """What is left of `data` after the heads in it; all of it while the head is not complete."""
        self._kept.clear()
        while not self.status:
            head, end, rest = data.partition(_HEAD_END)
            if not end:
                if len(data) > HEAD_BYTES:
                    raise BadReply(f"the head of the answer is longer than {HEAD_BYTES} bytes")
                return data
            self._read_head(head.decode("latin-1"))
            data = rest
        return data

    def _read_head(self, head: str) -> None:
        """That of an interim answer (1xx) leaves no status."""
        match = _STATUS.match(head)
        if match is None:
            raise BadReply("what came is no HTTP/1.1 answer")
        if (status := int(match[2])) < 200:
            return
        self.status, self._version = status, match[1]
        lines = _HEADER_LINE.findall(head, match.end())
        if len(lines) != head.count("\r\n"):
            raise BadReply("a header of the answer has no colon")
        for name, value in lines:
            key, value = name.strip().lower(), value.rstrip()
            self.headers[key] = f"{self.headers[key]}, {value}" if key in self.headers else value
        self._frame()

    def _frame(self) -> None:
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._left = 0
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._is_chunked = True
        elif length is None:
            self._left = None
        elif length.isascii() and length.isdecimal():
            self._left = int(length)
        else:
            raise BadReply(f"the answer has an unclear length: {length[:40]}")
        self.is_complete = self._left == 0 and not self._is_chunked

    def _read_body(self) -> bytes:
        part = self._take(len(self._kept) if self._left is None else self._left)
        if self._left is not None:
            self._left -= len(part)
            self.is_complete = self._left == 0
        return part

    def _read_chunks(self) -> bytes:
        parts = []
        while not self.is_complete:
            if self._left:
                parts.append(self._take(self._left))
                self._left -= len(parts[-1])
                if self._left:
                    break
                self._is_behind_chunk = True
            if self._is_behind_chunk:
                if len(self._kept) < len(_LINE_END):
                    break
                if self._take(len(_LINE_END)) != _LINE_END:
                    raise BadReply("a chunk of the answer is longer than it says")
                self._is_behind_chunk = False
            if not self._next_chunk():
                break
        return b"".join(parts)

    def _take(self, most: int) -> bytes:
        part = bytes(self._kept[:most])
        del self._kept[:most]
        return part

    def _next_chunk(self) -> bool:
        """Read a line between chunks; False: it is not there yet."""
        end = self._kept.find(_LINE_END)
        if end < 0:
            if len(self._kept) > HEAD_BYTES:
                raise BadReply("a line between two chunks of the answer does not end")
            return False
        line = bytes(self._kept[:end])
        del self._kept[: end + len(_LINE_END)]
        if self._in_trailer:
            self.is_complete = not line
            return True
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise BadReply("a chunk of the answer has no size")
        self._left = int(match[1], 16)
        self._in_trailer = self._left == 0
        return True


class TunnelReader:
    """The answer of a proxy that is asked for a tunnel: only its head, since what follows belongs to jobd."""

    def __init__(self) -> None:
        self.is_open = False
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """Raises BadReply if there will be no tunnel."""
        self._kept += data
        head, end, _ = self._kept.partition(_HEAD_END)
        if not data or len(head) > HEAD_BYTES:
            raise BadReply("the proxy gave no answer")
        if end:
            match = _STATUS.match(head.decode("latin-1"))
            if match is None or not match[2].startswith("2"):
                raise BadReply(f"the proxy refused: {head.split(_LINE_END)[0][:100].decode('latin-1')}")
            self.is_open = True
