"""Server-sent events, read as the standard says, over a plain socket."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Sent(NamedTuple):
    id: str
    type: str
    data: Any


class Stream:
    """An open event stream; iterating it ends with the stream."""

    def __init__(
        self, address: str, path: str, headers: Mapping[str, str] | None = None, timeout_s: float = 15.0
    ) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=timeout_s)
        self._connection.request("GET", path, headers=dict(headers or {}))
        self.answer = self._connection.getresponse()
        self.comments = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.answer.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Sent]:
        event_id, kind, data = "", "message", ""
        while line := self.answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(":")
            if line == "\n":
                if data:
                    yield Sent(event_id, kind, json.loads(data))
                kind, data = "message", ""
            elif not name:
                self.comments += 1
            elif name == "id":
                event_id = value.strip()
            elif name == "event":
                kind = value.strip()
            elif name == "data":
                data += value.strip()
