#!/usr/bin/env python3
"""Check everything: format, lint, types and tests, on Python 3.10 and on the newest Python that is there.

On the newest, tests that do not depend on the version of Python (SQL, Redis, the wire) are left out.

Needs only Python with its venv module. Each interpreter gets a virtual environment, .venv-3.X, made from the
hash-pinned lock and made anew when the lock changes.

    python3 packaging/check.py                     all of it
    python3 packaging/check.py --slow              the minutes-long suites too
    python3 packaging/check.py --python 3.12       on that one only
    python3 packaging/check.py tests/unit -k lock  tests only, with these arguments for pytest
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
LOCK = TOP / "requirements-dev.lock"
FLOOR = (3, 10)
#: Tests mostly wait for other processes, so two at a time take little more than half as long. conftest.py orders them.
PARALLEL = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "12"]
PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:2])"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="run the slow tests too")
    parser.add_argument("--python", metavar="3.X", help="check on this version only")
    options, pytest_arguments = parser.parse_known_args()

    interpreters = chosen(interpreters_here(), options.python)
    for version, interpreter in interpreters:
        python = environment(version, interpreter)
        if not pytest_arguments:
            if (version, interpreter) == interpreters[-1]:
                run(f"format ({name(version)})", [python, "-m", "ruff", "format", "--check", "."])
                run(f"lint ({name(version)})", [python, "-m", "ruff", "check", "."])
            run(f"types ({name(version)})", [python, "-m", "mypy", "--cache-dir", f".mypy_cache/{name(version)}"])
        again = (version, interpreter) != interpreters[0] and not pytest_arguments
        left_out = [] if options.slow else ["not slow", *(["not once"] if again else [])]
        tests = [python, "-m", "pytest", *pytest_arguments, *(["-m", " and ".join(left_out)] if left_out else [])]
        run(
            f"tests ({name(version)})",
            [*tests, *([] if pytest_arguments else PARALLEL)],
        )
    print(f"all checks passed on Python {', '.join(name(version) for version, _ in interpreters)}")
    return 0


def interpreters_here() -> dict[tuple[int, int], str]:
    """Every Python from the floor up that can make a virtual environment."""
    commands = [sys.executable, "python3", *(f"python3.{minor}" for minor in range(FLOOR[1], 30))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    commands += [str(path) for path in sorted(pyenv.glob("*/bin/python3"))]
    found: dict[tuple[int, int], str] = {}
    for command in commands:
        path = shutil.which(command)
        probe = path and subprocess.run([path, "-c", PROBE], capture_output=True, text=True)
        if path and probe and probe.returncode == 0:
            major, minor = map(int, probe.stdout.split())
            if (major, minor) >= FLOOR:
                found.setdefault((major, minor), path)
    if not found:
        sys.exit("no Python 3.10 or newer with its venv module is here; on Debian or Ubuntu: apt install python3-venv")
    return found


def chosen(found: dict[tuple[int, int], str], wanted: str | None) -> list[tuple[tuple[int, int], str]]:
    versions = sorted({version for version in (FLOOR, max(found)) if version in found})
    if wanted is not None:
        versions = [version for version in found if name(version) == wanted]
        if not versions:
            sys.exit(f"Python {wanted} is not here; there are {', '.join(name(version) for version in sorted(found))}")
    return [(version, found[version]) for version in versions]


def environment(version: tuple[int, int], interpreter: str) -> str:
    """The virtual environment's Python, with exactly what the lock says in it."""
    folder = TOP / f".venv-{name(version)}"
    python, stamp = folder / "bin" / "python", folder / "lock.sha256"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        run(f"environment ({name(version)})", [interpreter, "-m", "venv", str(folder)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        run(f"install ({name(version)})", [*install, "--only-binary", ":all:", "--requirement", str(LOCK)])
        stamp.write_text(digest)
    return str(python)


def run(step: str, command: list[str]) -> None:
    print(f"== {step}", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=TOP).returncode
    if code != 0:
        sys.exit(f"failed: {step} (exit code {code}): {' '.join(command)}")
    print(f"   {time.monotonic() - started:.0f} s", flush=True)


def name(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    sys.exit(main())
