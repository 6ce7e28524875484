"""jobd's part of compare.py: each variant is a `jobd serve` of this checkout on a throw-away data directory."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import anyio
import compare_probe as probe

from jobd import AsyncClient, Client
from jobd.bench.http import READY_S, jobd_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jobd.bench.http import Served

#: For all variants and for the servers of the peers: no limit is met with any number of jobs.
ROOM = """
[limits]
max_queued = 10000000
[redis]
maxmemory_mb = 512
"""
HERE = '[tasks.noop]\nrun = "python"\nhandler = "compare_probe:noop"\n'
WORKER = "drain_worker"
#: The variants by the name of their figure: how jobd is configured beside ROOM.
VARIANTS = {
    "drain_default": HERE,
    "drain_100": f"[queues.default]\nslots = 100\n{HERE}",
    "drain_no_mirror": f"[queues.default]\nslots = 100\nmirror = false\n{HERE}",
    WORKER: '[queues.default]\nslots = 0\n[tasks.noop]\nrun = "external"\n',
}
QUEUE = "default"


async def measure(variant: str, jobs: int, singles: int, say: Callable[[str], None]) -> dict[str, float]:
    """The drain of a variant; of the default one also submits and the times of single jobs."""
    with jobd_server(ROOM + VARIANTS[variant]) as served:
        url = "http://{}:{}".format(*served.address)
        with worker(served, url, variant), Client(url) as client:
            async with AsyncClient(url) as async_client:
                return await JobdRun(client, async_client, say).measure(variant, jobs, singles)


@contextlib.contextmanager
def worker(served: Served, url: str, variant: str) -> Iterator[None]:
    """`jobd worker` with 100 slots, for the variant that has its jobs run elsewhere."""
    if variant != WORKER:
        yield
        return
    config = served.config.with_name("worker.toml")
    config.write_text(VARIANTS["drain_100"])
    command = [sys.executable, "-m", "jobd", "worker", "--url", url, "--config", str(config)]
    command += ["--data-dir", str(served.data_dir.with_name("worker"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(READY_S)


class JobdRun:
    """One round of one variant."""

    def __init__(self, client: Client, async_client: AsyncClient, say: Callable[[str], None]) -> None:
        self._client = client
        self._async_client = async_client
        self._say = say

    async def measure(self, variant: str, jobs: int, singles: int) -> dict[str, float]:
        is_default = variant == "drain_default"
        figures: dict[str, float] = {}
        self._client.pause(QUEUE)
        if is_default:
            self._say("jobd, submits")
            figures = await probe.submits(self._one, self._one_of_many, self._many, jobs)
        else:
            await probe.fill(self._many, probe.BATCH)
        self._client.resume(QUEUE)
        self._until_empty()  # that was the warm-up
        self._say(f"jobd, {variant}")
        figures[variant] = await self._drain(jobs)
        if is_default:
            self._say("jobd, single jobs")
            figures["start_ms"] = await probe.start_ms(self._one, singles)
            figures["result_ms"] = self._result_ms(singles)
        return figures

    async def _one(self, number: int) -> None:
        self._client.submit("noop", probe.payload(number))

    async def _one_of_many(self, number: int) -> None:
        await self._async_client.submit("noop", probe.payload(number))

    async def _many(self, numbers: Sequence[int]) -> None:
        self._client.submit_batch({"task": "noop", "payload": probe.payload(number)} for number in numbers)

    async def _drain(self, jobs: int) -> float:
        """Jobs per second from the first start until the counters of the queue show nothing queued or running."""
        self._client.pause(QUEUE)
        await probe.fill(self._many, jobs)
        await anyio.sleep(1)  # the jobs are mirrored
        probe.clear()
        self._client.resume(QUEUE)
        probe.wait_for(jobs)
        self._until_empty()
        ended = time.monotonic_ns()
        return jobs / (ended - probe.first_start(jobs)) * 1e9

    def _until_empty(self) -> None:
        until = time.monotonic() + probe.PATIENCE_S
        while any(queue.queued + queue.running for queue in self._client.queues()):
            if time.monotonic() > until:
                raise TimeoutError(f"the queue of jobd is not empty after {probe.PATIENCE_S:.0f} s")
            time.sleep(probe.POLL_S)

    def _result_ms(self, singles: int) -> float:
        """Median milliseconds from submit to the result in one call."""
        times = []
        for number in range(singles):
            time.sleep(random.uniform(*probe.IDLE_S))
            began = time.monotonic_ns()
            job = self._client.submit_and_wait("noop", probe.payload(number), wait_s=probe.PATIENCE_S)
            times.append((time.monotonic_ns() - began) / 1e6)
            if job.status != "done":
                raise RuntimeError(f"job {job.job_id} ended with status {job.status}")
        return median(times)
