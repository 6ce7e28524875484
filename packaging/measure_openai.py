"""What jobd adds to a model server that is called through its OpenAI interface; prints a table.

    python packaging/measure_openai.py [--calls 200] [--streams 100] [--rate 50] [--seconds 10]

A model server of this script's own (in a process of its own) is called directly and through a jobd with a fresh data
directory, by turns, from the same client:

1. Time to the first token: calls one after the other, the server answers at once. Median of both, and what jobd adds.
2. Streams at once, each with a steady rate. Every token carries the time at which the server sent it; its delay is
   measured when the client has it. p50 and p99 of both; and the CPU time of jobd, Postgres and Valkey for each token.

All of it shares the cores of this machine, so run it on a quiet one, and compare within one run; on a busy one only
the CPU time means anything, so the load average is printed, too. The data directory is made where TMPDIR says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).resolve().parent.parent
#: Seconds that jobd may take to be ready.
READY_S = 60.0
#: Bytes of the buffer of a connection.
LIMIT = 1 << 20


# -- the model server --------------------------------------------------------------------------------------------------


async def serve() -> None:
    server = await asyncio.start_server(_serve_client, "127.0.0.1", 0, limit=LIMIT, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            tokens, pause_s = int(asked.get("tokens", 1)), float(asked.get("pause_s", 0))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            await _send_tokens(writer, tokens, pause_s)
    writer.close()


async def _send_tokens(writer: asyncio.StreamWriter, tokens: int, pause_s: float) -> None:
    begun_at = time.monotonic()
    for n in range(tokens):
        _send(writer, {"content": f"{time.time_ns()} "})
        if pause_s:
            await writer.drain()
            await asyncio.sleep(max(0.0, begun_at + (n + 1) * pause_s - time.monotonic()))
    _send(writer, {}, "stop")
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()


def _send(writer: asyncio.StreamWriter, delta: dict[str, str], finish_reason: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    data = b"data: %b\n\n" % json.dumps(chunk).encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


# -- the client --------------------------------------------------------------------------------------------------------


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> Client:
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def call(self, **fields: Any) -> tuple[float, list[float]]:
        """Seconds until the first token was here, and the delay of each token since the server sent it."""
        message = {"role": "user", "content": "hi"}
        body = json.dumps({"model": "m", "messages": [message], "stream": True, **fields}).encode()
        sent_at = time.monotonic()
        self._writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise SystemExit(f"the call was refused: {head.decode()}")
        first_s, delays = 0.0, []
        while size := int((await self._reader.readline()).strip(), 16):
            chunk = await self._reader.readexactly(size + 2)
            now = time.time_ns()
            for line in chunk.split(b"\n"):
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text = choices[0]["delta"].get("content") if choices else None
                    delays += [(now - int(each)) / 1e9 for each in (text or "").split()]
            if delays and not first_s:
                first_s = time.monotonic() - sent_at
        await self._reader.readline()
        return first_s, delays


async def first_tokens(addresses: list[str], calls: int) -> list[list[float]]:
    """Seconds to the first token, by turns."""
    found: list[list[float]] = [[] for _ in addresses]
    async with contextlib.AsyncExitStack() as open_clients:
        clients = [await open_clients.enter_async_context(Client(address)) for address in addresses]
        for n in range(calls + 10):
            for client, times in zip(clients, found, strict=True):
                first_s, _ = await client.call(tokens=1)
                if n >= 10:
                    times.append(first_s)
    return found


async def streams(address: str, number: int, rate: float, seconds: float) -> list[float]:
    """The delay of every token but those of the first second, in which all streams begin."""

    async def one() -> list[float]:
        async with Client(address) as client:
            _, delays = await client.call(tokens=int(rate * seconds), pause_s=1 / rate)
            return delays[int(rate) :]

    return [delay for delays in await asyncio.gather(*(one() for _ in range(number))) for delay in delays]


# -- the run -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(arguments, text=True, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def jobd(folder: Path, port: int, slots: int) -> Iterator[tuple[str, int]]:
    """The address and the process id of a jobd whose model is the server at this port."""
    config = folder / "jobd.toml"
    config.write_text(
        f'[queues.default]\nslots = {slots}\n[models.m]\nbase_url = "http://127.0.0.1:{port}/v1"\n', "utf-8"
    )
    serving = (sys.executable, "-m", "jobd", "serve", "--config", str(config), "--data-dir", str(folder / "data"))
    log = (folder / "log").open("wb")
    with log, running(*serving, "--port", "0", cwd="/", env={**os.environ, "PYTHONPATH": str(TOP)}, stderr=log) as it:
        yield until_ready(folder, it), it.pid


def until_ready(folder: Path, process: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            url: str = json.loads((folder / "data" / "env.json").read_text())["JOBD_URL"]
            urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
            return url.removeprefix("http://")
        time.sleep(0.1)
    raise SystemExit(f"jobd did not become ready: {(folder / 'log').read_text()[-2000:]}")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all that it has started."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = stat.read_text().partition(" ")
            fields = rest.rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(number))
            used[int(number)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    left, total = [pid], 0.0
    while left:
        each = left.pop()
        total += used.get(each, 0.0)
        left += children.get(each, [])
    return total


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


def measure(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="jobd-openai-"))
    folder.chmod(0o755)
    server_call = (sys.executable, __file__, "--serve")
    try:
        with running(*server_call, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with jobd(folder, port, options.streams) as (address, pid):
                bare = f"127.0.0.1:{port}"
                print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, data in {folder.parent}")
                direct, through = asyncio.run(first_tokens([bare, address], options.calls))
                first, first_jobd = quantile(direct, 0.5), quantile(through, 0.5)
                print(f"time to first token, {options.calls} calls one after the other, p50 (p99):")
                print(f"  bare server {first:.2f} ms ({quantile(direct, 0.99):.2f})")
                print(f"  through jobd {first_jobd:.2f} ms ({quantile(through, 0.99):.2f})")
                print(f"  added {first_jobd - first:.2f} ms")
                shape = options.streams, options.rate, options.seconds
                delays = asyncio.run(streams(bare, *shape))
                before = cpu_s(pid)
                with_jobd = asyncio.run(streams(address, *shape))
                used = cpu_s(pid) - before
                load = f"{options.streams} streams of {options.rate:g} tokens/s for {options.seconds:g} s"
                print(f"delay of a token, {load}:")
                print(f"  bare server p50 {quantile(delays, 0.5):.1f} ms, p99 {quantile(delays, 0.99):.1f} ms")
                print(f"  through jobd p50 {quantile(with_jobd, 0.5):.1f} ms, p99 {quantile(with_jobd, 0.99):.1f} ms")
                tokens = options.streams * int(options.rate * options.seconds)
                print(f"  CPU of jobd, Postgres and Valkey: {used / tokens * 1e6:.0f} us a token ({used:.1f} s in all)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="be the model server; prints its port")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if options.serve:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    else:
        measure(options)


if __name__ == "__main__":
    main()
