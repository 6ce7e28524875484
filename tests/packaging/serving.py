"""A jobd that was installed in some way, served as a stranger would: one job, and a clean stop."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

#: Seconds that a stop or a job may take at most: it hangs, even on a busy machine.
TOO_LONG_S = 60


@contextlib.contextmanager
def served(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run `command`, a `jobd serve` in some form, and give its address; it must stop by SIGTERM with exit code 0."""
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert daemon.stdout is not None
    try:
        address = next(filter(None, (re.search(r"serves at (\S+), ", line) for line in daemon.stdout)), None)
        assert address, log.read_text()
        yield address[1]
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(TOO_LONG_S) == 0, log.read_text()
    finally:
        daemon.terminate()  # not killed: it has servers to stop
        daemon.wait(TOO_LONG_S)
        daemon.stdout.close()


def run_first_job(address: str) -> str:
    """The final status of a job."""
    job = call(f"{address}/v1/jobs", {"task": "chat", "payload": {"text": "hello"}})
    deadline = time.monotonic() + TOO_LONG_S
    while (status := str(call(f"{address}/v1/jobs/{job['job_id']}")["status"])) not in ("done", "error"):
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return status


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
