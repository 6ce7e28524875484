from __future__ import annotations

import os
import subprocess
import sys
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import pytest

from jobd.host import locks
from tests.support.wait import wait_until
from tests.unit.helpers_processes import DEADLINE_S, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Start = Callable[[Path, Sequence[str]], "Family"]

ALONE = ["sh", "-c", "echo; exec sleep 300"]
WITH_CHILD = ["sh", "-c", "sleep 300 & echo $!; wait"]
ORPHANING = ["sh", "-c", "sleep 300 & echo $!; exit 0"]
DEAF = ["sh", "-c", "trap '' TERM; sleep 300 & echo $!; wait"]
#: Both write down that they were asked; the parent then ends the child its own way.
NOTING = """
import os, signal, sys
def asked(number, frame):
    with open(sys.argv[1], "a") as note:
        note.write("parent " if os.getpid() == parent else "child ")
    if os.getpid() == parent:
        os.kill(child, signal.SIGKILL)
        os._exit(0)
parent = os.getpid()
signal.signal(signal.SIGTERM, asked)
child = os.fork()
if child:
    print(child, flush=True)
while True:
    signal.pause()
"""
TOP = os.path.dirname(os.path.dirname(locks.__file__))
PROBING = """
import pathlib, sys
from jobd import locks
print(flush=True)
while True:
    locks.is_held(pathlib.Path(sys.argv[1]))
"""
POLITE_THEN_FORCE = [(SIGTERM, DEADLINE_S), (SIGKILL, DEADLINE_S)]


class Family:
    """A program that inherits a lock and says which processes it has started."""

    def __init__(self, lock: Path, argv: Sequence[str]) -> None:
        fd = locks.take(lock)
        assert fd is not None
        try:
            self._popen = subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=(fd,))
        finally:
            os.close(fd)
        assert self._popen.stdout is not None
        self.pid = self._popen.pid
        #: Everything that the first line of its output names.
        self.offspring = [int(word) for word in self._popen.stdout.readline().split()]

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def wait(self) -> int:
        return self._popen.wait(DEADLINE_S)

    def clean_up(self) -> None:
        assert self._popen.stdout is not None
        self.kill()
        self._popen.stdout.close()
        for pid in self.offspring:
            if is_alive(pid):
                os.kill(pid, SIGKILL)


@pytest.fixture
def start_family() -> Iterator[Callable[[Path, Sequence[str]], Family]]:
    started: list[Family] = []

    def start(lock: Path, argv: Sequence[str]) -> Family:
        started.append(Family(lock, argv))
        return started[-1]

    yield start
    for family in started:
        family.clean_up()


@pytest.fixture
def lock(folder: Path) -> Path:
    return folder / "a.lock"


def _take_and_free(lock: Path) -> bool:
    fd = locks.take(lock)
    if fd is not None:
        os.close(fd)
    return fd is not None


def test_lock_can_be_taken_once(lock: Path) -> None:
    first = locks.take(lock)
    second = locks.take(lock)

    assert first is not None
    assert second is None
    os.close(first)


def test_lock_is_free_again_when_its_descriptor_is_closed(lock: Path) -> None:
    first = locks.take(lock)
    assert first is not None
    os.close(first)

    second = locks.take(lock)

    assert second is not None
    os.close(second)


def test_lock_file_is_for_its_owner_only_and_not_inherited_by_accident(lock: Path) -> None:
    fd = locks.take(lock)
    assert fd is not None

    assert lock.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_asking_changes_nothing(lock: Path) -> None:
    assert not locks.is_held(lock)
    assert locks.holders(lock) == []
    assert not lock.exists()


def test_lock_file_that_nobody_holds_is_not_held(lock: Path) -> None:
    lock.touch()

    assert not locks.is_held(lock)
    assert locks.holders(lock) == []


def test_own_lock_is_held_but_names_no_holder(lock: Path) -> None:
    fd = locks.take(lock)
    assert fd is not None

    assert locks.is_held(lock)
    assert locks.holders(lock) == []
    os.close(fd)


@pytest.mark.parametrize("ask", [locks.take, locks.is_held])
def test_symbolic_link_is_not_followed(lock: Path, ask: Callable[[Path], object]) -> None:
    target = lock.with_name("elsewhere")
    lock.symlink_to(target)

    with pytest.raises(OSError, match="symbolic links"):
        ask(lock)

    assert not target.exists()


def test_lock_lives_in_the_child_that_inherited_it(lock: Path, start_family: Start) -> None:
    child = start_family(lock, ALONE)

    assert locks.is_held(lock)
    assert locks.take(lock) is None
    assert locks.holders(lock) == [child.pid]


def test_lock_is_free_the_moment_its_only_holder_was_killed(lock: Path, start_family: Start) -> None:
    child = start_family(lock, ALONE)

    child.kill()

    assert not locks.is_held(lock)
    assert locks.holders(lock) == []


def test_lock_is_held_until_the_last_of_the_family_is_gone(lock: Path, start_family: Start) -> None:
    family = start_family(lock, WITH_CHILD)
    assert sorted(locks.holders(lock)) == sorted([family.pid, *family.offspring])

    family.kill()
    assert locks.is_held(lock)
    assert locks.holders(lock) == family.offspring
    os.kill(family.offspring[0], SIGKILL)

    wait_until(lambda: not locks.is_held(lock))


def test_probing_never_keeps_anyone_from_taking_the_lock(lock: Path) -> None:
    lock.touch()
    prober = subprocess.Popen([sys.executable, "-c", PROBING, str(lock)], cwd=TOP, stdout=subprocess.PIPE)
    try:
        assert prober.stdout is not None
        prober.stdout.readline()

        taken = [_take_and_free(lock) for _ in range(1000)]
    finally:
        prober.kill()
        prober.communicate()

    assert all(taken)


async def test_force_stops_the_holder_politely_and_frees_the_lock(lock: Path, start_family: Start) -> None:
    child = start_family(lock, ALONE)

    found = await locks.release_by_force(lock, POLITE_THEN_FORCE)

    assert found == [child.pid]
    assert not locks.is_held(lock)
    assert child.wait() == -SIGTERM


async def test_force_finds_and_stops_an_orphan_whose_parent_is_gone(lock: Path, start_family: Start) -> None:
    family = start_family(lock, ORPHANING)
    family.wait()
    assert locks.is_held(lock)

    found = await locks.release_by_force(lock, POLITE_THEN_FORCE)

    assert found == family.offspring
    assert not locks.is_held(lock)
    wait_until(lambda: not is_alive(family.offspring[0]))


async def test_only_the_first_of_a_family_gets_the_polite_signal(lock: Path, start_family: Start) -> None:
    note = lock.with_name("note")
    start_family(lock, [sys.executable, "-c", NOTING, str(note)])

    await locks.release_by_force(lock, POLITE_THEN_FORCE)

    assert not locks.is_held(lock)
    assert note.read_text() == "parent "


async def test_last_step_goes_to_the_whole_family(lock: Path, start_family: Start) -> None:
    family = start_family(lock, DEAF)

    found = await locks.release_by_force(lock, [(SIGTERM, 0.05), (SIGKILL, DEADLINE_S)])

    assert sorted(found) == sorted([family.pid, *family.offspring])
    assert not locks.is_held(lock)
    assert family.wait() == -SIGKILL


async def test_force_gives_up_when_its_steps_are_used_up(lock: Path, start_family: Start) -> None:
    family = start_family(lock, DEAF)

    await locks.release_by_force(lock, [(SIGTERM, 0.05)])

    assert locks.is_held(lock)
    assert is_alive(family.pid)


async def test_force_leaves_alone_who_holds_another_lock(lock: Path, start_family: Start) -> None:
    stranger = start_family(lock.with_name("b.lock"), ALONE)
    start_family(lock, ALONE)

    await locks.release_by_force(lock, POLITE_THEN_FORCE)

    assert is_alive(stranger.pid)
    assert locks.is_held(lock.with_name("b.lock"))


async def test_force_on_a_free_lock_does_nothing(lock: Path) -> None:
    assert await locks.release_by_force(lock, POLITE_THEN_FORCE) == []
    assert not locks.is_held(lock)
