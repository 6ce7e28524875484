#!/usr/bin/env python3
"""Measure what the embedded Postgres writes to the disk: bytes per job, and bytes per hour without jobs.

    PYTHONPATH=. .venv-3.10/bin/python packaging/measure_writes.py [--jobs 2000] [--idle-s 60] [--set NAME=VALUE]

Jobs are submitted one after the other, as on a quiet board, with a checkpoint after every 500 of them, since pages that
were not written since the last checkpoint go into the WAL whole. Counts what Postgres says it has written (pg_stat_io),
which does not depend on the load of the machine; Valkey keeps nothing on disk. `--set` changes settings of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from jobd import Client

TOP = Path(__file__).resolve().parent.parent
#: Jobs between two checkpoints.
PER_CHECKPOINT = 500
#: Bytes written so far, by what they were written for.
WRITTEN = """
SELECT
    coalesce(sum(write_bytes) FILTER (WHERE object = 'wal' AND context = 'normal'), 0)::float8 AS wal,
    coalesce(sum(coalesce(write_bytes, 0) + coalesce(extend_bytes, 0)) FILTER (WHERE object = 'relation'), 0)::float8
        AS tables,
    (SELECT wal_fpi FROM pg_stat_wal)::float8 AS pages
FROM pg_stat_io
"""


async def asked(url: str, *statements: str) -> asyncpg.Record | None:
    """Run statements one by one; the row of the last."""
    connection = await asyncpg.connect(url)
    try:
        rows: list[asyncpg.Record] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return rows[0] if rows else None
    finally:
        await connection.close()


def written(url: str) -> dict[str, float]:
    # a new session reads counters that the others have handed over by then: after a second without work at the latest
    time.sleep(1.5)
    row = asyncio.run(asked(url, WRITTEN))
    assert row is not None
    return dict(row)


def started(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    said = subprocess.DEVNULL
    command = [sys.executable, "-m", "jobd", "serve", "--data-dir", f"{folder}/data", "--port", "0"]
    daemon = subprocess.Popen(command, cwd=TOP, stdout=said, stderr=said)
    show = [sys.executable, "-m", "jobd", "env", "--data-dir", f"{folder}/data"]
    while "JOBD_URL" not in (shown := subprocess.run(show, cwd=TOP, capture_output=True, text=True)).stdout:
        time.sleep(0.2)
    lines = (line.removeprefix("export ").partition("=") for line in shown.stdout.splitlines())
    addresses = {name: value.strip("'\"") for name, _, value in lines}
    with Client(addresses["JOBD_URL"]) as client:
        client.submit_and_wait("chat", {"text": "the first"}, timeout_s=60)
    return daemon, addresses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of Postgres")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobd-measure-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        daemon, addresses = started(Path(name))
        owner = addresses["DATABASE_URL"].replace("jobd@", "postgres@", 1)
        try:
            for setting in options.set:
                key, _, value = setting.partition("=")
                asyncio.run(asked(owner, f"ALTER SYSTEM SET {key} = '{value}'", "SELECT pg_reload_conf()"))
            time.sleep(5)
            before = written(owner)
            with Client(addresses["JOBD_URL"]) as client:
                for n in range(options.jobs):
                    client.submit_and_wait("embed", {"text": f"page {n}", "seconds": 0, "tokens": 0}, timeout_s=60)
                    if n % PER_CHECKPOINT == PER_CHECKPOINT - 1:
                        asyncio.run(asked(owner, "CHECKPOINT"))
            after = written(owner)
            time.sleep(options.idle_s)
            idle = written(owner)
        finally:
            daemon.terminate()
            daemon.wait()
    for key in before:
        per_job = (after[key] - before[key]) / options.jobs
        per_hour = (idle[key] - after[key]) * 3600 / (options.idle_s + 1.5) if options.idle_s else 0.0
        unit = "pages in the WAL" if key == "pages" else f"bytes to {key}"
        print(f"{unit}: {per_job:.1f} per job, {per_hour:.0f} per idle hour")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
