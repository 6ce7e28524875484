"""A file system of the drill's own: ext4 in a file, over a loop device.

It can be filled to the last block, and cut off as by a power failure: the ioctl FS_IOC_SHUTDOWN ends all writes at
once, without a flush of the journal, so that after the next mount only what was synced before is there. It needs root,
mkfs.ext4 and a kernel with ext4 and loop devices, but no device mapper.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from typing import TYPE_CHECKING

from jobd.errors import ServerFailed

if TYPE_CHECKING:
    from pathlib import Path

#: Size of the file system in MB: a new database, its write-ahead log and some thousand jobs, and little to fill up.
SIZE_MB = 400
PROGRAMS = ("mkfs.ext4", "mount", "umount", "losetup")
#: The ioctl FS_IOC_SHUTDOWN of ext4 and xfs, and its argument for "write nothing more, not even the journal".
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
#: Bytes of one write while it is filled up.
PIECE = 1 << 16
#: Seconds in which the last user of the file system must have gone.
UNMOUNT_S = 20.0


class LoopDisk:
    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.path = folder / "disk"
        self._device = ""

    @staticmethod
    def why_not() -> str | None:
        """Why there can be none here; None: there can."""
        if os.geteuid() != 0:
            return "only root can mount a file system"
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            return f"{missing[0]} is not installed"
        return None

    def make(self) -> None:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE_MB << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self.mount()
        self.path.chmod(0o755)

    def mount(self) -> None:
        """Over a new loop device each time. `mount -o loop` takes one that is still there, and with it the file system
        that was cut off, if another mount namespace still has it.
        """
        self._device = _run("losetup", "--find", "--show", str(self._image))
        _run("mount", self._device, str(self.path))

    def unmount(self) -> None:
        deadline = time.monotonic() + UNMOUNT_S
        while subprocess.run(["umount", str(self.path)], capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.path} cannot be unmounted: something still uses it")
            time.sleep(UNMOUNT_S / 400)
        _run("losetup", "--detach", self._device)

    def cut(self) -> None:
        """The power fails: what was not synced is gone at the next mount."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def fill(self) -> None:
        """Take what is left, to the last block."""
        with (self.path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(PIECE))

    def clear(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def throw_away(self) -> None:
        if os.path.ismount(self.path):
            self.unmount()


def _run(*command: str) -> str:
    """What it printed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServerFailed(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.strip()
