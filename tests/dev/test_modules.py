"""Modules of a project that are forgotten together, and put back when the new code is broken."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from jobd.dev.modules import Forgotten
from jobd.tasks.declared import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAIN = """
from jobd import task
from dev_helper import WORD

@task(timeout_s={n})
def dev_say(payload, ctx):
    return WORD
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(tmp_path, 1)
    (tmp_path / "dev_space").mkdir()
    (tmp_path / "dev_space" / "inner.py").write_text("X = 1\n")
    importlib.import_module("dev_main")
    importlib.import_module("dev_space.inner")
    yield tmp_path
    Forgotten([tmp_path])


def write(folder: Path, number: int) -> None:
    (folder / "dev_helper.py").write_text(f"WORD = {number}\n")
    (folder / "dev_main.py").write_text(MAIN.format(n=number))


def declared() -> list[float]:
    return [task.task.timeout_s for task in DECLARED if task.name == "dev_say"]


def test_next_import_reads_all_modules_again(project: Path) -> None:
    old = sys.modules["dev_main"].dev_say
    write(project, 2)

    Forgotten([project])
    new = importlib.import_module("dev_main").dev_say

    assert (old({}, None), new({}, None)) == (1, 2)
    assert declared() == [2]
    assert "dev_space.inner" not in sys.modules
    assert "dev_space" not in sys.modules


def test_broken_code_leaves_everything_as_it_was(project: Path) -> None:
    old = sys.modules["dev_main"]
    (project / "dev_helper.py").write_text("def (\n")

    forgotten = Forgotten([project])
    with pytest.raises(SyntaxError):
        importlib.import_module("dev_main")
    forgotten.put_back()

    assert sys.modules["dev_main"] is old
    assert declared() == [1]


def test_jobd_and_what_is_elsewhere_are_never_forgotten(project: Path) -> None:
    from tests.support.daemon import TOP

    Forgotten([project / "dev_space", TOP / "jobd"])

    assert {"jobd", "jobd.dev.modules", "msgspec", "dev_main", "dev_helper"} <= sys.modules.keys()
