"""The build's modules are scripts beside each other, not a package; tests import them as the scripts do.

What is marked `of_build` builds for several Pythons or emulates a machine, which takes minutes of CPU. It is skipped
while everything that it depends on is as it was when it last passed here, unless slow tests are asked for. jobd's own
sources are not counted: the build takes each of them as it is, and the x86_64 file is built and run at every check.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import TOP

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

sys.path.insert(0, str(TOP / "packaging"))

INPUTS = ("packaging", "config", "tests/packaging", "requirements.lock", "pyproject.toml", "jobd.toml", "LICENSE")
PASSED = TOP / ".pytest_cache" / "of-build-passed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which build."""
    stamp = _stamp(item)
    only_fast = "not slow" in item.config.getoption("markexpr")
    if stamp and only_fast and stamp.exists() and stamp.read_text() == _digest():
        pytest.skip("passed here before, and nothing that it depends on has changed since")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    stamp = _stamp(item)
    if stamp and report.when == "call" and report.passed:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(_digest())
    return report


def _stamp(item: pytest.Item) -> Path | None:
    return PASSED / item.name if item.get_closest_marker("of_build") else None


def _digest() -> str:
    found = hashlib.sha256(sys.version.encode())
    for name in INPUTS:
        for path in sorted((TOP / name, *(TOP / name).rglob("*"))):
            if path.is_file() and path.suffix != ".pyc":
                found.update(f"{path.relative_to(TOP)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
