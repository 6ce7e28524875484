#!/usr/bin/python3
"""A whole arm64 machine, emulated: for where the kernel does not let qemu run single arm64 programs.

Outside, `run` boots Debian's kernel with the files of arm64_rootfs.py as its first and only root, all in memory, and
without any network device. Inside, this very file is the first process: it mounts what programs expect, runs
check_arm64.py with the arguments of the kernel's command line, prints its exit code, and powers the machine off.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from arm64_rootfs import CACHE, SUITE, bring_up_loopback, extract, need

HERE = Path(__file__).resolve().parent
TOOLS = {"qemu-system-aarch64": "qemu-system-arm", "cpio": "cpio"}
#: Debian's kernel for cloud machines: all drivers that are needed here are built in, so no module is loaded.
KERNEL_PACKAGE = "linux-image-cloud-arm64"
MACHINE = ("-machine", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "3072", "-accel", "tcg,thread=multi")
ALONE = ("-nic", "none", "-nographic", "-no-reboot")
#: A panic ends the machine at once, and with it the check.
KERNEL_ARGUMENTS = "console=ttyAMA0 quiet loglevel=3 panic=-1"
#: Where a booted machine has what the check needs.
CHECK, DIST = "/check", "/check/dist"
ENDED = "the check ended with exit code "
LONGEST_S = 1800.0
MOUNTS = {"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/dev/shm": "tmpfs", "/run": "tmpfs"}
POWER_OFF = 0x4321FEDC


# -- outside --------------------------------------------------------------------------------------------------------


def kernel() -> Path:
    """Debian's kernel for such a machine; made once and kept."""
    need(TOOLS)
    found = CACHE / f"{SUITE}-{KERNEL_PACKAGE}"
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".new-") as staging:
            extract((KERNEL_PACKAGE,), Path(staging, "root"))
            next(Path(staging, "root", "boot").glob("vmlinuz-*")).rename(found)
    return found


def run(root: Path, files: dict[str, Path], arguments: list[str]) -> int:
    """Boot with `files` (a path inside, the file or folder to be there); the exit code of the check inside."""
    booted = kernel()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=".boot-") as scratch:
        memory = Path(scratch, "initrd")
        lay_out(Path(scratch, "more"), files)
        with memory.open("wb") as archive:  # the kernel unpacks one archive after the other
            for folder in (root, Path(scratch, "more")):
                pack(folder, archive.fileno())
        append = " ".join([KERNEL_ARGUMENTS, "--", *arguments])
        command = ["qemu-system-aarch64", *MACHINE, *ALONE, "-kernel", str(booted), "-initrd", str(memory)]
        return watch([*command, "-append", append])


def lay_out(folder: Path, files: dict[str, Path]) -> None:
    inside = folder / CHECK.lstrip("/")
    inside.mkdir(parents=True)
    for program in HERE.glob("*.py"):
        shutil.copy(program, inside)
    (folder / "init").symlink_to(f"{CHECK}/{Path(__file__).name}")
    (inside / Path(__file__).name).chmod(0o755)
    for path, file in files.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if file.is_dir() else shutil.copy)(file, target)


def pack(folder: Path, to: int) -> None:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    command = ["cpio", "--null", "--create", "--format=newc", "--quiet", "--owner=+0:+0"]
    subprocess.run(command, cwd=folder, input="\0".join(names).encode(), stdout=to, check=True)


def watch(command: list[str]) -> int:
    """Print the output of the machine; its last line has the exit code. Without one, the check did not end."""
    command = ["timeout", "--kill-after=5", str(LONGEST_S), *command]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as machine:
        for line in map(str.strip, machine.stdout or ()):
            if line.startswith(ENDED):
                machine.communicate()
                return int(line.removeprefix(ENDED))
            if line:
                print(line, flush=True)
    print(
        f"failed: the machine stopped, or was stopped after {LONGEST_S:.0f} s, before the check had ended", flush=True
    )
    return 1


# -- inside ---------------------------------------------------------------------------------------------------------


def boot() -> None:
    """As the first process of the machine, which must not end before it is switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = 1
    try:
        for target, kind in MOUNTS.items():
            os.makedirs(target, exist_ok=True)
            if libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None) != 0:
                raise OSError(ctypes.get_errno(), f"{kind} cannot be mounted at {target}")
        os.chmod("/dev/shm", 0o1777)
        bring_up_loopback()
        code = run_check(sys.argv[1:])
    except Exception as error:
        print(f"failed: {error}", flush=True)
    print(f"{ENDED}{code}", flush=True)
    libc.reboot(POWER_OFF)


def run_check(arguments: list[str]) -> int:
    """Run the check; as the first process (init), reap every orphan that ends meanwhile."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    check = subprocess.Popen([sys.executable, f"{CHECK}/check_arm64.py", *arguments], env=environment)
    ended = 0
    while ended != check.pid:
        ended, status = os.wait()
    with contextlib.suppress(ValueError):
        return os.waitstatus_to_exitcode(status)
    return 1


if __name__ == "__main__":
    boot()
