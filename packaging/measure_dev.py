#!/usr/bin/env python3
"""Measure what a developer waits for: the start of a jobd in a test, and a save under `jobd dev`.

    .venv-3.10/bin/python packaging/measure_dev.py [--starts 10] [--saves 20]

A start is from the call to the first finished job, on a prepared data directory. A save is from the write of the
file to the end of the first job that ran the new code; jobs are submitted one after the other all the while.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from jobd import Client  # noqa: E402 - from this checkout
from jobd.testing import start_server  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = "from jobd import task\n@task\ndef version(payload, ctx):\n    return {number}\n"
#: Seconds between two saves, about: with another number each, so that they fall anywhere between two polls.
SAVE_S = (0.3, 0.437, 0.574, 0.711, 0.848)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--saves", type=int, default=20)
    options = parser.parse_args()
    starts = [start() for _ in range(options.starts + 1)]
    print(f"first start of a session: {sum(starts[0]):.2f} s")
    show("start to the first finished job", [sum(parts) for parts in starts[1:]])
    show("  until it is ready", [parts[0] for parts in starts[1:]])
    show("  the first job", [parts[1] for parts in starts[1:]])
    with dev() as (client, file):
        show(
            "save to the end of a job with the new code",
            [save(client, file, number) for number in range(1, options.saves + 1)],
        )


def show(what: str, seconds: list[float]) -> None:
    print(f"{what}: p50 {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s, of {len(seconds)}")


def start() -> tuple[float, float]:
    """Seconds until it is ready, and of the first job."""
    began_at = time.monotonic()
    with start_server() as server:
        ready_at = time.monotonic()
        server.run("chat", {"seconds": 0, "tokens": 1})
        return ready_at - began_at, time.monotonic() - ready_at


@contextlib.contextmanager
def dev() -> Iterator[tuple[Client, Path]]:
    """A `jobd dev` on a project of one file."""
    with tempfile.TemporaryDirectory(prefix="jobd-measure-") as folder:
        file = Path(folder, "measured.py")
        file.write_text(TASK.format(number=0))
        process = subprocess.Popen(
            [sys.executable, "-m", "jobd", "dev", "measured", "--temporary", "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TOP)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^,]+", process.stdout.readline())
            if found is None:
                sys.exit("jobd dev did not start")
            with Client(found[0]) as client:
                yield client, file
        finally:
            process.terminate()
            process.communicate()


def save(client: Client, file: Path, number: int) -> float:
    time.sleep(SAVE_S[number % len(SAVE_S)])
    began_at = time.monotonic()
    file.write_text(TASK.format(number=number))
    while client.submit_and_wait("version", {}).result != number:
        pass
    return time.monotonic() - began_at


if __name__ == "__main__":
    main()
