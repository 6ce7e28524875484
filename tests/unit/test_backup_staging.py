"""Into which directories a restore goes, and what is made of one that was cut short."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jobd.backup.restore import _fetched, check_space
from jobd.backup.staging import check_empty
from jobd.errors import AlreadyRunning, DataDirRefused, DiskFull
from jobd.host import locks
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from tests.unit.test_backup_archive import CONTENTS, RESULT

if TYPE_CHECKING:
    from pathlib import Path


def data_dir(top: Path, *names: str) -> DataDir:
    """A directory with these in it: folders end with a slash."""
    path = top / "data"
    path.mkdir(mode=0o700)
    for name in names:
        if name.endswith("/"):
            (path / name).mkdir()
        else:
            (path / name).touch()
    return DataDir(path, server_account())


@pytest.mark.parametrize(
    "names", [[], ["jobd.lock"], ["jobd.lock", "run/"], ["jobd.lock", "run/", "restoring/", "results/"]]
)
def test_restore_goes_into_a_directory_with_nothing_to_lose(folder: Path, names: list[str]) -> None:
    check_empty(data_dir(folder, *names))


@pytest.mark.parametrize(
    "names",
    [
        ["x"],
        [".hidden"],
        ["lost+found/"],
        ["jobd.lock", "results/"],
        ["jobd.lock", "env.json"],
        ["jobd.lock", "postgres/"],
        ["jobd.lock", "postgres/", "restoring/", "results/"],
        ["jobd.lock", "restoring/", "owners"],
        ["restoring"],
    ],
)
def test_restore_refuses_a_directory_with_anything_in_it(folder: Path, names: list[str]) -> None:
    there = data_dir(folder, *names)

    with pytest.raises(DataDirRefused, match=r"not empty .*; move it away"):
        check_empty(there)

    assert sorted(os.listdir(there.path)) == sorted(name.rstrip("/") for name in names)


def test_restore_refuses_a_directory_in_use(folder: Path) -> None:
    there = data_dir(folder)
    lock = locks.take(there.lock_path)
    assert lock is not None
    try:
        with pytest.raises(AlreadyRunning, match="--data-dir"):
            check_empty(there)
    finally:
        os.close(lock)


def test_start_on_a_restore_that_was_cut_short_is_refused(folder: Path) -> None:
    there = data_dir(folder, "jobd.lock", "restoring/", "results/")

    for refuse in (there.check, there.open):
        with pytest.raises(DataDirRefused, match="run jobd restore again"):
            refuse()
    there.close()

    assert sorted(os.listdir(there.path)) == ["jobd.lock", "restoring", "results"]


def test_start_during_a_restore_says_that_the_directory_is_in_use(folder: Path) -> None:
    there = data_dir(folder, "jobd.lock", "restoring/")
    lock = locks.take(there.lock_path)
    assert lock is not None
    try:
        with pytest.raises(AlreadyRunning):
            there.open()
    finally:
        os.close(lock)


def test_start_sweeps_up_after_a_restore_that_has_happened(folder: Path) -> None:
    there = data_dir(folder, "jobd.lock", "restoring/", "postgres/")

    there.open()
    there.close()

    assert not (there.path / "restoring").exists()


def test_restore_without_room_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataDir, "free_bytes", lambda self: 10 << 20)

    with pytest.raises(DiskFull, match=r"needs 160 MiB .* has 10 MiB free; free some"):
        check_space(data_dir(folder), CONTENTS)


def test_result_files_that_a_backup_lacks_are_fetched_and_nothing_else(tmp_path: Path) -> None:
    source, top = tmp_path / "results", tmp_path / "top"
    (source / "ab").mkdir(parents=True)
    (source.parent / RESULT).write_text("{}")
    (tmp_path / "secret").write_text("secret")
    top.mkdir()
    refs = [RESULT, RESULT.replace("ab/", "cd/"), "results/../secret", "/etc/passwd", "results"]

    assert _fetched(refs, top, source) == refs[1:]

    assert (top / RESULT).read_text() == "{}"
    assert [path.name for path in top.rglob("*") if path.is_file()] == [RESULT.rpartition("/")[2]]
