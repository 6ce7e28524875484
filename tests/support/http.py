"""Plain HTTP calls, as anyone could make them, to a jobd that runs in a process of its own."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 120.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of a problem document; None for a good answer."""
        is_problem = self.headers.get("content-type") == "application/problem+json"
        return self.json["code"] if is_problem else None


class Api:
    """Sends what it is given; bytes go as they are, anything else as JSON."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        self.address = address
        self._headers = dict(headers or {})

    def __call__(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {**({} if content is None else {"Content-Type": "application/json"}), **self._headers, **(headers or {})}
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()
