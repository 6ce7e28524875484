"""Many clients follow many jobs: what one costs, how late it hears, and that none of them keeps jobd from ending."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

#: Each job tells so many events a second.
RATE = 10
DRAIN_S = 2


class RawStreamReader(asyncio.Protocol):
    """A client that costs little itself: it only counts."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self.events = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = f"GET /v1/jobs/{self._job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        cast("asyncio.WriteTransport", transport).write(head.encode())

    def data_received(self, data: bytes) -> None:
        self.begun.set()
        self.events += data.count(b"event: token")

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


def _same(follower: RawStreamReader) -> RawStreamReader:
    return follower


async def crowd(daemon: Jobd, job_ids: list[str], clients: int, seconds: float) -> list[int]:
    """How many events each follower saw in so many seconds; ends with jobd."""
    followers = [RawStreamReader(job_ids[n % len(job_ids)]) for n in range(clients)]
    host, _, port = daemon.address.partition(":")
    for follower in followers:
        await asyncio.get_running_loop().create_connection(partial(_same, follower), host, int(port))
    for follower in followers:
        await asyncio.wait_for(follower.begun.wait(), 60)
    await asyncio.sleep(1)
    for follower in followers:
        follower.events = 0  # not what happened before they came
    await asyncio.sleep(seconds)
    seen = [follower.events for follower in followers]
    stopped_at = time.monotonic()
    daemon.signal(signal.SIGTERM)
    await asyncio.get_running_loop().run_in_executor(None, daemon.wait, DRAIN_S + 20)
    assert time.monotonic() - stopped_at <= DRAIN_S + 5
    for follower in followers:
        await asyncio.wait_for(follower.ended.wait(), 10)
    return seen


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("jobs", "clients", "seconds"), [(6, 60, 3.0), pytest.param(100, 1000, 15.0, marks=pytest.mark.slow)]
)
def test_all_hear_everything_and_a_stop_ends_them_all(
    jobd: Callable[..., Jobd],
    folder: Path,
    jobs: int,
    clients: int,
    seconds: float,
) -> None:
    (folder / "jobd.toml").write_text(f"drain_s = {DRAIN_S}\n[queues.default]\nslots = {jobs}\n")
    daemon = jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()
    length_s = seconds + 60
    body = [{"task": "chat", "payload": {"seconds": length_s, "tokens": int(length_s * RATE)}} for _ in range(jobs)]
    made = Api(daemon.address)("POST", "/v1/jobs/batch", body).json["jobs"]

    seen = anyio.run(
        crowd, daemon, [job["job_id"] for job in made], clients, seconds, backend_options={"use_uvloop": True}
    )

    assert min(seen) > 0
