"""What another account may put in the way of files that root writes: links, pipes, hard links."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from jobd.config.model import Config
from jobd.errors import WrongVersion
from jobd.host import files as host_files
from jobd.host.account import Account
from jobd.host.data_dir import DataDir
from jobd.host.files import Owner
from jobd.servers.postgres import EmbeddedPostgres, check_major

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to someone else")
#: Numbers that no account has.
SERVERS, BEFORE = Owner(987_001, 987_001), Owner(987_002, 987_002)
ACCOUNT = Account(name="servers", uid=SERVERS.uid, gid=SERVERS.gid, dropped=True)


@pytest.fixture
def victim(folder: Path) -> Path:
    path = folder / "victim"
    path.write_text("root's own")
    path.chmod(0o640)
    return path


def is_untouched(victim: Path) -> bool:
    info = victim.lstat()
    kept = (victim.read_text(), stat.S_IMODE(info.st_mode), info.st_uid)
    return kept == ("root's own", 0o640, os.geteuid())


def as_account(folder: Path, *command: str) -> None:
    """Run a command in the folder as the servers' account would."""
    subprocess.run(command, cwd=folder, user=SERVERS.uid, group=SERVERS.gid, extra_groups=[], check=True)


@pytest.mark.parametrize("put", [os.symlink, os.link])
def test_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    folder: Path, victim: Path, put: Callable[[Path, Path], None]
) -> None:
    put(victim, folder / "file")

    host_files.write_whole(folder / "file", b"ours")

    assert (folder / "file").read_text() == "ours"
    assert not (folder / "file").is_symlink()
    assert is_untouched(victim)


@needs_root
def test_configuration_of_postgres_is_not_written_through_links_of_its_account(folder: Path, victim: Path) -> None:
    data_dir = DataDir(folder / "data", ACCOUNT)
    data_dir.open()
    data_dir.make_server_folder(data_dir.cluster)
    names = ("postgresql.conf", "pg_hba.conf", "pg_ident.conf")
    for name in names:
        as_account(data_dir.cluster, "ln", "-s", str(victim), name)

    EmbeddedPostgres(data_dir, Config())._configure()

    data_dir.close()
    assert is_untouched(victim)
    for name in names:
        info = (data_dir.cluster / name).lstat()
        assert (stat.S_ISREG(info.st_mode), info.st_uid, stat.S_IMODE(info.st_mode)) == (True, SERVERS.uid, 0o600)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_version_of_a_cluster_is_read_from_a_file_of_its_own_only(folder: Path, victim: Path, kind: str) -> None:
    found = folder / "PG_VERSION"
    if kind == "link":
        found.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(found)
    else:
        found.mkdir()

    with pytest.raises(WrongVersion) as raised:
        check_major(folder)

    assert "root's" not in str(raised.value)


def test_folder_that_is_a_link_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "victim").mkdir(mode=0o755)
    (folder / "made").symlink_to(folder / "victim")

    with pytest.raises(NotADirectoryError):
        host_files.make_folder(folder / "made", Owner(os.geteuid(), os.getegid()))

    assert stat.S_IMODE((folder / "victim").stat().st_mode) == 0o755


@needs_root
def test_folder_is_handed_over_with_what_its_old_owner_had_in_it_and_nothing_else(folder: Path, victim: Path) -> None:
    top = folder / "cluster"
    (top / "base" / "1").mkdir(parents=True)
    (top / "base" / "1" / "rows").touch()
    for path in (top, *top.rglob("*")):
        os.chown(path, *BEFORE)
    (top / "soft").symlink_to(victim)
    (top / "base" / "elsewhere").symlink_to(folder)
    os.link(victim, top / "base" / "hard")

    host_files.make_folder(top, SERVERS)

    owners = {path.relative_to(top).as_posix(): path.lstat().st_uid for path in top.rglob("*")}
    assert {name for name, uid in owners.items() if uid == SERVERS.uid} == {"base", "base/1", "base/1/rows"}
    assert top.stat().st_uid == SERVERS.uid
    assert folder.stat().st_uid == 0
    assert is_untouched(victim)


@needs_root
def test_socket_folder_that_its_account_could_exchange_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x").mkdir()
    (folder / "x").chmod(0o1777)
    monkeypatch.setattr("jobd.host.data_dir.SHORT_FOLDERS", (str(folder / "x"),))
    (folder / "closed").mkdir(mode=0o700)  # out of the account's reach, so the sockets are elsewhere
    data_dir = DataDir(folder / "closed" / "data", ACCOUNT)
    data_dir.open()
    first = data_dir.run
    data_dir.close()

    with pytest.raises(subprocess.CalledProcessError):
        as_account(first, "mv", str(first), str(first.with_name("away")))
    with pytest.raises(subprocess.CalledProcessError):
        as_account(first, "mv", str(first.parent), str(first.parent.with_name("away")))
    (folder / "closed" / "data" / "run").unlink()
    (folder / "x" / "jobd-older").mkdir()  # as a former jobd made it: right in the folder for everyone
    os.chown(folder / "x" / "jobd-older", *SERVERS)
    (folder / "closed" / "data" / "run").symlink_to(folder / "x" / "jobd-older")
    data_dir.open()

    assert data_dir.run.parent.stat().st_uid == 0
    assert data_dir.run.parent.parent == folder / "x"
    data_dir.close()


def test_file_below_a_link_is_not_opened(folder: Path, victim: Path) -> None:
    (folder / "results" / "ab").mkdir(parents=True)
    (folder / "results" / "ab" / "file").symlink_to(victim)
    (folder / "results" / "cd").symlink_to(folder)

    for parts in (("ab", "file"), ("cd", "victim")):
        with pytest.raises(OSError):
            host_files.open_beneath(folder / "results", *parts)


def test_new_file_is_on_the_disk_under_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls that outlive a loss of power: the content, then the name, then the folder."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(fd: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def note_rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        calls.append("rename")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr("os.fsync", note_fsync)
    monkeypatch.setattr("os.rename", note_rename)

    host_files.write_whole(folder / "file", b"ours")

    assert calls == ["file", "rename", "folder"]
