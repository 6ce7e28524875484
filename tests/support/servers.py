"""Servers that jobd did not start: the same programs, with the settings that a test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from jobd.account import server_account
from jobd.datadir import DataDir
from jobd.services import embedded_postgres, embedded_valkey
from tests.support.daemon import Jobd, poll

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@contextlib.contextmanager
def postgres(folder: Path, *settings: str, standby: bool = False) -> Iterator[str]:
    """A Postgres of its own; yields its URL. `settings` are like `fsync=off`."""
    maker = Jobd(folder / "outside").start().until_ready()
    maker.stop()
    data_dir = DataDir(folder / "outside", server_account())
    if standby:
        signal_file = data_dir.cluster / "standby.signal"
        signal_file.touch()
        os.chown(signal_file, data_dir.account.uid, data_dir.account.gid)
    program = embedded_postgres.PROGRAM.reachable(data_dir)
    flags = [part for setting in settings for part in ("-c", setting)]
    with _running([str(program), "-D", str(data_dir.cluster), *flags], data_dir):
        poll(lambda: _accepts_connections(data_dir), 10, lambda: "no Postgres came up")
        yield embedded_postgres.url(data_dir)
    maker.clean_up()


#: The newest Valkey of each folder.
_valkeys: dict[Path, subprocess.Popen[bytes]] = {}


def kill_valkey(folder: Path) -> None:
    _valkeys[folder].kill()
    _valkeys[folder].wait()


def _accepts_connections(data_dir: DataDir) -> bool:
    try:
        lines = (data_dir.cluster / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[7].strip() in ("ready", "standby")


@contextlib.contextmanager
def valkey(folder: Path, *lines: str) -> Iterator[str]:
    """A Valkey of its own; yields its URL. `lines` are of its configuration."""
    path = folder / "valkey.sock"
    program = embedded_valkey.PROGRAM.installed()
    path.unlink(missing_ok=True)
    process = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=folder)
    _valkeys[folder] = process
    try:
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write("\n".join(["port 0", f"unixsocket {path}", 'save ""', *lines]).encode())
        poll(path.exists, 10, lambda: "no Valkey came up")
        yield f"unix://{path}?db=0"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _running(argv: Sequence[str], data_dir: DataDir) -> Iterator[None]:
    account = data_dir.account
    drop = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.dropped else {}
    process = subprocess.Popen(argv, cwd=data_dir.cluster, stderr=subprocess.DEVNULL, **drop)  # type: ignore[call-overload]  # **drop
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)
