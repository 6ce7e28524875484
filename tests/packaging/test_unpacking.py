"""The one file unpacks itself: whole or not at all, where it can run, and never anything but what was built."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import bundle
import pytest
from wheels import File

from tests.packaging.machine import Machine, new_machine, remove

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

TAG = (sys.implementation.cache_tag or "").replace("cpython-", "cp")
MINOR = sys.version_info.minor
ECHO = b"""
import os, subprocess, sys
def main():
    here = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    program = subprocess.run([here + "/server/bin/run"], capture_output=True, text=True)
    print(here, flush=True)
    print(program.stdout.strip(), flush=True)
    if sys.argv[1:] == ["child"]:
        subprocess.run([sys.executable, "-m", "jobd.there"], check=True)
    if sys.argv[1:] == ["wait"]:
        print("waiting", flush=True)
        import signal; signal.pause()
"""
FILES = {
    "jobd/__init__.py": File(b"", False),
    "jobd/cli/__init__.py": File(b"", False),
    "jobd/cli/main.py": File(ECHO, False),
    "jobd/there.py": File(b"print('child found', __file__)\n", False),
    "server/bin/run": File(b'#!/bin/sh\ncat "$(dirname "$0")/../lib/neighbour"\n', True),
    "server/lib/neighbour": File(b"the neighbour answers\n", False),
    "server/lib/large": File(os.urandom(300_000), False),
}
#: A sitecustomize that ends the process at the n-th call of a function of `os`.
FATAL = """
import os, signal
calls, function = 0, os.{name}
def fatal(*arguments, **options):
    global calls
    calls += 1
    if calls == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)
os.{name} = fatal
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = new_machine()
    build(made)
    yield made
    remove(made)


def build(machine: Machine, version: str = "1.0", files: dict[str, File] = FILES, **about: str) -> None:
    build_trees(machine, {TAG: files}, version, **about)


def build_trees(machine: Machine, trees: dict[str, dict[str, File]], version: str = "1.0", **about: str) -> None:
    facts = {"target": os.uname().machine, "glibc": "2.17", **about}
    bundle.write(machine.pyz, trees, version=version, **facts)


def trees_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


# -- the first start and the later ones -----------------------------------------------------------------------------


def test_first_start_unpacks_into_the_users_cache_with_programs_and_their_neighbours(machine: Machine) -> None:
    tree, answer = lines(machine.run())

    assert tree.startswith("/home/me/.cache/jobd/jobd-1.0-")
    assert answer == "the neighbour answers"
    assert machine.at(tree).stat().st_mode & 0o777 == 0o700
    assert (machine.at(tree) / "server/bin/run").stat().st_mode & 0o777 == 0o755


def test_later_start_uses_the_tree_as_it_stands(machine: Machine) -> None:
    tree, _ = lines(machine.run())
    before = {path: path.stat().st_ctime_ns for path in machine.at(tree).rglob("*") if "__pycache__" not in path.parts}

    again, _ = lines(machine.run())

    assert again == tree
    assert {path: path.stat().st_ctime_ns for path in before if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


def test_child_python_finds_jobd(machine: Machine) -> None:
    tree, _, child = lines(machine.run("child"))

    assert child == f"child found {tree}/jobd/there.py"


def test_umask_does_not_matter(machine: Machine) -> None:
    (machine.folder / "site" / "sitecustomize.py").write_text("import os; os.umask(0o077)")

    tree, _ = lines(machine.run(as_root=True))

    found = machine.at(tree)
    assert [
        path.stat().st_mode & 0o777 for path in (found.parent, found, found / "server", found / "server/bin/run")
    ] == [0o755] * 4
    assert (found / "server/lib/neighbour").stat().st_mode & 0o777 == 0o644


def test_only_files_of_the_running_python_are_unpacked(machine: Machine) -> None:
    other = f"cp3{MINOR + 1}"
    build_trees(machine, {TAG: {**FILES, "mine.so": File(b"1", True)}, other: {**FILES, "other.so": File(b"2", True)}})

    tree, _ = lines(machine.run())

    assert (machine.at(tree) / "mine.so").exists()
    assert not (machine.at(tree) / "other.so").exists()


def test_unpack_alone_compiles_for_all_users(machine: Machine) -> None:
    (tree,) = lines(machine.run("--unpack", as_root=True))

    assert tree.startswith("/var/cache/jobd/")
    assert list((machine.at(tree) / "jobd" / "cli" / "__pycache__").glob("main.*.pyc"))


# -- accidents --------------------------------------------------------------------------------------------------------


def test_first_starts_at_once_all_run_from_one_whole_tree(machine: Machine) -> None:
    starting = [machine.start() for _ in range(6)]

    outputs = [process.communicate(timeout=60) for process in starting]

    assert [process.returncode for process in starting] == [0] * 6, outputs
    assert len({out for out, _ in outputs}) == 1
    assert len(trees_in(machine.at("/home/me/.cache/jobd"))) == 1


@pytest.mark.parametrize(
    "end",
    [
        FATAL.format(name="fchmod", number=1),
        FATAL.format(name="fchmod", number=4),
        FATAL.format(name="rename", number=1),
        FATAL.format(name="rename", number=2),
    ],
    ids=["first-file", "middle", "before-stamp", "before-rename"],
)
def test_killed_first_start_leaves_nothing_that_the_next_trips_over(machine: Machine, end: str) -> None:
    fatal = machine.folder / "site" / "sitecustomize.py"
    fatal.write_text(end)
    killed = machine.run()
    fatal.unlink()

    tree, answer = lines(machine.run())

    assert killed.returncode == -9
    assert answer == "the neighbour answers"
    assert trees_in(machine.at(tree).parent) == [os.path.basename(tree)]


def test_upgrade_sweeps_the_older_version(machine: Machine) -> None:
    old, _ = lines(machine.run())
    build(machine, "2.0", {**FILES, "new": File(b"", False)})

    new, _ = lines(machine.run())

    assert new != old
    assert trees_in(machine.at(new).parent) == [os.path.basename(new)]


def test_upgrade_leaves_the_tree_of_a_running_jobd_alone(machine: Machine) -> None:
    running = machine.start("wait")
    assert running.stdout is not None
    old = running.stdout.readline().strip()
    while running.stdout.readline().strip() != "waiting":
        assert running.poll() is None
    build(machine, "2.0", {**FILES, "new": File(b"", False)})

    new, _ = lines(machine.run())
    while_it_runs = trees_in(machine.at(new).parent)
    running.kill()
    running.communicate()
    build(machine, "3.0", {**FILES, "newer": File(b"", False)})
    newer, _ = lines(machine.run())

    assert while_it_runs == sorted([os.path.basename(old), os.path.basename(new)])
    assert trees_in(machine.at(newer).parent) == [os.path.basename(newer)]


# -- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mounts", "as_root", "expected"),
    [
        ({}, True, "/var/cache/jobd/"),
        ({}, False, "/home/me/.cache/jobd/"),
        ({"home": "remount,bind,ro"}, False, "/var/tmp/jobd-1000/"),
        ({"home": "remount,bind,noexec"}, False, "/var/tmp/jobd-1000/"),
        ({"home": "tmpfs:size=200k"}, False, "/var/tmp/jobd-1000/"),
        ({"home": "remount,bind,ro", "vartmp": "remount,bind,noexec"}, False, "/tmp/jobd-1000/"),
        ({"cache": "remount,bind,ro"}, True, "/var/tmp/jobd-0/"),
        ({"cache": "remount,bind,noexec", "vartmp": "remount,bind,ro"}, True, "/tmp/jobd-0/"),
    ],
)
def test_first_usable_place_is_taken(machine: Machine, mounts: dict[str, str], as_root: bool, expected: str) -> None:
    machine.mounts = mounts

    tree, answer = lines(machine.run(as_root=as_root))

    assert tree.startswith(expected)
    assert answer == "the neighbour answers"


def test_tree_on_what_became_noexec_is_left_for_another(machine: Machine) -> None:
    lines(machine.run())
    machine.mounts = {"home": "remount,bind,noexec"}

    tree, _ = lines(machine.run())

    assert tree.startswith("/var/tmp/jobd-1000/")


@pytest.mark.parametrize("named", ["/root/.cache", "/home/closed"])
def test_root_never_unpacks_where_the_servers_account_cannot_go(machine: Machine, named: str) -> None:
    machine.at("/home/closed").mkdir(mode=0o700)

    tree, _ = lines(machine.run(as_root=True, XDG_CACHE_HOME=named))

    assert tree.startswith("/var/cache/jobd/")


def test_folders_that_root_makes_are_open_to_the_servers_account(machine: Machine) -> None:
    (machine.folder / "site" / "sitecustomize.py").write_text("import os; os.umask(0o077)")

    first, _ = lines(machine.run(as_root=True, XDG_CACHE_HOME="/home/new/deep"))
    later, _ = lines(machine.run(as_root=True, XDG_CACHE_HOME="/home/new/deep"))

    assert first == later
    assert first.startswith("/home/new/deep/jobd/")
    assert machine.at("/home/new").stat().st_mode & 0o777 == 0o755


def test_named_cache_is_used(machine: Machine) -> None:
    assert lines(machine.run(XDG_CACHE_HOME="/home/elsewhere"))[0].startswith("/home/elsewhere/jobd/")


def test_full_disks_are_told_in_one_line(machine: Machine) -> None:
    machine.mounts = dict.fromkeys(("home", "vartmp", "tmp"), "tmpfs:size=200k")

    done = machine.run()

    assert done.returncode == 74
    assert done.stderr.count("\n") == 1
    assert "no place to unpack" in done.stderr
    assert "/tmp/jobd-1000: only 0 MiB free" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr


def test_disk_that_fills_up_on_the_way_is_told_and_left_clean(machine: Machine) -> None:
    """Room enough by the file system's own word, and yet a write fails."""
    full = "import builtins, errno\nclass Full:\n def __call__(self, path, mode='r', *a, **k):\n"
    full += "  if mode == 'xb' and 'large' in str(path): raise OSError(errno.ENOSPC, 'No space left on device')\n"
    full += "  return real(path, mode, *a, **k)\nreal = builtins.open\nbuiltins.open = Full()\n"
    (machine.folder / "site" / "sitecustomize.py").write_text(full)

    done = machine.run()

    assert done.returncode == 74
    assert "/var/tmp/jobd-1000: No space left on device" in done.stderr
    assert trees_in(machine.at("/var/tmp/jobd-1000")) == []


def test_no_place_at_all_is_told_with_every_reason(machine: Machine) -> None:
    machine.mounts = {"home": "remount,bind,ro", "vartmp": "remount,bind,noexec", "tmp": "remount,bind,ro"}

    done = machine.run()

    assert done.returncode == 73
    assert "/home/me/.cache/jobd: Read-only file system" in done.stderr
    assert "/var/tmp/jobd-1000: mounted noexec" in done.stderr


# -- trust ----------------------------------------------------------------------------------------------------------


def test_folder_that_someone_else_put_there_is_not_trusted(machine: Machine) -> None:
    planted = machine.at("/var/tmp/jobd-1000")
    planted.mkdir()
    os.chown(planted, 4321, 4321)
    machine.mounts = {"home": "remount,bind,ro"}

    assert lines(machine.run())[0].startswith("/tmp/jobd-1000/")


@pytest.mark.parametrize("what", ["place", "tree"])
def test_folder_that_others_may_write_to_is_not_trusted(machine: Machine, what: str) -> None:
    tree, _ = lines(machine.run())
    opened = machine.at(tree) if what == "tree" else machine.at(tree).parent
    opened.chmod(0o777)

    again, _ = lines(machine.run())

    assert again.startswith("/var/tmp/jobd-1000/")


def test_link_in_place_of_the_folder_is_not_followed(machine: Machine) -> None:
    machine.at("/var/tmp/evil").mkdir()
    machine.at("/var/tmp/jobd-1000").symlink_to("/var/tmp/evil")
    machine.mounts = {"home": "remount,bind,ro"}

    assert lines(machine.run())[0].startswith("/tmp/jobd-1000/")


def damage_content(tree: Path) -> None:
    file = tree / "server/lib/neighbour"
    info = file.stat()
    file.write_bytes(b"the neighbour cheats!\n"[: info.st_size])
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))  # size and time as before


def damage_with_stamp(tree: Path, stamp: bytes | None) -> None:
    damage_content(tree)
    if stamp is None:
        (tree / ".stamp").unlink()
    else:
        (tree / ".stamp").write_bytes(stamp)


def damage_by_replacing(tree: Path) -> None:
    other = tree / "other"
    other.write_bytes(b"another file altogether")
    other.rename(tree / "server/lib/neighbour")


@pytest.mark.parametrize(
    "damage",
    [
        damage_content,
        damage_by_replacing,
        lambda tree: (tree / "server/lib/neighbour").unlink(),
        lambda tree: (tree / "server/bin/run").chmod(0o644),
        lambda tree: os.truncate(tree / "server/lib/neighbour", 3),
        lambda tree: (tree / "server/lib").rename(tree / "gone"),
        lambda tree: ((tree / "server/lib").rename(tree / "gone"), (tree / "server/lib").write_bytes(b"")),
        lambda tree: ((tree / "server/lib/neighbour").unlink(), (tree / "server/lib/neighbour").mkdir()),
        lambda tree: ((tree / "server/lib/neighbour").unlink(), (tree / "server/lib/neighbour").symlink_to("large")),
        lambda tree: damage_with_stamp(tree, None),
        lambda tree: damage_with_stamp(tree, b"{}"),
        lambda tree: damage_with_stamp(tree, b"\xff"),
    ],
    ids=[
        *("content", "replaced", "removed", "mode", "cut", "folder-gone", "folder-is-file", "file-is-folder"),
        *("file-is-link", "no-stamp", "empty-stamp", "broken-stamp"),
    ],
)
def test_tampered_tree_is_mended(machine: Machine, damage: object) -> None:
    tree, _ = lines(machine.run())
    assert callable(damage)
    damage(machine.at(tree))

    again, answer = lines(machine.run())

    assert (again, answer) == (tree, "the neighbour answers")
    assert lines(machine.run())[1] == "the neighbour answers"


@pytest.mark.parametrize("where", ["manifest", "content"])
def test_damaged_file_is_refused(machine: Machine, where: str) -> None:
    data = bytearray(machine.pyz.read_bytes())
    at = data.index(b"manifest.json") + 200 if where == "manifest" else data.index(b"files.bin") + 100_000
    data[at] ^= 0xFF
    machine.pyz.write_bytes(data)

    done = machine.run()

    assert done.returncode == 72
    assert done.stderr.startswith("jobd: /mnt/jobd.pyz is damaged: ")
    assert done.stderr.count("\n") == 1
    assert trees_in(machine.at("/home/me/.cache/jobd")) == []


# -- machines it is not for -----------------------------------------------------------------------------------------


def test_another_machine_is_refused(machine: Machine) -> None:
    build(machine, target="riscv64")

    done = machine.run()

    assert done.returncode == 78
    assert done.stderr == (
        f"jobd: this file is for 64-bit riscv64 and this is {os.uname().machine}; take the file for that\n"
    )


def test_another_python_is_refused(machine: Machine) -> None:
    build_trees(machine, {"cp38": FILES, "cp39": FILES})

    done = machine.run()

    assert done.returncode == 78
    assert f"runs on Python 3.8 or 3.9 and this is 3.{MINOR}." in done.stderr


def test_older_glibc_is_refused(machine: Machine) -> None:
    build(machine, glibc="9.1")

    done = machine.run()

    assert done.returncode == 78
    assert "needs glibc 9.1 or newer and this system has 2." in done.stderr
