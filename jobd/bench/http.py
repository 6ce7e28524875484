"""`jobd bench http`: submits per second at 50 connections, one by one and in batches, beside the server's own floor.

The floor is the same server answering a constant, in a process of its own like jobd; rounds take turns and the median
counts. The client is a small one of its own: it sends the same bytes over and over on connections that stay open, and
takes its share of the machine's cores as any client on the board would.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from jobd.bench.engine import PAYLOAD
from jobd.bench.report import Machine, load_average, machine, medians, percentiles_ms
from jobd.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Connections that send requests at the same time.
CONNECTIONS = 50
#: Jobs in one request to `/v1/jobs/batch`.
BATCH = 100
#: Seconds that the daemon under test may take to be ready.
READY_S = 30.0
#: Nothing takes the jobs away, and the queue never fills.
CONFIG = """
[queues.default]
slots = 0
[limits]
max_queued = 10000000
"""
JOB = f'{{"task":"chat","payload":{PAYLOAD}}}'


class HttpRound(msgspec.Struct, frozen=True, kw_only=True):
    #: Answers per second.
    floor: float
    single: float
    #: Jobs per second.
    batch: float
    #: Time of a single submit, in ms.
    single_p50_ms: float
    single_p99_ms: float


class HttpReport(Machine, frozen=True, kw_only=True):
    connections: int
    seconds: float
    median: HttpRound
    rounds: list[HttpRound]


class LoadConnection(asyncio.Protocol):
    """One connection: sends, waits for the whole answer, sends again."""

    def __init__(self, request: bytes, until: float, times: list[float]) -> None:
        self._request = request
        self._until = until
        self._times = times
        self._answer = b""
        self._sent_at = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's says so by its methods only
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        if len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 202"):
            self._fail(f"answered {head[:60]!r} {body[:200]!r}")
            return
        now = perf_counter()
        self._times.append(now - self._sent_at)
        self._answer = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._sent_at = perf_counter()
        self._transport.write(self._request)

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ServerFailed(f"the server under test {why}"))
        self._transport.close()


async def load(address: tuple[str, int], request: bytes, seconds: float) -> tuple[float, list[float]]:
    """Answers per second of all connections together, and how long each answer took."""
    times: list[float] = []
    loop = asyncio.get_running_loop()
    started = perf_counter()
    clients = []
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(lambda: LoadConnection(request, started + seconds, times), *address)
        clients.append(client)
    for client in clients:
        await client.done
    return len(times) / (perf_counter() - started), times


def request_of(path: str, body: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


SINGLE = request_of("/v1/jobs", JOB)
MANY = request_of("/v1/jobs/batch", f"[{','.join([JOB] * BATCH)}]")


async def measure(seconds: float, rounds: int, progress: Callable[[str], None]) -> HttpReport:
    load_before = load_average()
    figures = []
    progress("starting")
    with floor_server() as floor, jobd_server() as served:
        await load(floor, SINGLE, 0.2)  # warm up
        await load(served.address, SINGLE, 0.2)
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            at_floor, _ = await load(floor, SINGLE, seconds)
            single, times = await load(served.address, SINGLE, seconds)
            many, _ = await load(served.address, MANY, seconds)
            figures.append(_round(at_floor, single, many * BATCH, times))
    progress("")
    return HttpReport(
        **machine(load_before),
        connections=CONNECTIONS,
        seconds=seconds,
        median=medians(figures),
        rounds=figures,
    )


def _round(floor: float, single: float, batch: float, times: list[float]) -> HttpRound:
    p50_ms, p99_ms = percentiles_ms(times)
    return HttpRound(floor=floor, single=single, batch=batch, single_p50_ms=p50_ms, single_p99_ms=p99_ms)


# Servers


@contextlib.contextmanager
def floor_server() -> Iterator[tuple[str, int]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        process = subprocess.Popen(
            [sys.executable, "-m", "jobd.bench.http_floor", str(listener.fileno())], pass_fds=[listener.fileno()]
        )
        try:
            yield listener.getsockname()
        finally:
            process.kill()
            process.wait()


class Served(NamedTuple):
    address: tuple[str, int]
    config: Path
    data_dir: Path


@contextlib.contextmanager
def jobd_server(settings: str = CONFIG) -> Iterator[Served]:
    """A `jobd serve` of its own in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="jobd-bench-") as folder:
        os.chmod(folder, 0o755)  # the servers may run as another user
        config, data = Path(folder, "jobd.toml"), Path(folder, "data")
        config.write_text(settings)
        command = [sys.executable, "-m", "jobd", "serve", "--config", str(config), "--data-dir", str(data)]
        with subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                yield Served(_address_in(process), config, data)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(READY_S)
                if (data / "run").is_symlink():
                    shutil.rmtree((data / "run").resolve().parent, ignore_errors=True)


def _address_in(process: subprocess.Popen[str]) -> tuple[str, int]:
    """It says where it serves when it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        _, scheme, rest = line.partition("http://")
        if scheme:
            host, _, port = rest.split(",")[0].strip().rpartition(":")
            return host, int(port)
    raise ServerFailed("the jobd to be measured did not start; try jobd serve by hand to see why")


def table(report: HttpReport) -> list[str]:
    figures = report.median
    lines = [
        f"median of {len(report.rounds)} rounds of {report.seconds:g} s at {report.connections} connections",
        "",
        f"floor, a constant answer   {figures.floor:>9,.0f}/s",
        f"single submits             {figures.single:>9,.0f}/s   {figures.single / figures.floor:.0%} of the floor;"
        f" p50 {figures.single_p50_ms:.1f} ms, p99 {figures.single_p99_ms:.1f} ms",
        f"in batches of {BATCH}          {figures.batch:>9,.0f}/s   jobs",
        report.line(),
    ]
    return [line.replace(",", " ") if "/s" in line else line for line in lines]
