"""Which saves are noticed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jobd.dev import watch as watching
from jobd.dev.watch import FileWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def touch(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def replace(path: Path) -> None:
    """As editors do that write a new file and rename it; with the old time, and the same size."""
    info = path.stat()
    new = touch(path.with_suffix(".new"), path.read_text())
    os.utime(new, ns=(info.st_atime_ns, info.st_mtime_ns))
    new.rename(path)


def rewrite(path: Path) -> None:
    info = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))


@pytest.mark.parametrize(
    "save",
    [rewrite, replace, lambda path: path.unlink(), lambda path: path.write_text("longer = 1\n")],
    ids=["rewritten", "replaced", "gone", "longer"],
)
def test_save_is_noticed_once(tmp_path: Path, save: Callable[[Path], object]) -> None:
    file = touch(tmp_path / "package" / "module.py")
    watch = FileWatch([tmp_path])
    assert watch.changes() == []

    save(file)

    assert watch.changes() == [str(file)]
    assert watch.changes() == []


def test_new_file_is_noticed(tmp_path: Path) -> None:
    watch = FileWatch([tmp_path], [tmp_path / "jobd.toml"])

    touch(tmp_path / "new" / "module.py")
    touch(tmp_path / "jobd.toml")

    assert watch.changes() == [str(tmp_path / "jobd.toml"), str(tmp_path / "new" / "module.py")]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "other.toml",
        ".git/hook.py",
        "__pycache__/module.py",
        "node_modules/tool/build.py",
        "site-packages/other.py",
        "venv/module.py",
        "venv/lib/module.py",
        "data/module.py",
        "data/results/module.py",
    ],
)
def test_what_is_no_code_of_the_project_is_left_alone(tmp_path: Path, name: str) -> None:
    touch(tmp_path / "venv" / "pyvenv.cfg")
    touch(tmp_path / "data" / "jobd.lock")
    watch = FileWatch([tmp_path])

    touch(tmp_path / name)

    assert watch.changes() == []


def test_link_to_a_parent_does_not_go_on_for_ever(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "module.py")
    (tmp_path / "a" / "up").symlink_to(tmp_path)

    assert [*FileWatch([tmp_path]).scan()] == [str(tmp_path / "a" / "module.py")]


def test_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_FILES", 3)
    for number in range(5):
        touch(tmp_path / f"m{number}.py")

    watch = FileWatch([tmp_path])

    assert watch.is_full
    assert len(watch.scan()) == 3


def test_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert FileWatch([tmp_path / "gone"]).changes() == []
