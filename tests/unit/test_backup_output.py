"""Where a backup goes: whole or not at all, never over something else unasked."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import pytest

from jobd.backup.keep import KEPT, kept_file
from jobd.backup.output import Sink, new_file
from jobd.errors import DiskFull, FileRefused, JobdError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to someone else")


def test_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    with new_file(path) as sink:
        sink.write(b"half")
        assert not path.exists()

    assert path.read_bytes() == b"half"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["b.tar"]


def test_failure_leaves_nothing_behind_and_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(b"old")

    with pytest.raises(ZeroDivisionError), new_file(path, force=True) as sink:
        sink.write(b"new")
        raise ZeroDivisionError

    assert (os.listdir(tmp_path), path.read_bytes()) == (["b.tar"], b"old")


def test_file_that_appeared_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"

    with pytest.raises(FileRefused, match="--force"), new_file(path) as sink:
        sink.write(b"new")
        path.write_bytes(b"another")

    assert path.read_bytes() == b"another"


REFUSED: dict[str, Callable[[Path], Path]] = {
    "exists": lambda top: _made(top / "there"),
    "is a directory": lambda top: top,
    "no regular file": lambda top: _made_pipe(top / "pipe"),
    "no directory": lambda top: top / "missing" / "b.tar",
    "Not a directory": lambda top: _made(top / "file") / "b.tar",
    "File name too long": lambda top: top / ("x" * 300),
}


@pytest.mark.parametrize("word", REFUSED)
def test_place_that_will_not_do_is_refused_with_a_remedy(tmp_path: Path, word: str) -> None:
    path = REFUSED[word](tmp_path)
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(FileRefused, match=word) as raised, new_file(path):
        pass

    assert re.search("; (name|make|move)", str(raised.value)), str(raised.value)
    assert sorted(os.listdir(tmp_path)) == before


def test_force_does_not_replace_what_is_no_regular_file(tmp_path: Path) -> None:
    pipe = _made_pipe(tmp_path / "pipe")

    with pytest.raises(FileRefused, match="standard output"), new_file(pipe, force=True):
        pass


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")

    with new_file(tmp_path / "link", force=True) as sink:
        sink.write(b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


class _Broken:
    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, data: bytes) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EPIPE, FileRefused)]
)
def test_write_that_fails_names_the_file(number: int, kind: type[JobdError]) -> None:
    with pytest.raises(kind, match=r"b\.tar"):
        Sink(_Broken(number), "b.tar").write(b"x")  # type: ignore[arg-type]  # all of a file that it uses


def test_old_automatic_backups_go_and_other_files_stay(tmp_path: Path) -> None:
    stamps = [f"schema-0004-2026010{day}T000000Z.tar" for day in range(1, 7)]
    (tmp_path / "backups").mkdir()
    for name in (*stamps[:-1], "mine.tar", ".schema-0004-20260101T000000Z.tar.abc12345"):
        _made(tmp_path / "backups" / name)

    with kept_file(tmp_path / "backups" / stamps[-1]) as file:
        file.write(b"")

    assert sorted(os.listdir(tmp_path / "backups")) == ["mine.tar", *stamps[-KEPT:]]


def test_automatic_backup_just_made_stays_even_if_the_clock_went_back(tmp_path: Path) -> None:
    stamps = [f"schema-0004-2026010{day}T000000Z.tar" for day in range(1, 7)]
    (tmp_path / "backups").mkdir()
    for name in stamps[1:]:
        _made(tmp_path / "backups" / name)

    with kept_file(tmp_path / "backups" / stamps[0]) as file:
        file.write(b"")

    assert sorted(os.listdir(tmp_path / "backups")) == [stamps[0], *stamps[-(KEPT - 1) :]]


@needs_root
def test_what_root_makes_in_the_data_of_another_user_is_handed_over(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)

    with kept_file(tmp_path / "backups" / "b.tar") as file:
        file.write(b"whole")

    for path in (tmp_path / "backups", tmp_path / "backups" / "b.tar"):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    assert (tmp_path / "backups" / "b.tar").read_bytes() == b"whole"


@needs_root
def test_link_to_somebody_elses_folder_is_no_place_for_an_automatic_backup_of_root(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "victim").mkdir(mode=0o755)
    os.chown(tmp_path / "data", 65534, 65534)
    (tmp_path / "data" / "backups").symlink_to(tmp_path / "victim")

    with pytest.raises(NotADirectoryError), kept_file(tmp_path / "data" / "backups" / "b.tar"):
        pass

    assert os.listdir(tmp_path / "victim") == []
    assert (tmp_path / "victim").stat().st_uid == 0


def _made(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def _made_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path
