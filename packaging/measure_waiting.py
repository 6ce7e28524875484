#!/usr/bin/env python3
"""Measure what HTTP workers that wait for a job cost: the time from a submit to the claim that has it, and memory.

    .venv-3.10/bin/python packaging/measure_waiting.py [--workers 2000] [--rounds 5] [--jobs 200]

In turns, each round on a new jobd: one worker waits, then many. Prints the median of the rounds' medians, their ratio,
and the memory (PSS) that each waiting worker takes in the jobd process. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
CONFIG = """
[queues.default]
slots = 0
[tasks.chat]
run = "external"
[limits]
max_connections = 5000
"""
#: Longest wait of one claim in milliseconds, the most that jobd allows; then the worker asks again.
MAX_WAIT_MS = 30_000
#: Seconds for jobd to be ready.
READY_S = 60.0


class Connection:
    """One HTTP/1.1 connection with JSON in and out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        )
        self._writer.write(f"{head}\r\n\r\n".encode() + data)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None, answer
        read = json.loads(await self._reader.readexactly(int(length[1])))
        assert answer.split()[1] in (b"200", b"201", b"202"), (answer, read)
        return dict(read)


async def work(port: int, name: str, claimed: asyncio.Queue[float]) -> None:
    """Claim, note the time, complete, again."""
    connection = await Connection.open(port)
    while True:
        ask = {"worker_id": name, "streams": ["jobs:stream"], "max_wait_ms": MAX_WAIT_MS}
        job = await connection.post("/internal/worker/claim", ask)
        if job["claimed"]:
            claimed.put_nowait(time.perf_counter())
            proof = {key: job[key] for key in ("job_id", "lease_token", "attempt_id", "stream", "message_id")}
            await connection.post("/internal/worker/complete", {"worker_id": name, **proof, "result": {}})


def memory_kb(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


async def latencies(port: int, workers: int, jobs: int, pid: int) -> tuple[list[float], int]:
    """Milliseconds from each submit to its claim, one job after the other, and the memory of jobd before them."""
    claimed: asyncio.Queue[float] = asyncio.Queue()
    waiting = [asyncio.create_task(work(port, f"w{n}", claimed)) for n in range(workers)]
    try:
        await asyncio.sleep(2 + workers / 500)  # until all of them wait
        memory = memory_kb(pid)
        connection = await Connection.open(port)
        taken = []
        for _ in range(jobs):
            began = time.perf_counter()
            await connection.post("/v1/jobs", {"task": "chat", "payload": {"text": "x"}})
            taken.append((await claimed.get() - began) * 1000)
            await asyncio.sleep(0.01)
        return taken, memory
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def measured(workers: int, jobs: int) -> tuple[float, float]:
    """The median latency in milliseconds, and the kilobytes that each worker takes while it waits."""
    with tempfile.TemporaryDirectory(prefix="jobd-measure-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "jobd.toml").write_text(CONFIG)
        command = [sys.executable, "-m", "jobd", "serve", "--config", f"{name}/jobd.toml", "--data-dir", f"{name}/data"]
        said = subprocess.DEVNULL
        with subprocess.Popen([*command, "--port", "0"], cwd=TOP, stdout=said, stderr=said) as daemon:
            try:
                port = until_ready(folder / "data")
                before = memory_kb(daemon.pid)
                taken, during = asyncio.run(latencies(port, workers, jobs, daemon.pid))
                return statistics.median(taken), (during - before) / workers
            finally:
                daemon.terminate()
                daemon.wait()


def until_ready(data_dir: Path) -> int:
    """The port, once /readyz answers 200."""
    deadline = time.monotonic() + READY_S
    command = [sys.executable, "-m", "jobd", "env", "--data-dir", str(data_dir), "--json"]
    while time.monotonic() < deadline:
        shown = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
        if shown.returncode == 0:
            port = int(json.loads(shown.stdout)["JOBD_URL"].rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return port
        time.sleep(0.2)
    raise SystemExit(f"jobd was not ready within {READY_S:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=200)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    one, many = [], []
    for n in range(options.rounds):
        one.append(measured(1, options.jobs))
        many.append(measured(options.workers, options.jobs))
        print(
            f"round {n + 1}: 1 worker {one[-1][0]:.2f} ms, {options.workers} workers {many[-1][0]:.2f} ms", flush=True
        )
    alone, crowd = (statistics.median(taken for taken, _ in rounds) for rounds in (one, many))
    print(f"1 worker: {alone:.2f} ms; {options.workers} workers: {crowd:.2f} ms, {crowd / alone:.2f} times")
    print(f"{statistics.median(kb for _, kb in many):.0f} KB for each of the waiting workers")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
