"""CPython 3.10 and 3.12 for arm64, the ones of JetPack 6 and 7, which Debian does not have.

The interpreter and its compiled modules are those that cx_Freeze's wheels carry for frozen programs; the rest of the
standard library is that of this machine's Python of the same minor version, being the same for all machines. A frozen
program begins in a module `__startup__`; the one written here starts what its first argument names, as Python would.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from arm64_rootfs import CACHE, Unavailable
from check import interpreters_here

WHEELS = {
    10: ("8.2.0", "68fb685bec66744f883c83e7bbd47f3cf38752781b79497ba6c749892ab1adb5"),
    12: ("8.4.1", "c9533d4d5362bf2d9705bed990e9b4bafcff3709373bce480ab974a7ea537832"),
}
#: Path below the folder at the depth at which the wheel's own $ORIGIN paths are right.
PROGRAM = "python/bin/python3"
STARTUP = """
import ctypes, os, runpy, signal, sys

def call(*arguments):
    answer = ctypes.CDLL(None, use_errno=True).syscall(*arguments)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer

def init(*_):
    pass

def run(*_):
    # Built with kernel headers that are too old for these two; the Pythons of a board have them.
    if not hasattr(os, "pidfd_open"):
        os.pidfd_open = lambda pid, flags=0: call(434, pid, flags)
    if not hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal = lambda fd, number, info=None, flags=0: call(424, fd, int(number), None, flags)
    del sys.argv[0]
    sys.path.insert(0, sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def prepare(minor: int) -> Path:
    """A folder with the interpreter in it; made once and kept."""
    if minor not in WHEELS:
        raise Unavailable(
            f"no arm64 Python 3.{minor} is known; there are {', '.join(f'3.{known}' for known in WHEELS)}"
        )
    version, digest = WHEELS[minor]
    folder = CACHE / f"python-3.{minor}-{digest[:12]}"
    if folder.is_dir():
        return folder
    library = standard_library(minor)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=".new-") as name:
        staging = Path(name)
        with zipfile.ZipFile(download(minor, version, digest, staging)) as wheel:
            wheel.extractall(staging / "wheel")
        lay_out(staging / "wheel", library, staging / "made", minor)
        (staging / "made").rename(folder)
    return folder


def standard_library(minor: int) -> Path:
    python = interpreters_here().get((3, minor))
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    found = python and subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()
    if not found:
        raise Unavailable(f"python3.{minor} is not here, and its standard library is needed")
    return Path(found)


def download(minor: int, version: str, digest: str, to: Path) -> Path:
    requirements = to / "requirements.txt"
    requirements.write_text(f"cx_Freeze=={version} --hash=sha256:{digest}\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    command += ["--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements), "--dest", str(to)]
    command += ["--platform", "manylinux2014_aarch64", "--python-version", f"3.{minor}", "--implementation", "cp"]
    if subprocess.run(command).returncode != 0:
        raise Unavailable(f"pip could not download cx_Freeze {version} for Python 3.{minor}")
    return next(to.glob("*.whl"))


def lay_out(wheel: Path, library: Path, made: Path, minor: int) -> None:
    program = made / PROGRAM
    modules = program.parent / "lib"
    unneeded = shutil.ignore_patterns("__pycache__", "lib-dynload", "site-packages", "test", "config-*", "idlelib")
    shutil.copytree(library, modules, ignore=unneeded)
    bases = wheel / "cx_Freeze" / "bases"
    shutil.copy(bases / f"console-cpython-3{minor}-aarch64-linux-gnu", program)
    program.chmod(0o755)
    for module in (bases / "lib-dynload").glob("*.so"):
        shutil.copy(module, modules)
    (modules / "__startup__.py").write_text(STARTUP)
    shutil.copytree(wheel / "cx_freeze.libs", made / "cx_freeze.libs")
