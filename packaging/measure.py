#!/usr/bin/env python3
"""Measure how long jobd's one file takes to start, beside an installed jobd and, if given, a pex of the same.

    python3 packaging/build.py --target x86_64
    python3 packaging/measure.py --pyz dist/jobd-x86_64.pyz --installed .venv-3.10/bin/python [--pex jobd.pex]

Times `jobd version`, the shortest command, so that what is left is the start itself. First start: with an empty cache.
Run it on a quiet machine; it prints medians in a table for the README. On a busy one only the CPU times mean anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
ROUNDS = 9
SHARED = "/var/cache/jobd"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", required=True, metavar="PYTHON", help="a Python with jobd's dependencies")
    parser.add_argument("--pyz", required=True, type=Path)
    parser.add_argument("--pex", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    python = os.path.realpath(options.installed) if os.path.islink(options.installed) else options.installed
    ways: dict[str, tuple[list[str], Path | None]] = {
        "installed": ([options.installed, "-m", "jobd"], None),
        "own bootstrap": ([python, str(options.pyz)], options.pyz),
    }
    if options.pex:
        ways["pex"] = ([python, str(options.pex)], options.pex)
    if os.path.exists(SHARED):
        sys.exit(f"{SHARED} is there, and no start would be a first one; remove it or rename it for the while")
    print("| | size | first start | later start |\n|---|---|---|---|")
    folder = Path(tempfile.mkdtemp(prefix="jobd-measure-"))
    folder.chmod(0o755)
    try:
        for name, (command, file) in ways.items():
            size = f"{file.stat().st_size / 1e6:.1f} MB" if file else ""
            first = spread([timed(command, fresh(folder)) for _ in range(options.rounds)]) if file else ""
            timed(command, folder)
            later = spread([timed(command, folder) for _ in range(options.rounds)])
            print(f"| {name} | {size} | {first} | {later} |", flush=True)
    finally:
        shutil.rmtree(folder)
    return 0


def fresh(folder: Path) -> Path:
    for name in ("jobd", "pex"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return folder


def timed(command: list[str], cache: Path) -> tuple[float, float]:
    """Seconds by the clock and of CPU, with `cache` for either file; the installed one finds jobd in the checkout."""
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(cache), "PEX_ROOT": str(cache / "pex")}
    started = time.perf_counter()
    process = subprocess.Popen([*command, "version"], cwd=TOP, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command} ended with exit code {process.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


def spread(times: list[tuple[float, float]]) -> str:
    by_clock, of_cpu = (statistics.median(column) for column in zip(*times, strict=True))
    return f"{by_clock:.2f} s ({of_cpu:.2f} s CPU)"


if __name__ == "__main__":
    sys.exit(main())
