"""What a data directory is refused for, and how it looks once it is open. Its contents: test_datadir_contents."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobd.errors import AlreadyRunning, DataDirRefused, DiskFull
from jobd.host import data_dir as datadir
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can mount, or give a file to someone else")
MODE = 0o710 if IS_ROOT else 0o700
TOP = Path(datadir.__file__).parents[2]
HOLDING = """
import pathlib, sys, time
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
DataDir(pathlib.Path(sys.argv[1]), server_account()).open()
print(flush=True)
time.sleep(300)
"""


@pytest.fixture
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], DataDir]]:
    """Makes data directories, closed after the test; what they need elsewhere is in the test's folder as well."""
    (folder / "x").mkdir(mode=0o755)
    monkeypatch.setattr("jobd.host.data_dir.SHORT_FOLDERS", (str(folder / "x"),))
    known: list[DataDir] = []

    def make(path: Path) -> DataDir:
        known.append(DataDir(path, server_account()))
        return known[-1]

    yield make
    for data_dir in known:
        data_dir.close()


def picture(top: Path) -> dict[str, tuple[int, int, int, int]]:
    """Everything below `top`, with what a change of it would change."""
    return {
        str(path): (info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns)
        for path in (top, *sorted(top.rglob("*")))
        for info in [path.lstat()]
    }


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory_is_made_closed_to_others_and_locked(folder: Path, made: Callable[[Path], DataDir]) -> None:
    data_dir = made(folder / "deep" / "data")

    data_dir.open()

    assert mode_of(data_dir.path) == MODE
    assert data_dir.path.stat().st_gid == (data_dir.account.gid if IS_ROOT else os.getegid())
    assert mode_of(data_dir.run) == 0o700
    assert data_dir.run.stat().st_uid == data_dir.account.uid
    assert mode_of(data_dir.lock_path) == 0o600
    assert data_dir.is_ours()
    assert data_dir.is_running()


def test_empty_directory_is_taken_over_and_closed_to_others(folder: Path, made: Callable[[Path], DataDir]) -> None:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o777)

    made(folder / "data").open()

    assert mode_of(folder / "data") == MODE


def test_directory_can_be_opened_again_after_it_was_closed(folder: Path, made: Callable[[Path], DataDir]) -> None:
    first = made(folder / "data")
    first.open()
    first.close()
    first.close()
    assert not first.is_running()

    made(folder / "data").open()

    assert first.is_running()


def test_checking_makes_nothing(folder: Path, made: Callable[[Path], DataDir]) -> None:
    before = picture(folder)
    data_dir = made(folder / "deep" / "data")

    data_dir.check()

    assert picture(folder) == before
    assert not data_dir.is_ours()
    assert not data_dir.is_running()
    assert data_dir.free_bytes() > 0


def _file(path: Path) -> None:
    path.touch()


def _file_on_the_way(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


def _foreign_files(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("not jobd's")


def _open_to_others(path: Path) -> None:
    path.mkdir()
    (path / "jobd.lock").touch()
    path.chmod(0o755)


def _writable_by_group(path: Path) -> None:
    path.mkdir()
    (path / "jobd.lock").touch()
    path.chmod(0o770)


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _link_as_lock(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.chmod(MODE)
    path.with_name("elsewhere").touch()
    (path / "jobd.lock").symlink_to(path.with_name("elsewhere"))


def _owned_by_another(path: Path) -> None:
    path.mkdir()
    os.chown(path, 65534, 65534)


def _closed_parent(path: Path) -> None:
    path.parent.chmod(0o555)


def _closed_itself(path: Path) -> None:
    path.mkdir()
    (path / "jobd.lock").touch()
    path.chmod(0o500)


@pytest.mark.parametrize(
    ("arrange", "complaint"),
    [
        (_file, "is not a directory"),
        (_file_on_the_way, "cannot be used: Not a directory"),
        (_foreign_files, "has files in it that are not jobd's"),
        (_open_to_others, r"is open to others \(mode 0755\); chmod 0700 it"),
        (_writable_by_group, r"is open to others \(mode 0770\)"),
        (_dangling_link, "cannot be made: File exists"),
        (_link_as_lock, "cannot be locked: Too many levels of symbolic links"),
        pytest.param(_owned_by_another, "and this is root; run as ", marks=needs_root),
        pytest.param(
            _closed_parent,
            "cannot be made: .* is not writable",
            marks=pytest.mark.skipif(IS_ROOT, reason="root may write anywhere"),
        ),
        pytest.param(
            _closed_itself, "is not writable", marks=pytest.mark.skipif(IS_ROOT, reason="root may write anywhere")
        ),
    ],
)
def test_directory_that_is_not_ours_to_use_is_refused_and_left_as_it_is(
    folder: Path, made: Callable[[Path], DataDir], arrange: Callable[[Path], None], complaint: str
) -> None:
    parent = folder / "p"
    parent.mkdir()
    arrange(parent / "data")
    before = picture(folder)

    with pytest.raises(DataDirRefused, match=complaint):
        made(parent / "data").open()

    assert picture(folder) == before
    for path in (parent, parent / "data"):  # so that the folder can be removed
        if path.is_dir():
            path.chmod(0o755)


def test_second_jobd_is_refused_with_the_pid_of_the_first(folder: Path, made: Callable[[Path], DataDir]) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder / "data")], cwd=TOP, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        first.stdout.readline()
        before = picture(folder)

        with pytest.raises(AlreadyRunning, match=rf"already runs on .*data \(pid {first.pid}\)"):
            made(folder / "data").open()

        assert picture(folder) == before
    finally:
        first.kill()
        first.communicate()


def test_directory_of_a_jobd_that_was_killed_is_free(folder: Path, made: Callable[[Path], DataDir]) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder / "data")], cwd=TOP, stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    first.kill()
    first.communicate()

    made(folder / "data").open()


@needs_root
@pytest.mark.parametrize(("warm", "needed"), [(False, "160 MiB"), (True, "48 MiB")])
def test_too_full_disk_is_refused(folder: Path, made: Callable[[Path], DataDir], warm: bool, needed: str) -> None:
    (folder / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0755", "tmpfs", str(folder / "small")]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this root may not mount")
    try:
        if warm:
            cluster = folder / "small" / "data" / "postgres"
            cluster.mkdir(parents=True)
            (cluster / "PG_VERSION").touch()
            (cluster.parent / "jobd.lock").touch()
            cluster.parent.chmod(MODE)
        before = picture(folder)

        with pytest.raises(DiskFull, match=rf"has \d MiB free and a start needs {needed}"):
            made(folder / "small" / "data").open()

        assert picture(folder) == before
    finally:
        subprocess.run(["umount", str(folder / "small")], check=True)
