"""An arm64 Debian to try things in: its files from Debian's packages, its programs run by qemu's user emulation.

The file system is made once, by unpacking packages without running anything of them, and kept. Each use is a view of
it: changes go to memory and vanish, in namespaces of its own with no network but a loopback. Needs root; tools that are
missing are installed with apt. `Unavailable` says why this machine cannot do it; arm64_machine.py needs less of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = "bookworm"
PACKAGES = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils", "dpkg", "findutils"),
    *(
        "grep",
        "gzip",
        "init-system-helpers",
        "libc-bin",
        "passwd",
        "perl-base",
        "python3",
        "sed",
        "tar",
        "util-linux",
        "zlib1g",
    ),
    *("systemd-standalone-sysusers", "systemd-standalone-tmpfiles"),
)
#: The Debian package of each program.
MAKING = {"mmdebstrap": "mmdebstrap"}
RUNNING = {"qemu-aarch64-static": "qemu-user-static"}
CACHE = Path.home() / ".cache" / "jobd-check"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
HANDLER = "jobd-aarch64"
#: Magic and mask by which binfmt_misc knows the ELF header of an arm64 program or of a library that is one: machine 183
#: (0xb7). See binfmt_misc in the kernel's documentation.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
#: Without it, newer Pythons take an emulated path that is several times slower.
CPU = {"QEMU_CPU": "cortex-a72"}
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}


class Unavailable(Exception):
    """Why no arm64 program can be run here."""


# -- outside: the tools, the handler and the files ------------------------------------------------------------------


def need(tools: dict[str, str]) -> None:
    if os.geteuid() != 0:
        raise Unavailable("it takes root to make a root file system and to run its programs")
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if missing:
        install(missing)


def install(packages: list[str]) -> None:
    if not shutil.which("apt-get"):
        raise Unavailable(f"{', '.join(packages)} missing, and this is no Debian or Ubuntu")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "--quiet", *command], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"apt-get {' '.join(command)} failed: {done.stderr.strip()[-300:]}")


def register() -> None:
    """Let the kernel start arm64 programs with qemu, in other root file systems too (flag F)."""
    need(RUNNING)
    try:
        if not (BINFMT / "register").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True, capture_output=True)
        if (BINFMT / HANDLER).exists() or is_handled():
            return
        qemu = shutil.which("qemu-aarch64-static")
        (BINFMT / "register").write_text(f":{HANDLER}:M::{MAGIC}:{MASK}:{qemu}:OCF")
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"qemu cannot be registered with the kernel: {error}") from error


def is_handled() -> bool:
    handlers = [path.read_text() for path in BINFMT.iterdir() if path.name.endswith("aarch64")]
    return any(
        text.startswith("enabled") and "flags: " in text and "F" in text.split("flags: ")[1] for text in handlers
    )


def files() -> Path:
    """The folder with the files."""
    need(MAKING)
    wanted = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
    folder = CACHE / f"{SUITE}-{wanted}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=".new-") as staging:
        root = Path(staging, "root")
        extract(PACKAGES, root, "--skip=cleanup")
        finish(root)
        with contextlib.suppress(OSError):  # another run was faster
            root.rename(folder)
    return folder


def extract(packages: Sequence[str], to: Path, *options: str) -> None:
    command = ["mmdebstrap", "--quiet", "--architectures=arm64", "--variant=extract", *options]
    done = subprocess.run([*command, f"--include={','.join(packages)}", SUITE, str(to)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"mmdebstrap failed: {done.stderr.strip()[-300:]}")


def finish(root: Path) -> None:
    """What the packages' own scripts would have done, as far as it matters here: accounts, and dpkg's list of them."""
    for name in ("passwd", "group"):
        shutil.copy(root / "usr/share/base-passwd" / f"{name}.master", root / "etc" / name)
    archives, database = root / "var/cache/apt/archives", root / "var/lib/dpkg"
    paragraphs = []
    for archive in sorted(archives.glob("*.deb")):
        fields = subprocess.run(["dpkg-deb", "--field", archive], check=True, capture_output=True, text=True).stdout
        name, *rest = fields.splitlines()
        paragraphs.append("\n".join([name, "Status: install ok installed", *rest]))
        package = name.split()[1]
        is_coinstalled = "Multi-Arch: same" in rest
        (database / "info" / f"{package}{':arm64' if is_coinstalled else ''}.list").touch()
    (database / "status").write_text("\n\n".join(paragraphs) + "\n")
    shutil.rmtree(archives)
    shutil.rmtree(root / "var/lib/apt/lists")


# -- inside: a view of the files in namespaces of its own -----------------------------------------------------------


def mount(root: Path, scratch: Path) -> Path:
    """Mount a view of `root` that can be changed; called inside NAMESPACES, which take it down with them."""
    run("mount", "-t", "tmpfs", "tmpfs", str(scratch))
    for name in ("upper", "work", "view"):
        (scratch / name).mkdir()
    view = scratch / "view"
    layers = f"lowerdir={root},upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
    run("mount", "-t", "overlay", "overlay", "-o", layers, str(view))
    for name in ("proc", "dev", "run", "sys"):
        (view / name).mkdir(exist_ok=True)
    run("mount", "-t", "proc", "proc", str(view / "proc"))
    run("mount", "-t", "tmpfs", "tmpfs", str(view / "dev"))
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(view / "run"))
    umask = os.umask(0)
    for name, (major, minor) in DEVICES.items():
        os.mknod(view / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    (view / "dev" / "shm").mkdir(mode=0o1777)
    os.umask(umask)
    bring_up_loopback()
    return view


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = 1
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", up))  # SIOCSIFFLAGS


def run(*command: str) -> None:
    subprocess.run(command, check=True)
