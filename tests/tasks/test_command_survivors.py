"""Nothing of a command survives it, however it ends and wherever its descendants hid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.model import Config, Queue
from jobd.tasks.command.marks import MARK_VARIABLE, marked, new_mark
from jobd.tasks.command.processes import Family
from jobd.tasks.command.runner import CommandRunner
from jobd.tasks.command.workdir import Workdir
from jobd.tasks.registry import make_runners
from jobd.tasks.runner import TaskFailed
from tests.support.wait import wait_until_async
from tests.tasks.commands import PROGRAMS, Before, Notes, children, command, room_for_descriptors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobd.config.model import Task

pytestmark = pytest.mark.anyio

KINDS = ("child", "deaf", "session", "daemon", "stranger", "brood", "dead")
SHORT = {"kill_after_s": 0.1}


def marks() -> dict[int, int]:
    """Every process on this machine that carries any mark: its number and the mark."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = next(
                    line for line in Path(f"/proc/{name}/limits").read_text().splitlines() if "file locks" in line
                )
            except (OSError, StopIteration):
                continue
            soft = words.split()[3]
            if soft.isdecimal():
                found[int(name)] = int(soft)
    return found


def attempts_in(folder: Path) -> list[Path]:
    return list(folder.glob("attempts/*"))


@pytest.fixture(autouse=True)
async def _nothing_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    used: set[int] = set()

    def remembered_mark() -> int:
        used.add(mark := new_mark())
        return mark

    monkeypatch.setattr("jobd.tasks.command.runner.new_mark", remembered_mark)
    before = Before()
    yield
    with contextlib.suppress(TimeoutError):  # the loop buries its own dead, in its own time
        await wait_until_async(before.has_nothing_new, timeout_s=10)
    assert before.added == ({}, 0)
    assert {pid: mark for pid, mark in marks().items() if mark in used} == {}
    assert attempts_in(folder) == []


async def run_and_cancel(task: Task, folder: Path, word: str = "ready") -> Notes:
    """Run it, and cancel as soon as it has logged that word."""
    notes = Notes()
    async with anyio.create_task_group() as running:
        running.start_soon(CommandRunner(task, folder).run, {}, notes.context)
        await wait_until_async(lambda: word in notes.lines)
        running.cancel_scope.cancel()
    return notes


@pytest.mark.parametrize("kind", KINDS)
async def test_descendants_end_with_the_program(kind: str, folder: Path) -> None:
    runner = CommandRunner(command("family.py", kind, "exit", **SHORT), folder)

    assert await runner.run({}, Notes().context) == {"kind": kind}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["hang", "deaf"])
async def test_descendants_end_when_the_job_is_cancelled(kind: str, end: str, folder: Path) -> None:
    await run_and_cancel(command("family.py", kind, end, **SHORT), folder)


async def test_program_that_ignores_sigterm_is_killed(folder: Path) -> None:
    await run_and_cancel(command("act.py", "ignore_sigterm", **SHORT), folder, "deaf")


async def test_program_may_end_by_itself_after_sigterm(folder: Path) -> None:
    notes = await run_and_cancel(command("act.py", "leave_cleanly", kill_after_s=15), folder)

    assert (folder / "attempts" / "clean").exists()
    (folder / "attempts" / "clean").unlink()
    assert notes.lines == ["ready"], "what it says after the cancel is nobody's business"


async def test_stopped_program_is_ended_by_its_deadline(folder: Path) -> None:
    with anyio.move_on_after(0.5) as timeout:
        await CommandRunner(command("act.py", "stop_self", **SHORT), folder).run({}, Notes().context)

    assert timeout.cancelled_caught


@pytest.mark.parametrize("program", ["hold_pipe", "background"])
async def test_result_counts_although_a_grandchild_stayed(program: str, folder: Path) -> None:
    runner = CommandRunner(command("act.py", program, **SHORT), folder)

    assert await runner.run({}, Notes().context) == {"parent": "done"}


async def test_program_that_writes_without_end_is_ended(folder: Path) -> None:
    with anyio.move_on_after(0.3) as timeout:
        await CommandRunner(command("act.py", "flood", "1", "1000000", "y", **SHORT), folder).run({}, Notes().context)

    assert timeout.cancelled_caught


async def test_descendants_end_although_jobd_has_no_descriptor_left(folder: Path) -> None:
    notes = Notes()
    async with anyio.create_task_group() as running:
        task = command("family.py", "daemon", "deaf", **SHORT)
        running.start_soon(CommandRunner(task, folder).run, {}, notes.context)
        await wait_until_async(lambda: "ready" in notes.lines)
        with room_for_descriptors(0):
            running.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)  # rounds that see nothing


async def test_orphans_are_buried_while_the_program_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.tasks.command.runner.BURY_EVERY_S", 0.01)
    before, notes = set(children()), Notes()

    async with anyio.create_task_group() as running:
        task = command("family.py", "dead", "hang", **SHORT)
        running.start_soon(CommandRunner(task, folder).run, {}, notes.context)
        await wait_until_async(lambda: "ready" in notes.lines)
        await wait_until_async(lambda: len(set(children()) - before) == 1)
        running.cancel_scope.cancel()


async def test_status_of_other_children_is_left_to_their_parent(folder: Path) -> None:
    other = start("raise SystemExit(7)")
    await wait_until_async(lambda: children().get(other.pid) == "Z")

    await CommandRunner(command("family.py", "daemon", "exit", **SHORT), folder).run({}, Notes().context)

    assert other.wait() == 7


async def test_process_started_beside_a_command_is_not_taken_for_one_of_it(folder: Path) -> None:
    """Another thread of jobd that forks while jobd carries the mark: the soft limit is inherited, nothing else."""
    mark = new_mark()
    bystander = start(_soft_mark(mark))
    try:
        await wait_until_async(lambda: marks().get(bystander.pid) == mark)

        assert list(marked({mark})) == []
    finally:
        bystander.kill()
        bystander.wait()


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", program])


def _soft_mark(mark: int) -> str:
    return (
        "import os, resource; _, hard = resource.getrlimit(10);"
        f"resource.setrlimit(10, ({mark}, hard)); os.execv('/bin/sleep', ['sleep', '60'])"
    )


async def test_next_start_ends_what_a_killed_jobd_left(folder: Path) -> None:
    killed_jobd(folder)
    (left,) = attempts_in(folder)
    mark = int(left.name)
    assert len(list(marked({mark}))) == 2, "nobody was there to end them"

    CommandRunner(command("act.py", "stdout", "{}"), folder)

    assert attempts_in(folder) == []
    await wait_until_async(lambda: all(_is_dead(pid) for pid in marked({mark})))
    bury(mark)


@pytest.mark.parametrize("config", [{"queues": {"default": Queue(slots=0)}}, {"tasks": {}}], ids=["slots", "commands"])
async def test_next_start_without_them_ends_what_a_killed_jobd_left(folder: Path, config: dict[str, Any]) -> None:
    killed_jobd(folder)
    (left,) = attempts_in(folder)
    mark = int(left.name)

    make_runners(Config(data_dir=str(folder), **config))

    assert attempts_in(folder) == []
    await wait_until_async(lambda: all(_is_dead(pid) for pid in marked({mark})))
    bury(mark)


def killed_jobd(folder: Path) -> None:
    argv = [sys.executable, str(PROGRAMS / "doomed.py"), str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as jobd:
        assert jobd.stdout is not None
        assert jobd.stdout.readline() == b"ready\n"
        jobd.kill()


def bury(mark: int) -> None:
    """They were adopted by this process; in production that would be init."""
    for pid in marked({mark}):
        os.waitpid(pid, 0)


def _is_dead(pid: int) -> bool:
    return children().get(pid) == "Z"


async def test_start_leaves_the_attempts_of_a_living_jobd_alone(folder: Path) -> None:
    workdir = Workdir(folder / "attempts", new_mark())

    CommandRunner(command("act.py", "stdout", "{}"), folder)

    assert attempts_in(folder) == [workdir.path]
    workdir.remove()


async def test_mark_is_carried_only_while_forking(folder: Path) -> None:
    mark = new_mark()
    nothing = os.open(os.devnull, os.O_RDONLY)

    family = Family.start(("/bin/true",), mark=mark, env={}, cwd=folder, stdin=nothing, limits={})

    os.close(nothing)
    assert list(marked({mark})) == [family.pid]
    assert os.getpid() not in marks()
    assert MARK_VARIABLE not in os.environ
    await wait_until_async(lambda: not family.living())
    assert family.collect() == 0


async def churn(count: int, at_once: int, folder: Path) -> dict[str, int]:
    """Commands of every kind, every other one cancelled or out of time at some moment; how each ended."""
    ends: dict[str, int] = {"done": 0, "failed": 0, "stopped": 0}
    slots = anyio.Semaphore(at_once)

    async def one(n: int) -> None:
        kind, hangs = KINDS[n % len(KINDS)], n % 2 == 0
        end = ("hang", "deaf")[n % 4 == 0] if hangs else "exit"
        runner = CommandRunner(command("family.py", kind, end, **SHORT), folder)
        async with slots:
            with anyio.move_on_after(n % 10 * 0.03 if hangs else 60):  # also before it has started anything
                try:
                    await runner.run({}, Notes().context)
                    ends["done"] += 1
                except TaskFailed:
                    ends["failed"] += 1
                return
            ends["stopped"] += 1

    async with anyio.create_task_group() as running:
        for n in range(count):
            running.start_soon(one, n)
    return ends


@pytest.mark.timeout(300)
async def test_hundred_commands_leave_nothing(folder: Path) -> None:
    assert await churn(100, 8, folder) == {"done": 50, "failed": 0, "stopped": 50}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_five_hundred_commands_leave_nothing(folder: Path) -> None:
    assert await churn(500, 16, folder) == {"done": 250, "failed": 0, "stopped": 250}


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
async def test_program_ended_by_somebody_else_is_a_failed_attempt(sig: signal.Signals, folder: Path) -> None:
    notes, failures = Notes(), list[Any]()

    async def run() -> None:
        with pytest.raises(TaskFailed) as caught:
            await CommandRunner(command("family.py", "daemon", "hang", **SHORT), folder).run({}, notes.context)
        failures.append((caught.value.code, caught.value.message, caught.value.retryable))

    before = set(children())
    async with anyio.create_task_group() as running:
        running.start_soon(run)
        await wait_until_async(lambda: "ready" in notes.lines)
        (attempt,) = attempts_in(folder)
        leader = next(pid for pid in set(children()) - before if os.getsid(pid) == pid and _is_program(pid))
        assert leader in set(marked({int(attempt.name)}))
        os.kill(leader, sig)

    assert failures == [("killed", f"killed by {sig.name}: ready", True)]


def _is_program(pid: int) -> bool:
    """The one that was started, and not the daemon that it became the parent of and that is adopted by now."""
    return Path(f"/proc/{pid}/fd/1").readlink() != Path(os.devnull)
