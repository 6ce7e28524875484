"""`jobd serve` as a person runs it: start, look, stop; nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from typing import TYPE_CHECKING

import asyncpg
import pytest
import redis

from tests.support.daemon import is_alive, run_jobd
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

SERVICES = dict.fromkeys(
    (
        "postgres",
        "valkey",
        "board",
        "store",
        "stream",
        "relay",
        "raw_workers",
        "engine",
        "leases",
        "lease_guard",
        "dispatcher",
        "slots",
        "tailer",
        "reaper",
        "resolver",
        "rollups",
        "janitor",
        "batches",
        "schedules",
        "tokens",
        "ticket_readiness",
        "ticket_scheduler",
        "ticket_runner",
        "ticket_gate",
        "ticket_tailer",
        "gateway",
    ),
    "ready",
)


def test_first_start_becomes_ready_and_says_where(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start(prepared=False).until_ready()

    status, body = daemon.get("/readyz")
    assert (status, body["status"], body["services"]) == (200, "ready", SERVICES)
    assert body["relay_lag_s"] >= 0
    assert daemon.get("/livez") == (200, {"status": "alive"})
    url = daemon.addresses["JOBD_URL"]
    wait_until(lambda: f"serves at {url}" in daemon.log(), daemon.log, 20)
    opening = f"(if it asks for a token: jobd open --data-dir '{daemon.data_dir}')"
    assert re.search(rf"page: {url}/  {re.escape(opening)}\ntry:  curl {url}/readyz\n", daemon.log())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_with_exit_code_0_and_no_process_left(jobd: Callable[..., Jobd], number: signal.Signals) -> None:
    daemon = jobd().start().until_ready()
    processes = daemon.processes()

    daemon.signal(number)

    assert daemon.wait() == 0, daemon.log()
    assert len(processes) >= 3
    assert not any(is_alive(pid) for pid in processes)


def test_servers_are_in_sessions_of_their_own(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()

    for name in ("postgres", "valkey"):
        pid = daemon.server_pid(name)
        assert os.getsid(pid) == pid != os.getsid(daemon.pid)


def test_second_start_keeps_what_the_first_wrote(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start(prepared=False).until_ready()
    before = run_jobd("migrate", "--check", "--data-dir", str(daemon.data_dir))
    assert daemon.stop() == 0

    daemon.start().until_ready()

    assert before.stdout == "the schema is up to date\n"
    assert daemon.stop() == 0


async def test_addresses_work_for_clients_while_it_runs(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()

    found = json.loads(run_jobd("env", "--json", "--data-dir", str(daemon.data_dir)).stdout)
    connection = await asyncpg.connect(found["DATABASE_URL"])
    try:
        name = await connection.fetchval("SELECT current_user || '@' || current_database()")
        superuser = await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    finally:
        await connection.close()
    with redis.Redis.from_url(found["REDIS_URL"]) as client:
        pong = client.ping()

    assert set(found) == {"JOBD_URL", "DATABASE_URL", "REDIS_URL"}
    assert name == "jobd@jobd"
    assert superuser is False
    assert pong is True


def test_addresses_are_the_same_for_a_stopped_data_dir(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    running = run_jobd("env", "--data-dir", str(daemon.data_dir)).stdout
    daemon.stop()

    stopped = run_jobd("env", "--data-dir", str(daemon.data_dir)).stdout

    assert stopped == running
    assert stopped.startswith("export JOBD_URL='http://127.0.0.1:")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("data_checksums", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("log_min_error_statement", "panic"),
    ],
)
async def test_postgres_setting(shared: Jobd, setting: str, expected: str) -> None:
    connection = await asyncpg.connect(shared.addresses["DATABASE_URL"])
    try:
        assert await connection.fetchval("SELECT current_setting($1)", setting) == expected
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "command",
    ["CONFIG GET maxmemory", "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "ACL LIST", "MODULE LIST", "REPLICAOF no one", "SAVE"],
)
def test_valkey_refuses_command_that_no_client_needs(shared: Jobd, command: str) -> None:
    with redis.Redis.from_url(shared.addresses["REDIS_URL"]) as client, pytest.raises(redis.ResponseError):
        client.execute_command(*command.split(" "))


def test_valkey_keeps_nothing_and_evicts_nothing(shared: Jobd) -> None:
    with redis.Redis.from_url(shared.addresses["REDIS_URL"]) as client:
        info = client.info()

    assert info["maxmemory_policy"] == "noeviction"
    assert info["maxmemory"] == 128 << 20
    assert info["aof_enabled"] == 0
    assert info["tcp_port"] == 0


def test_valkey_refuses_a_client_without_its_password(shared: Jobd) -> None:
    path = shared.addresses["REDIS_URL"].partition("@")[2].partition("?")[0]

    with redis.Redis(unix_socket_path=path) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_everything_below_the_data_dir_is_private(shared: Jobd) -> None:
    allowed = 0o710 if os.geteuid() == 0 else 0o700

    assert shared.data_dir.stat().st_mode & 0o777 == allowed
    for name in ("run", "postgres", "secrets"):
        assert (shared.data_dir / name).stat().st_mode & 0o777 == 0o700
    for name in ("env.json", "jobd.lock", "secrets/valkey", "postgres/pg_hba.conf"):
        assert (shared.data_dir / name).stat().st_mode & 0o777 == 0o600


def test_no_tcp_port_is_open_but_the_gateway(shared: Jobd) -> None:
    inodes = {
        os.readlink(f"/proc/{pid}/fd/{fd}")
        for pid in shared.processes()
        for fd in os.listdir(f"/proc/{pid}/fd")
        if os.path.exists(f"/proc/{pid}/fd/{fd}") or os.path.islink(f"/proc/{pid}/fd/{fd}")
    }
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            for line in list(file)[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                    listening.append(int(local.rpartition(":")[2], 16))

    assert listening == [int(shared.address.rpartition(":")[2])]


def test_unknown_path_and_wrong_method_are_problems(shared: Jobd) -> None:
    status, body = shared.get("/nothing")

    assert (status, body["status"], body["code"]) == (404, 404, "not_found")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
def test_started_as_root_the_servers_are_another_user(shared: Jobd) -> None:
    for name in ("postgres", "valkey"):
        assert os.stat(f"/proc/{shared.server_pid(name)}").st_uid != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_user_cannot_connect_to_postgres(shared: Jobd) -> None:
    path = shared.addresses["DATABASE_URL"].partition("host=")[2] + "/.s.PGSQL.5432"
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(12345)
            socket.socket(socket.AF_UNIX).connect(path)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 13


def test_data_dir_with_a_very_long_path_works(jobd: Callable[..., Jobd], folder: Path) -> None:
    deep = folder / ("d" * 120) / ("e" * 120)

    daemon = jobd(deep).start(prepared=False).until_ready()

    with redis.Redis.from_url(daemon.addresses["REDIS_URL"]) as client:
        assert client.ping()
    assert daemon.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="any other user reaches its own folders")
def test_data_dir_below_a_folder_that_only_root_may_enter_works(jobd: Callable[..., Jobd], folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    daemon = jobd(closed / "data").start(prepared=False).until_ready()

    assert daemon.stop() == 0
    assert daemon.start().until_ready().stop() == 0
