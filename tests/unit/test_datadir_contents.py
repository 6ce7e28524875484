"""What is in an open data directory: the socket folder, secrets, addresses, copies of the servers."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobd.errors import DataDirRefused
from jobd.host import data_dir as datadir
from jobd.host.account import server_account
from jobd.host.data_dir import LONGEST_SOCKET, SOCKET_PATH_BYTES, Addresses, DataDir
from jobd.host.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only the servers of root run as someone else")
LONG = Path("x" * 100, "y" * 100, "data")
ADDRESSES = Addresses(JOBD_URL="http://127.0.0.1:1", DATABASE_URL="postgresql://a@/b?host=/c", REDIS_URL="unix:///d")


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], DataDir]]:
    """Opens data directories, one at a time; the last is closed after the test."""
    (folder / "x").mkdir(mode=0o755)
    monkeypatch.setattr("jobd.host.data_dir.SHORT_FOLDERS", (str(folder / "x"),))
    known: list[DataDir] = []

    def make(path: Path) -> DataDir:
        for data_dir in known:
            data_dir.close()
        known.append(DataDir(path, server_account()))
        known[-1].open()
        return known[-1]

    yield make
    for data_dir in known:
        data_dir.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the socket folder ---------------------------------------------------------------------------------------------


def test_sockets_are_in_the_directory_itself_where_its_path_is_short(
    folder: Path, opened: Callable[[Path], DataDir]
) -> None:
    assert opened(folder / "data").run == folder / "data" / "run"


def test_sockets_of_a_long_path_are_in_a_short_folder_that_is_the_same_next_time(
    folder: Path, opened: Callable[[Path], DataDir]
) -> None:
    first = opened(folder / LONG).run
    second = opened(folder / LONG).run

    assert len(os.fsencode(folder / LONG)) > 200
    assert len(os.fsencode(first / LONGEST_SOCKET)) <= SOCKET_PATH_BYTES
    assert first == second
    assert first.parent.parent == folder / "x"
    assert mode_of(first) == 0o700
    assert first.stat().st_uid == server_account().uid


def test_socket_with_the_longest_name_can_be_bound(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    data_dir = opened(folder / LONG)

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(data_dir.run / LONGEST_SOCKET))


def test_path_that_is_just_short_enough_keeps_its_sockets(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    room = SOCKET_PATH_BYTES - len(os.fsencode(folder / "run" / LONGEST_SOCKET)) - 1
    fits, too_long = folder / ("f" * room), folder / ("t" * (room + 1))

    assert opened(fits).run == fits / "run"
    assert opened(too_long).run.parent.parent == folder / "x"


def test_short_folder_that_was_cleaned_away_is_made_anew(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    opened(folder / LONG).run.rmdir()

    again = opened(folder / LONG).run

    assert mode_of(again) == 0o700
    assert again.parent.parent == folder / "x"


def test_short_folder_that_was_opened_up_is_closed_again(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    opened(folder / LONG).run.chmod(0o777)

    assert mode_of(opened(folder / LONG).run) == 0o700


def test_link_to_a_folder_of_someone_else_is_not_trusted(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    opened(folder / LONG)
    (folder / LONG / "run").unlink()
    (folder / LONG / "run").symlink_to("/usr")

    assert opened(folder / LONG).run.parent.parent == folder / "x"


def test_socket_folder_of_a_directory_that_was_moved_to_a_long_path_is_replaced(
    folder: Path, opened: Callable[[Path], DataDir]
) -> None:
    opened(folder / "data").close()
    (folder / LONG).parent.mkdir(parents=True)
    (folder / "data").rename(folder / LONG)

    assert opened(folder / LONG).run.parent.parent == folder / "x"


def test_want_of_any_short_folder_is_refused(
    folder: Path, opened: Callable[[Path], DataDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / LONG).parent.mkdir(parents=True)
    monkeypatch.setattr(datadir, "SHORT_FOLDERS", ("/proc/nowhere",))
    monkeypatch.setattr("tempfile.tempdir", str(folder / LONG.parent))

    with pytest.raises(DataDirRefused, match="too long"):
        opened(folder / LONG)


# -- secrets and addresses -----------------------------------------------------------------------------------------


def test_secret_is_made_once_and_for_its_owner_only(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    first = opened(folder / "data").secret("valkey")
    second = opened(folder / "data").secret("valkey")

    assert first == second
    assert len(bytes.fromhex(first)) == 24
    assert mode_of(folder / "data" / "secrets") == 0o700
    assert mode_of(folder / "data" / "secrets" / "valkey") == 0o600


def test_two_secrets_differ(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    data_dir = opened(folder / "data")

    assert data_dir.secret("one") != data_dir.secret("two")


def test_addresses_are_read_as_they_were_written(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    data_dir = opened(folder / "data")

    data_dir.write_addresses(ADDRESSES)

    assert data_dir.read_addresses() == ADDRESSES
    assert mode_of(folder / "data" / "env.json") == 0o600


def test_missing_addresses_are_explained(folder: Path) -> None:
    data_dir = DataDir(folder / "data", server_account())

    with pytest.raises(
        DataDirRefused, match=f"has no jobd in it yet; start one: jobd serve --data-dir {data_dir.path}"
    ):
        data_dir.read_addresses()


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff\xfe", b'{"JOBD_URL": 1}'])
def test_damaged_addresses_are_explained(folder: Path, opened: Callable[[Path], DataDir], content: bytes) -> None:
    data_dir = opened(folder / "data")
    (data_dir.path / "env.json").write_bytes(content)

    with pytest.raises(DataDirRefused, match="cannot tell its addresses"):
        data_dir.read_addresses()


def test_file_is_replaced_whole(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(b"old and longer")

    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert os.listdir(folder) == ["file"]


def test_write_that_fails_leaves_nothing_behind(folder: Path) -> None:
    (folder / "file").mkdir()

    with pytest.raises(IsADirectoryError):
        write_whole(folder / "file", b"new")

    assert os.listdir(folder) == ["file"]


# -- copies of the servers -----------------------------------------------------------------------------------------


def make_program(root: Path) -> Path:
    """An installed package with a program, in a place that the servers' account cannot enter."""
    root.mkdir(mode=0o700, exist_ok=True)
    (root / "pkg" / "bin").mkdir(parents=True)
    (root / "pkg" / "lib").mkdir()
    (root / "pkg" / "bin" / "hello").write_text("#!/bin/sh\necho hello")
    (root / "pkg" / "bin" / "hello").chmod(0o700)
    (root / "pkg" / "lib" / "text").write_text("text")
    (root / "pkg" / "lib" / "text").chmod(0o600)
    return root


PARTS = ("pkg/bin/hello", "pkg/lib")


def say_hello(copy: Path) -> bytes:
    account = server_account()
    return subprocess.run([copy / PARTS[0]], capture_output=True, user=account.uid, group=account.gid).stdout


def test_program_within_reach_is_used_where_it_is(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    root = make_program(folder / "site")
    root.chmod(0o755)

    assert opened(folder / "data").reachable_copy(root, PARTS, "pkg-1") == root


@needs_root
def test_program_out_of_reach_is_copied_to_where_the_account_can_run_it(
    folder: Path, opened: Callable[[Path], DataDir]
) -> None:
    root = make_program(folder / "site")

    copy = opened(folder / "data").reachable_copy(root, PARTS, "pkg-1")

    assert copy == folder / "data" / "servers" / "pkg-1"
    assert (mode_of(copy), mode_of(copy / PARTS[0]), mode_of(copy / "pkg/lib/text")) == (0o755, 0o755, 0o644)
    assert say_hello(copy) == b"hello\n"
    assert os.listdir(copy.parent) == ["pkg-1"]


@needs_root
def test_copy_is_used_again_until_an_upgrade_replaces_it(folder: Path, opened: Callable[[Path], DataDir]) -> None:
    root, data_dir = make_program(folder / "site"), opened(folder / "data")
    other = data_dir.reachable_copy(root, PARTS, "other-1")
    first = data_dir.reachable_copy(root, PARTS, "pkg-1").stat().st_ino

    again = data_dir.reachable_copy(root, PARTS, "pkg-1").stat().st_ino
    upgraded = data_dir.reachable_copy(root, PARTS, "pkg-2")

    assert first == again
    assert sorted(os.listdir(upgraded.parent)) == ["other-1", "pkg-2"]
    assert say_hello(upgraded) == say_hello(other) == b"hello\n"


@needs_root
def test_copy_of_a_directory_out_of_reach_is_beside_the_sockets(
    folder: Path, opened: Callable[[Path], DataDir]
) -> None:
    root = make_program(folder / "site")
    (folder / "closed").mkdir(mode=0o700)

    data_dir = opened(folder / "closed" / "data")
    copy = data_dir.reachable_copy(root, PARTS, "pkg-1")

    assert copy == data_dir.run.parent / "servers" / "pkg-1"
    assert copy.parents[1].stat().st_uid == 0
    assert data_dir.run.parent.parent == folder / "x"
    assert data_dir.cluster_argument == "/proc/self/cwd"
    assert say_hello(copy) == b"hello\n"
