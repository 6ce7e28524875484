"""The wheels that the lock names for one Python on one machine: which, from where, and what is in them.

Which ones is decided here, by the lock's markers in the target's terms: pip would take those of the Python it runs on,
and so miss what only Python 3.10 needs. Each file is compared with the lock's hashes, a cached one again each time.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

try:
    from packaging.requirements import Requirement
except ImportError:  # wherever pip is, so is its copy
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

#: The newest glibc that a wheel may ask for: that of Ubuntu 22.04.
GLIBC = (2, 35)
OLDEST_MANYLINUX_2 = 5


class File(NamedTuple):
    content: bytes
    executable: bool


class Pin(NamedTuple):
    name: str
    version: str
    sha256: frozenset[str]


def read_lock(lock: str, minor: int, machine: str) -> list[Pin]:
    """What the lock names for CPython 3.`minor`, whichever its patch release, on Linux on this machine."""
    pins: dict[str, Pin] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        line = line.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line.split("--hash=")[0].strip())
        if not any(_applies(requirement, minor, patch, machine) for patch in (0, 99)):
            continue
        version = re.fullmatch(r"==([^=*,]+)", str(requirement.specifier))
        digests = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        if not version or not digests:
            raise SystemExit(f"the lock does not pin {requirement.name} to one version with its hashes: {line[:80]}")
        pin = Pin(requirement.name, version[1], digests)
        if pins.setdefault(pin.name, pin) != pin:
            raise SystemExit(f"the lock names {pin.name} {pins[pin.name].version} and {pin.version} for 3.{minor}")
    return list(pins.values())


def _applies(requirement: Requirement, minor: int, patch: int, machine: str) -> bool:
    environment = {
        "implementation_name": "cpython",
        "implementation_version": f"3.{minor}.{patch}",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"3.{minor}.{patch}",
        "python_version": f"3.{minor}",
        "sys_platform": "linux",
        "extra": "",
    }
    return requirement.marker is None or requirement.marker.evaluate(environment)


def fetch(pins: list[Pin], minor: int, machine: str, cache: Path) -> list[Path]:
    """The wheel of each pin, from the cache if it is there; two builds at once do not disturb each other."""
    folder = folder_of(pins, minor, machine, cache)
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as staging:
            _download(_requirements(pins), minor, machine, Path(staging))
            if not folder.is_dir():
                Path(staging, "wheels").rename(folder)
    wheels = sorted(folder.glob("*.whl"))
    allowed = {digest for pin in pins for digest in pin.sha256}
    for wheel in wheels:
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in allowed:
            raise SystemExit(f"{wheel} does not match its hash in the lock; remove {folder} and build again")
    if len(wheels) != len(pins):
        raise SystemExit(f"{folder} has {len(wheels)} wheels and the lock names {len(pins)}; remove it and build again")
    return wheels


def folder_of(pins: list[Pin], minor: int, machine: str, cache: Path) -> Path:
    """The cache folder of this lock; another lock has another."""
    return cache / f"{machine}-cp3{minor}-{hashlib.sha256(_requirements(pins).encode()).hexdigest()[:16]}"


def _requirements(pins: list[Pin]) -> str:
    return "".join(
        f"{pin.name}=={pin.version} {' '.join(f'--hash=sha256:{digest}' for digest in sorted(pin.sha256))}\n"
        for pin in pins
    )


def _download(lines: str, minor: int, machine: str, staging: Path) -> None:
    requirements = staging / "requirements.txt"
    requirements.write_text(lines)
    platforms = [f"manylinux_2_{number}_{machine}" for number in range(GLIBC[1], OLDEST_MANYLINUX_2 - 1, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(requirements)]
    command += ["--implementation", "cp", "--python-version", f"3.{minor}", "--dest", str(staging / "wheels")]
    command += [argument for platform in platforms for argument in ("--platform", platform)]
    if subprocess.run(command).returncode != 0:
        shutil.rmtree(staging / "wheels", ignore_errors=True)
        raise SystemExit(f"pip could not download the lock's wheels for Python 3.{minor} on {machine} (see above)")


def unpack(wheel: Path) -> dict[str, File]:
    """The files that installing the wheel would put into site-packages."""
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = _installed_path(info.filename)
            if info.is_dir() or path is None:
                continue
            mode = info.external_attr >> 16
            files[path] = File(archive.read(info), bool(mode & stat.S_IXUSR))
    return files


def _installed_path(path: str) -> str | None:
    if path.startswith("/") or ".." in path.split("/"):
        raise SystemExit(f"a wheel holds {path}, which is outside of it")
    folder, _, rest = path.partition("/")
    if not folder.endswith(".data"):
        return path
    kind, _, rest = rest.partition("/")
    return rest if kind in ("purelib", "platlib") else None
