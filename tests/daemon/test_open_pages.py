"""Many open pages on a busy node: each follows everything and polls the overview; who submits must hardly notice.

Pages and senders are processes of their own, and times with and without pages are taken in turns, so that what else
the machine does concerns both. `pytest -m slow --log-cli-level=INFO tests/daemon/test_open_pages.py` shows the figures.
"""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import TOP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Jobd

log = logging.getLogger(__name__)

PAGES = 50
#: Times that are taken with pages, and without.
TURNS = 6
#: Seconds of each.
TURN_S = 5
#: How many times as long a submit may take at the median.
MOST = 1.2

#: One page: a stream of everything, and the calls of the overview every 3 s, as pages/app/overview.js makes them.
PAGES_PROGRAM = """
import asyncio, random, sys
host, port, pages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PATHS = ["/readyz", "/v1/stats", "/v1/workers?limit=100&held=20", "/v1/dlq?limit=5"]
def head(path): return f"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode()
class Quiet(asyncio.Protocol):
    def connection_made(self, transport): transport.write(head("/v1/events"))
async def answer(reader):
    length = 0
    while (line := await reader.readline()) != b"\\r\\n":
        if line.lower().startswith(b"content-length:"): length = int(line.split(b":")[1])
        assert line
    await reader.readexactly(length)
async def page():
    await asyncio.get_running_loop().create_connection(Quiet, host, port)
    lines = [await asyncio.open_connection(host, port) for _ in PATHS]  # kept open, as browsers do
    await asyncio.sleep(random.random() * 3)
    while True:
        for (_, writer), path in zip(lines, PATHS): writer.write(head(path))
        for reader, _ in lines: await answer(reader)
        await asyncio.sleep(3)
async def main():
    tasks = [asyncio.ensure_future(page()) for _ in range(pages)]
    await asyncio.sleep(1)
    print("open", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""
#: Submits 100 jobs a second over one connection, and prints how long each took.
SUBMITS_PROGRAM = """
import http.client, json, sys, time
connection, times = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2])), []
body, end = json.dumps({"task": "embed", "payload": {}}), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    began = time.perf_counter()
    connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 202, answer.status
    times.append(time.perf_counter() - began)
    time.sleep(max(0.0, 0.01 - times[-1]))
print(json.dumps(times))
"""


@contextlib.contextmanager
def open_pages(daemon: Jobd) -> Iterator[None]:
    host, _, port = daemon.address.partition(":")
    with subprocess.Popen(
        [sys.executable, "-c", PAGES_PROGRAM, host, port, str(PAGES)], stdout=subprocess.PIPE, text=True, cwd=TOP
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield
        finally:
            process.kill()


def submit_times(daemon: Jobd) -> list[float]:
    host, _, port = daemon.address.partition(":")
    done = subprocess.run(
        [sys.executable, "-c", SUBMITS_PROGRAM, host, port, str(TURN_S)], stdout=subprocess.PIPE, check=True, text=True
    )
    times: list[float] = json.loads(done.stdout)
    return times


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_submits_hardly_notice_fifty_open_pages(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    submit_times(daemon)  # warm up
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(TURNS):
        alone += submit_times(daemon)
        with open_pages(daemon):
            beside += submit_times(daemon)

    found = {
        name: (statistics.median(times), statistics.quantiles(times, n=100)[94])
        for name, times in (("alone", alone), ("beside", beside))
    }
    for name, (median, p95) in found.items():
        log.info("%s: median %.2f ms, 95 of 100 within %.2f ms", name, median * 1000, p95 * 1000)
    ratio = found["beside"][0] / found["alone"][0]
    log.info("beside %d pages a submit takes %.2f times as long", PAGES, ratio)
    assert ratio <= MOST
