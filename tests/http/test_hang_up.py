"""Answers that take long end with their caller, however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobd.http.hang_up import hang_up
from jobd.wire.problems import ApiError
from tests.support.raw_http import answers_in, dial

if TYPE_CHECKING:
    from tests.support.daemon import Jobd
    from tests.support.http import Api

BODY = {"type": "http.request", "body": b"x", "more_body": True}
GONE = {"type": "http.disconnect"}
STUCK = ApiError("body_timeout", "the body came too slowly")


@pytest.mark.parametrize("last", [GONE, STUCK], ids=["gone", "stuck"])
async def test_caller_who_leaves_or_is_stuck_has_hung_up(last: Any) -> None:
    parts: list[Any] = [BODY, BODY, last]

    async def receive() -> Any:
        part = parts.pop(0)
        if isinstance(part, Exception):
            raise part
        return part

    await hang_up(receive)

    assert parts == []


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", ["/v1/jobs/{id}?wait_s=50", "/v1/jobs/{id}/events", "/v1/events"])
def test_body_that_never_comes_ends_a_long_answer_without_a_fault(daemon: Jobd, api: Api, path: str) -> None:
    job_id = api("POST", "/v1/jobs", {"task": "chat", "payload": {}}).json["job_id"]
    head = f"GET {path.format(id=job_id)} HTTP/1.1\r\nHost: {daemon.address}\r\nContent-Length: 9\r\n\r\n"

    with dial(daemon.address) as connection:
        connection.settimeout(30)
        connection.sendall(head.encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))

    (answer,) = answers_in(received, True)
    assert answer.status == 200
    assert answer.headers["x-request-id"] not in daemon.log_file.read_text()
