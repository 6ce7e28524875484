"""Servers that jobd did not start: the same programs, with the settings that a test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from tests.support.daemon import Jobd, parent
from tests.support.prepared import prepare
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def postgres(folder: Path, *settings: str, standby: bool = False) -> Iterator[str]:
    """A Postgres of its own; yields its URL. `settings` are like `fsync=off`."""
    prepare(folder / "outside")
    data_dir = DataDir(folder / "outside", server_account())
    data_dir.open()
    if standby:
        _make_standby(data_dir)
    program = embedded_postgres.PROGRAM.reachable(data_dir)
    settings = (f"unix_socket_directories={data_dir.run}", *settings)
    flags = [part for setting in settings for part in ("-c", setting)]
    try:
        with _running([str(program), "-D", str(data_dir.cluster), *flags], data_dir):
            wait_until(lambda: _accepts_connections(data_dir), "no Postgres came up", 30)
            yield embedded_postgres.url(data_dir)
    finally:
        data_dir.close()


def _make_standby(data_dir: DataDir) -> None:
    signal_file = data_dir.cluster / "standby.signal"
    signal_file.touch()
    os.chown(signal_file, data_dir.account.uid, data_dir.account.gid)


class Outside:
    """A Postgres of its own that a test may turn into a standby and back, or freeze."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir
        self._running = contextlib.ExitStack()
        self.url = embedded_postgres.url(data_dir)
        self.owner_url = embedded_postgres.url(data_dir, embedded_postgres.OWNER, "postgres")

    def start(self, *, standby: bool = False) -> None:
        if standby:
            _make_standby(self._data_dir)
        program = embedded_postgres.PROGRAM.reachable(self._data_dir)
        self._running.enter_context(_running([str(program), "-D", str(self._data_dir.cluster)], self._data_dir))
        wait_until(lambda: _accepts_connections(self._data_dir), "no Postgres came up", 30)

    def stop(self) -> None:
        self._running.close()

    def processes(self) -> list[int]:
        """The postmaster and all of its backends."""
        postmaster = int((self._data_dir.cluster / "postmaster.pid").read_text().split()[0])
        return [
            postmaster,
            *(int(entry.name) for entry in Path("/proc").glob("[0-9]*") if parent(int(entry.name)) == postmaster),
        ]

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Hangs: connections stand, new ones are taken by the kernel, nothing answers."""
        stopped = self.processes()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def outside_postgres(folder: Path) -> Iterator[Outside]:
    maker = Jobd(folder / "outside").start().until_ready()
    maker.stop()
    server = Outside(DataDir(folder / "outside", server_account()))
    server.start()
    try:
        yield server
    finally:
        server.stop()
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
        wait_until(path.exists, "no Valkey came up", 10)
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
        process.wait(30)
