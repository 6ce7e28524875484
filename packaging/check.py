#!/usr/bin/env python3
"""Check everything: format, lint, types and all tests on Python 3.10, then on the newest Python that is there the tests
that depend on the version of Python (marked `every_python`, see tests/conftest.py). Ends with a list of outdated
dependencies, for information.

Needs only Python with its venv module. Each interpreter gets a virtual environment, .venv-3.X, made from the
hash-pinned lock and made again when the lock changes. The web page is tested in Debian's chromium, which is installed
if it is missing and root runs this; without it those tests are skipped, and say so.

    python3 packaging/check.py                     all of it
    python3 packaging/check.py --slow              the minutes-long suites too, and all tests on both
    python3 packaging/check.py --python 3.12       on that one only
    python3 packaging/check.py tests/unit -k lock  tests only, on Python 3.10, with these arguments for pytest
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
#: File in a virtual environment with the hash of the lock file that it was made from.
STAMP = "lock.sha256"
#: Test processes at once: more than there are cores, since tests mostly wait for other processes.
PARALLEL = ["-n", "4", "--dist", "worksteal", "--durations", "12"]
#: Tests start jobd some hundred times; compiled once, each start takes a third less.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:2])"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="run the slow tests too")
    parser.add_argument("--python", metavar="3.X", help="check on this version only")
    options, pytest_arguments = parser.parse_known_args()

    if pytest_arguments:
        tests(python_for(options.python), [] if options.slow else ["not slow"], pytest_arguments)
        return 0
    oldest, *others = chosen(interpreters_here(), options.python)
    python = environment(*oldest)
    run("format", [python, "-m", "ruff", "format", "--check", "."])
    run("lint", [python, "-m", "ruff", "check", "."])
    run("types", [python, "-m", "mypy", "--cache-dir", f".mypy_cache/{name(oldest[0])}"])
    tests(python, [] if options.slow else ["not slow"], PARALLEL)
    for other in others:
        tests(environment(*other), [] if options.slow else ["not slow", "every_python"], PARALLEL)
    run("dependencies, outdated or with known holes", [python, "packaging/outdated.py"])  # lists, and never fails
    print(f"all checks passed on Python {', '.join(name(version) for version, _ in (oldest, *others))}")
    return 0


def tests(python: str, only: list[str], arguments: list[str]) -> None:
    provide_chromium()
    chosen_by = ["-m", " and ".join(only)] if only else []
    run(f"tests ({Path(python).parts[-3].removeprefix('.venv-')})", [python, "-m", "pytest", *arguments, *chosen_by])


def provide_chromium() -> None:
    """Install Debian's chromium for tests/page if that can be done; a failure only means that those are skipped."""
    if shutil.which("chromium") or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    install = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "chromium"]
    quiet = {**ENVIRONMENT, "DEBIAN_FRONTEND": "noninteractive"}
    code = subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    print(f"== chromium: {'installed' if code == 0 else 'not here, and apt-get cannot install it'}", flush=True)


def python_for(wanted: str | None) -> str:
    """The Python of one version, 3.10 by default; searches for interpreters only if its environment is missing."""
    ready = environment_of(wanted or name(FLOOR))
    if is_current(ready):
        return str(ready / "bin" / "python")
    return environment(*chosen(interpreters_here(), wanted)[0])


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
    folder = environment_of(name(version))
    python = folder / "bin" / "python"
    if not is_current(folder):
        shutil.rmtree(folder, ignore_errors=True)
        run(f"environment ({name(version)})", [interpreter, "-m", "venv", str(folder)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        run(f"install ({name(version)})", [*install, "--only-binary", ":all:", "--requirement", str(LOCK)])
        (folder / STAMP).write_text(digest_of_lock())
    return str(python)


def environment_of(version: str) -> Path:
    return TOP / f".venv-{version}"


def is_current(environment: Path) -> bool:
    stamp = environment / STAMP
    return stamp.exists() and stamp.read_text() == digest_of_lock()


def digest_of_lock() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()


def run(step: str, command: list[str]) -> None:
    print(f"== {step}", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=TOP, env=ENVIRONMENT).returncode
    if code != 0:
        sys.exit(f"failed: {step} (exit code {code}): {' '.join(command)}")
    print(f"   {time.monotonic() - started:.0f} s", flush=True)


def name(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    sys.exit(main())
