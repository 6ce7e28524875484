"""Processes of an attempt do not outlive its lease while jobd itself stands still."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.config.model import Config, Leases, Task
from jobd.tasks.command.marks import MARK_VARIABLE, carrying, new_mark
from jobd.tasks.command.runner import CommandRunner
from jobd.tasks.registry import make_runners
from jobd.tasks.runner import Context
from jobd.tasks.watchdog import Watchdog
from tests.support.daemon import is_alive
from tests.support.running_slots import CONFIG, running_slots
from tests.support.wait import wait_until, wait_until_async
from tests.support.workerless import workerless_daemon
from tests.tasks.commands import JOB_ID, children

if TYPE_CHECKING:
    from jobd.tasks.runner import Runner

#: Writes its pid, and stays.
PROGRAM = "import os, time; open({file!r}, 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.mark.parametrize("way", ["command", "isolated"])
def test_processes_of_a_frozen_jobd_are_gone_when_their_lease_has_ended(way: str, folder: Path) -> None:
    file = folder / "pid"
    argv = json.dumps([sys.executable, "-c", PROGRAM.format(file=str(file))])
    runs = {
        "command": f'run = "command"\nargv = {argv}',
        "isolated": 'run = "python"\nisolate = true\nhandler = "tests.tasks.isolated_handlers:stay"',
    }
    folder.chmod(0o777)
    config = f"[leases]\nttl_s = 2\nheartbeat_s = 0.5\n[tasks.stay]\n{runs[way]}\n"
    with workerless_daemon(config) as workerless:
        workerless.submit(task="stay", payload={"file": str(file)})
        wait_until(lambda: file.exists() and file.read_text(), workerless.daemon.log, 30)
        pid = int(file.read_text())
        time.sleep(2.5)  # longer than a lease: renewals reach the watchdog, or it would be gone now
        assert is_alive(pid)

        workerless.daemon.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not is_alive(pid), "it goes on past its lease", 20)
        finally:
            workerless.daemon.signal(signal.SIGCONT)


class KnownLease:
    def __init__(self, kill_at: float) -> None:
        self.kill_at = kill_at
        self.on_grant: Any = None


def watchdog_pids() -> set[int]:
    """The watchdog processes that this process has started and that are alive."""
    pids = set()
    for pid in children():
        with contextlib.suppress(OSError):  # it has ended just now
            if b"jobd.tasks.watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.add(pid)
    return pids


async def test_all_tasks_of_a_jobd_share_one_watchdog_process(folder: Path) -> None:
    before = watchdog_pids()
    command = Task(run="command", argv=("echo", "1"))
    runners = make_runners(Config(data_dir=str(folder), tasks={"a": command, "b": command}))
    for name in ("a", "b"):
        context = Context(
            job_id=JOB_ID,
            task=name,
            attempt=1,
            max_attempts=1,
            timeout_s=30,
            emit=lambda *event: None,
            lease=KnownLease(time.monotonic() + 600),
        )
        await runners[name].run({}, context)

    assert len(watchdog_pids() - before) == 1
    for runner in runners.values():
        await runner.close()


async def test_watchdog_that_was_killed_is_started_again_and_knows_what_to_watch(
    shared_postgres: str, folder: Path
) -> None:
    file, before = folder / "pid", watchdog_pids()
    watchdog = Watchdog()
    task = Task(run="command", argv=(sys.executable, "-c", PROGRAM.format(file=str(file))))
    runners: dict[str, Runner] = {"chat": CommandRunner(task, folder, watchdog)}
    config = msgspec.structs.replace(CONFIG, leases=Leases(ttl_s=30, heartbeat_s=0.3))
    async with running_slots(shared_postgres, folder, runners, config) as slots:
        job_id = await slots.submit({})
        await slots.wait_for_status(job_id, "running")
        await wait_until_async(lambda: bool(watchdog_pids() - before) and file.exists())
        (first,) = watchdog_pids() - before
        os.kill(first, signal.SIGKILL)
        await wait_until_async(lambda: bool(watchdog_pids() - before - {first}))  # at the next renewal

        assert list(watchdog._ends) != []
        await slots.node.engine.cancel([job_id])
        await slots.wait_for_status(job_id, "canceled")
        assert watchdog._ends == {}


def test_watchdog_kills_at_the_end_it_was_told_last(folder: Path) -> None:
    watchdog, mark = Watchdog(), new_mark()
    with carrying(mark):
        sleeper = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK_VARIABLE: str(mark)})
    lease = KnownLease(time.monotonic() + 600)
    try:
        with watchdog.watching(mark, lease):
            lease.kill_at = time.monotonic()
            lease.on_grant()
            assert sleeper.wait(20) == -signal.SIGKILL
    finally:
        watchdog.close()
        sleeper.kill()
