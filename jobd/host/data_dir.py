"""The data directory: who may use it, what is where in it, and the lock that makes it one jobd's alone.

    jobd.lock          held while a jobd runs on it; its presence marks the directory as jobd's
    env.json           the three addresses of the last start, for `jobd env`
    secrets/           0700: the Valkey password
    run/               0700, the servers': unix sockets; if the path here is too long, a link to a short one (its parent
                       is a folder of our own, so that the servers' account cannot put something else in its place)
    postgres/          0700, the servers': the cluster            postgres.lock, valkey.lock: see locks.py
    results/           0700: results too large for their rows, see results.py
    files/             0700: files that clients sent or batches made, see files/storage.py
    attempts/          0700: a folder for each command that runs, see tasks/workdir.py
    backups/           0700: automatic backups, see backup/keep.py
    restoring/         0700: a restore under way, or one that was cut short, see backup/staging.py
    servers/           copies of the server programs, only where the servers' account cannot reach the installed ones

The directory is 0700. Started by root it is 0710 with the servers' group, so that they can reach their own folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.errors import AlreadyRunning, DataDirRefused, DiskFull
from jobd.host import locks
from jobd.host.account import account_to_start, can_reach, user_name
from jobd.host.files import Owner, make_folder, opened_folder, write_whole
from jobd.host.space import disk_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.host.account import Account

#: The kernel's limit for a unix socket path is 108 bytes with its NUL.
SOCKET_PATH_BYTES = 107
LONGEST_SOCKET = ".s.PGSQL.5432"
#: Folders for a short path to the sockets. Not /run, often mounted noexec, since programs may have to be copied there;
#: not XDG_RUNTIME_DIR, which goes away with the login session.
SHORT_FOLDERS = ("/tmp", "/var/tmp")
#: Free bytes for the first start: a new cluster with its first WAL takes about 80 MiB.
FIRST_START_BYTES = 160 << 20
#: Free bytes for a later start: room for two WAL segments.
WARM_START_BYTES = 48 << 20
RESTORING = "restoring"
CLUSTER = "postgres"


def node_name(data_dir: Path) -> str:
    """In the names of its files: the host, for people, and the directory, since several nodes may share a host."""
    host = re.sub("[^a-z0-9]+", "-", socket.gethostname().lower())[:40]
    return f"{host}-{hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:8]}"


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """What `jobd env` prints: the names are the environment variables."""

    JOBD_URL: str
    DATABASE_URL: str
    REDIS_URL: str


class DataDir:
    def __init__(self, path: Path, account: Account) -> None:
        self.path = path
        self.account = account
        self.lock_path = path / "jobd.lock"
        self.cluster = path / CLUSTER
        self._held: list[int] = []

    @classmethod
    def to_start(cls, path: Path) -> DataDir:
        """For servers that are about to be started; their account is made if need be."""
        return cls(path, account_to_start(path / CLUSTER))

    # -- entering ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Check the directory, make it if it is missing, and take its lock; refuse without changing anything."""
        self.check()
        self._check_space()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _refused(self.path, f"cannot be made: {error.strerror}") from error
        self._held.append(self._take_lock())
        self._check_restore()  # once more, now that this process holds the lock
        shutil.rmtree(self.path / RESTORING, ignore_errors=True)
        self._set_mode()
        self._make_run()
        self._keep_run()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def check(self) -> None:
        """Refuse a directory that is not ours to use; touches nothing."""
        try:
            info = self.path.stat()
        except FileNotFoundError:
            self._check_parent()
            return
        except OSError as error:
            raise _refused(self.path, f"cannot be used: {error.strerror}") from error
        if not stat.S_ISDIR(info.st_mode):
            raise _refused(self.path, "is not a directory")
        if info.st_uid != os.geteuid():
            owner, me = _name(info.st_uid), _name(os.geteuid())
            raise _refused(self.path, f"belongs to {owner}, and this is {me}; run as {owner}")
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise _refused(self.path, "is not writable")
        if self.is_ours():
            if stat.S_IMODE(info.st_mode) & ~self._mode():
                raise _refused(self.path, f"is open to others (mode {stat.S_IMODE(info.st_mode):04o}); chmod 0700 it")
            if (self.path / RESTORING).exists() and not self.is_running():
                self._check_restore()
        elif any(self.path.iterdir()):
            raise _refused(self.path, "has files in it that are not jobd's; name an empty or new directory")

    def is_ours(self) -> bool:
        return self.lock_path.exists()

    def is_running(self) -> bool:
        return locks.is_held(self.lock_path)

    def free_bytes(self) -> int:
        return disk_space(self.path).free

    # -- places -----------------------------------------------------------------------------------------------

    @property
    def run(self) -> Path:
        """Where the sockets are: short enough for the kernel."""
        return (self.path / "run").resolve()

    @property
    def cluster_argument(self) -> str:
        """How the cluster is named to a server that starts inside it.

        An account that cannot enter a parent of the data directory still gets there through its own working directory.
        """
        return str(self.cluster) if can_reach(self.account, self.cluster) else "/proc/self/cwd"

    @property
    def server_owner(self) -> Owner:
        return Owner(self.account.uid, self.account.gid)

    def server_lock(self, name: str) -> Path:
        return self.path / f"{name}.lock"

    def make_server_folder(self, path: Path) -> None:
        """A 0700 folder of the servers' account; one that belonged to another account is handed over whole."""
        make_folder(path, self.server_owner)

    def reachable_copy(self, root: Path, parts: Sequence[str], label: str) -> Path:
        """`root` itself if the servers' account can run its `parts` there, else a folder with a copy of them.

        The copy is named after `label`, the version, so that an upgrade makes a new one and drops the old.
        """
        if can_reach(self.account, root / parts[0]):
            return root
        home = self.path / "servers"
        if not can_reach(self.account, home / label / parts[0]):
            home = self.run.parent / "servers"
        target = home / label
        if not target.exists():
            home.mkdir(mode=0o755, exist_ok=True)
            home.chmod(0o755)
            with tempfile.TemporaryDirectory(dir=home) as staging:
                new = Path(staging, "new")
                for part in parts:
                    _copy_readable(root / part, new / part)
                _let_enter(new)
                new.rename(target)
            for old in home.glob(f"{label.partition('-')[0]}-*"):
                if old != target:
                    shutil.rmtree(old)
        return target

    def secret(self, name: str) -> str:
        """A password of 192 random bits that is made once and kept in a 0600 file."""
        path = self.path / "secrets" / name
        try:
            return path.read_text("ascii").strip()
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, secrets.token_hex(24).encode())
            return path.read_text("ascii")

    # -- addresses --------------------------------------------------------------------------------------------

    def write_addresses(self, addresses: Addresses) -> None:
        write_whole(self.path / "env.json", msgspec.json.encode(addresses))

    def read_addresses(self) -> Addresses:
        try:
            return msgspec.json.decode((self.path / "env.json").read_bytes(), type=Addresses)
        except FileNotFoundError:
            raise _refused(
                self.path, "has no jobd in it yet; start one: jobd serve --data-dir " + str(self.path)
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise _refused(self.path, f"cannot tell its addresses ({error}); start jobd on it once") from error

    # -- helpers in order of use ------------------------------------------------------------------------------

    def _check_parent(self) -> None:
        nearest = next(folder for folder in self.path.parents if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise _refused(self.path, f"cannot be made: {nearest} is not writable")

    def _check_restore(self) -> None:
        """Refuse a restore that was cut short. The cluster is put in place last: with it the restore is complete."""
        if (self.path / RESTORING).exists() and not self.cluster.exists():
            raise _refused(self.path, "has a restore in it that was cut short; run jobd restore again")

    def _check_space(self) -> None:
        needed = WARM_START_BYTES if (self.cluster / "PG_VERSION").exists() else FIRST_START_BYTES
        free = self.free_bytes()
        if free < needed:
            raise DiskFull(
                f"data directory {self.path} has {free >> 20} MiB free and a start needs {needed >> 20} MiB; "
                "free some space or name another with --data-dir"
            )

    def _take_lock(self) -> int:
        try:
            fd = locks.take(self.lock_path)
        except OSError as error:
            raise _refused(self.path, f"cannot be locked: {error.strerror}") from error
        if fd is None:
            by = ", ".join(f"pid {pid}" for pid in locks.holders(self.lock_path)) or "another process"
            raise AlreadyRunning(f"jobd already runs on {self.path} ({by}); stop it or name another with --data-dir")
        return fd

    def _mode(self) -> int:
        return 0o710 if self.account.dropped else 0o700

    def _set_mode(self) -> None:
        if self.account.dropped:
            os.chown(self.path, os.geteuid(), self.account.gid)
        self.path.chmod(self._mode())

    def _make_run(self) -> None:
        """Make the socket folder. Where its path would be too long or out of the account's reach, `run` becomes a link
        to a new short folder; a link whose folder is gone or is not ours any more (a cleaned /tmp) is made again."""
        run = self.path / "run"
        if not run.is_symlink() and self._is_fit(run):
            self.make_server_folder(run)
            return
        if self._has_good_link():
            self.make_server_folder(run.resolve())
            return
        if run.is_symlink():
            run.unlink()
        elif run.exists():
            shutil.rmtree(run)
        home = next((folder for folder in (*SHORT_FOLDERS, tempfile.gettempdir()) if self._is_fit_home(folder)), None)
        if home is None:
            raise _refused(
                self.path, f"has a path too long for sockets, and so has {tempfile.gettempdir()}; set TMPDIR"
            )
        outer = tempfile.mkdtemp(prefix="jobd-", dir=home)
        with opened_folder(outer) as fd:
            os.fchown(fd, -1, self.account.gid)
            os.fchmod(fd, self._mode())
        short = Path(outer, "run")
        self.make_server_folder(short)
        run.symlink_to(short)

    def _has_good_link(self) -> bool:
        """`run` leads to a folder of the servers' account, in a folder of our own that nobody else can write to."""
        try:
            short = Path(os.readlink(self.path / "run"))
            info, outer = short.lstat(), short.parent.lstat()
        except OSError:
            return False
        is_closed = stat.S_ISDIR(outer.st_mode) and outer.st_uid == os.geteuid() and not outer.st_mode & 0o022
        return is_closed and stat.S_ISDIR(info.st_mode) and info.st_uid == self.account.uid and self._is_fit(short)

    def remove_run(self) -> None:
        """With the short folder, if there is one; a restore leaves nothing behind."""
        if self._has_good_link():
            shutil.rmtree(self.run.parent, ignore_errors=True)

    def _keep_run(self) -> None:
        """Cleaners of /tmp leave a folder alone that someone holds an flock on."""
        for folder in (self.run.parent, self.run):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._held.append(fd)

    def _is_fit_home(self, folder: str) -> bool:
        return os.access(folder, os.W_OK | os.X_OK) and self._is_fit(Path(folder, "jobd-12345678", "run"))

    def _is_fit(self, folder: Path) -> bool:
        return len(os.fsencode(folder / LONGEST_SOCKET)) <= SOCKET_PATH_BYTES and can_reach(self.account, folder)


def _copy_readable(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.a", "pgxs", "pkgconfig"))
    else:
        shutil.copy2(source, target)


def _let_enter(root: Path) -> None:
    """Everyone may read the copy, whatever the umask was."""
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755)
        for name in files:
            file = Path(folder, name)
            file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)


def _refused(path: Path, why: str) -> DataDirRefused:
    return DataDirRefused(f"data directory {path} {why}")


def _name(uid: int) -> str:
    try:
        return user_name(uid)
    except Exception:
        return f"user id {uid}"
