from __future__ import annotations

import os
import resource
import tracemalloc
from contextlib import asynccontextmanager
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.errors import ServerFailed, ServerMissing
from jobd.host import locks
from jobd.host.account import Account, server_account
from jobd.host.process import ENVIRONMENT, READ_BYTES, REMEMBERED_LINES, Child
from tests.support.wait import wait_until, wait_until_async
from tests.unit.helpers_processes import DEADLINE_S, is_alive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

ME = Account(name="me", uid=os.geteuid(), gid=os.getegid(), dropped=False)
POLITE = "trap 'kill $!; exit 5' TERM; sleep 300 & echo up; wait"
DEAF = "trap '' TERM; sleep 300 & echo $!; wait; wait"


@pytest.fixture
def lock_fd(folder: Path) -> Iterator[int]:
    fd = locks.take(folder / "a.lock")
    assert fd is not None
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
async def no_descriptor_is_left_open() -> AsyncIterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before  # what an earlier test left may go meanwhile


@asynccontextmanager
async def started(
    argv: Sequence[str], folder: Path, lock_fd: int, *, account: Account = ME, stdin: bytes | None = None
) -> AsyncIterator[tuple[Child, list[str]]]:
    """A child whose output is being read, and the lines so far."""
    child, lines = Child.start(argv, account=account, cwd=folder, lock_fd=lock_fd, stdin=stdin), list[str]()
    with anyio.fail_after(DEADLINE_S):
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.pump, lines.append)
                yield child, lines
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop(())


async def run_to_end(
    argv: Sequence[str], folder: Path, lock_fd: int, *, account: Account = ME, stdin: bytes | None = None
) -> tuple[Child, list[str], int]:
    child, lines = Child.start(argv, account=account, cwd=folder, lock_fd=lock_fd, stdin=stdin), list[str]()
    with anyio.fail_after(DEADLINE_S):
        await child.pump(lines.append)
        return child, lines, await child.wait()


async def first_line(lines: list[str]) -> str:
    while not lines:
        await anyio.sleep(0.001)
    return lines[0]


async def test_lines_of_both_outputs_are_handed_on_and_remembered(folder: Path, lock_fd: int) -> None:
    child, lines, _ = await run_to_end(["sh", "-c", "echo one; echo two >&2; echo; echo three"], folder, lock_fd)

    assert lines == ["one", "two", "", "three"]
    assert list(child.last_lines) == lines


async def test_last_line_counts_even_if_nothing_ends_it(folder: Path, lock_fd: int) -> None:
    child, lines, _ = await run_to_end(["sh", "-c", "echo one; printf 'FATAL: no'; exit 3"], folder, lock_fd)

    assert lines == ["one", "FATAL: no"]
    assert child.why() == "exit code 3: FATAL: no"


async def test_only_the_last_lines_are_remembered(folder: Path, lock_fd: int) -> None:
    child, lines, _ = await run_to_end(["seq", "1000"], folder, lock_fd)

    assert len(lines) == 1000
    assert list(child.last_lines) == [str(number) for number in range(1001 - REMEMBERED_LINES, 1001)]


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        ("exit 0", 0, "exit code 0"),
        ("exit 7", 7, "exit code 7"),
        ("kill -9 $$", -9, "killed by SIGKILL"),
        ("kill -40 $$", -40, "killed by signal 40"),
        ("echo 'LOG: fine'; echo 'FATAL: no room'; echo 'LOG: bye'; exit 1", 1, "exit code 1: FATAL: no room"),
        ("echo 'initdb: error: no'; exit 1", 1, "exit code 1: initdb: error: no"),
    ],
)
async def test_end_is_told_with_the_line_that_explains_it(
    folder: Path, lock_fd: int, script: str, code: int, why: str
) -> None:
    child, _, ended_with = await run_to_end(["bash", "-c", script], folder, lock_fd)

    assert ended_with == code
    assert child.why() == why


async def test_waiting_again_gives_the_same_code(folder: Path, lock_fd: int) -> None:
    child, _, code = await run_to_end(["sh", "-c", "exit 4"], folder, lock_fd)

    assert (code, await child.wait(), await child.stop([(SIGTERM, DEADLINE_S)])) == (4, 4, 4)


async def test_wait_that_was_cut_short_can_be_repeated(folder: Path, lock_fd: int) -> None:
    async with started(["sleep", "300"], folder, lock_fd) as (child, _):
        with anyio.move_on_after(0):
            await child.wait()
        os.kill(child.pid, SIGKILL)

        assert await child.wait() == -SIGKILL


async def test_polite_signal_is_enough_for_a_child_that_heeds_it(folder: Path, lock_fd: int) -> None:
    async with started(["sh", "-c", POLITE], folder, lock_fd) as (child, lines):
        await first_line(lines)

        assert await child.stop([(SIGTERM, DEADLINE_S)]) == 5


async def test_child_that_ignores_the_signals_is_killed_with_its_whole_session(folder: Path, lock_fd: int) -> None:
    async with started(["sh", "-c", DEAF], folder, lock_fd) as (child, lines):
        offspring = int(await first_line(lines))

        code = await child.stop([(SIGTERM, 0.02), (SIGTERM, 0.02)])

    assert code == -SIGKILL
    wait_until(lambda: not is_alive(offspring))


async def test_standard_input_is_handed_over_whole(folder: Path, lock_fd: int) -> None:
    _, lines, _ = await run_to_end(["wc", "-c"], folder, lock_fd, stdin=b"x" * 65536)

    assert lines == ["65536"]


async def test_child_that_does_not_read_its_input_is_no_error(folder: Path, lock_fd: int) -> None:
    _, _, code = await run_to_end(["true"], folder, lock_fd, stdin=b"x" * 65536)

    assert code == 0


async def test_standard_input_is_empty_if_none_is_given(folder: Path, lock_fd: int) -> None:
    _, lines, code = await run_to_end(["cat"], folder, lock_fd)

    assert (lines, code) == ([], 0)


async def test_nothing_of_our_environment_reaches_the_child(
    folder: Path, lock_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "PGPASSWORD", "PGDATA", "LD_PRELOAD_CANARY"):
        monkeypatch.setenv(name, "s3cr3t-canary")

    _, lines, _ = await run_to_end(["env"], folder, lock_fd)

    assert dict(line.split("=", 1) for line in lines) == ENVIRONMENT


async def test_child_gets_its_folder_and_a_tight_umask(folder: Path, lock_fd: int) -> None:
    _, lines, _ = await run_to_end(["sh", "-c", "pwd -P; umask"], folder, lock_fd)

    assert lines == [str(folder), "0077"]


async def test_child_inherits_no_descriptor_but_the_lock(folder: Path, lock_fd: int) -> None:
    elsewhere = os.dup(lock_fd)
    os.set_inheritable(elsewhere, True)

    async with started(["sleep", "300"], folder, lock_fd) as (child, _):
        await wait_until_async(
            lambda: {int(name) for name in os.listdir(f"/proc/{child.pid}/fd")} == {0, 1, 2, lock_fd},
            lambda: os.listdir(f"/proc/{child.pid}/fd"),
        )
    os.close(elsewhere)


async def test_child_leads_a_session_of_its_own(folder: Path, lock_fd: int) -> None:
    async with started(["sleep", "300"], folder, lock_fd) as (child, _):
        session = os.getsid(child.pid)

        assert session == child.pid != os.getsid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a child to another user")
async def test_child_of_root_runs_as_the_servers_account_and_in_no_other_group(folder: Path, lock_fd: int) -> None:
    account = server_account()

    _, lines, _ = await run_to_end(["sh", "-c", "id -u; id -g; id -G"], folder, lock_fd, account=account)

    assert lines == [str(account.uid), str(account.gid), str(account.gid)]


@pytest.mark.parametrize("name", ["missing", "not-executable", "a-folder", "wrong-format"])
async def test_program_that_cannot_run_is_refused_by_name(folder: Path, lock_fd: int, name: str) -> None:
    (folder / "not-executable").touch(0o644)
    (folder / "a-folder").mkdir()
    (folder / "wrong-format").write_bytes(b"\0not a program")
    (folder / "wrong-format").chmod(0o755)

    with pytest.raises(ServerMissing, match=f"cannot start {folder}/{name}: "):
        Child.start([str(folder / name)], account=ME, cwd=folder, lock_fd=lock_fd)


async def test_start_that_may_succeed_later_is_a_failure_and_no_refusal(folder: Path, lock_fd: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(lock_fd)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(ServerFailed, match="cannot start true: Too many open files"):
            Child.start(["true"], account=ME, cwd=folder, lock_fd=lock_fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_output_that_is_no_text_is_shown_with_marks_in_it(folder: Path, lock_fd: int) -> None:
    _, lines, _ = await run_to_end(["printf", r"caf\351 \377\n\303\274ber\n"], folder, lock_fd)

    assert lines == ["caf\ufffd \ufffd", "über"]


@pytest.mark.parametrize("after", ["", "echo; echo after"])
async def test_endless_line_is_cut_and_takes_little_memory(folder: Path, lock_fd: int, after: str) -> None:
    script = f"head -c 10000000 /dev/zero | tr '\\0' x; {after}"
    tracemalloc.start()
    try:
        _, lines, _ = await run_to_end(["sh", "-c", script], folder, lock_fd)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 20 * READ_BYTES
    assert all(len(line) <= 2 * READ_BYTES for line in lines)
    assert lines[1:] == (["after"] if after else [])
