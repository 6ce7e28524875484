from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from jobd.host.systemd import Notifier
from jobd.supervise.service import Phase, State
from tests.support.wait import wait_until_async
from tests.unit.helpers_services import Deaf, Scripted, running, spec, supervise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Listener:
    """What systemd would have heard."""

    def __init__(self, address: str) -> None:
        self.environ = {"NOTIFY_SOCKET": address}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def hear(self) -> list[str]:
        """Everything said since the last time this was asked."""
        new: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                new.append(self._socket.recv(4096).decode())
        self.heard += new
        return new

    def has_heard(self, message: str) -> bool:
        self.hear()
        return message in self.heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(folder: Path) -> Iterator[Listener]:
    listener = Listener(str(folder / "notify"))
    yield listener
    listener.close()


def test_message_arrives_at_the_named_socket(systemd: Listener) -> None:
    Notifier(systemd.environ).send("READY=1", "STATUS=ready")

    assert systemd.hear() == ["READY=1\nSTATUS=ready"]


def test_message_arrives_at_an_abstract_socket() -> None:
    listener = Listener(f"@jobd-test-{os.getpid()}")
    try:
        Notifier(listener.environ).send("READY=1")

        assert listener.hear() == ["READY=1"]
    finally:
        listener.close()


def test_nothing_happens_without_a_socket() -> None:
    Notifier({}).send("READY=1")


@pytest.mark.parametrize("name", ["missing", "missing/deep", "x" * 200])
def test_socket_that_cannot_be_reached_is_no_error(folder: Path, name: str) -> None:
    Notifier({"NOTIFY_SOCKET": str(folder / name)}).send("READY=1")


def test_listener_that_does_not_listen_never_blocks_the_sender(systemd: Listener) -> None:
    notifier = Notifier(systemd.environ)

    for _ in range(10_000):
        notifier.send("WATCHDOG=1")

    assert 0 < len(systemd.hear()) < 10_000


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": ""}, None),
    ],
)
def test_watchdog_interval_is_taken_only_if_it_is_meant_for_this_process(
    environ: dict[str, str], expected: float | None
) -> None:
    assert Notifier(environ).watchdog_s == expected


async def test_supervisor_says_what_it_waits_for_and_then_that_it_is_ready(systemd: Listener) -> None:
    first, last = Scripted("first"), Scripted("last", held=True)
    supervisor = supervise([spec(first), spec(last)], environ=systemd.environ)

    async with running(supervisor):
        await wait_until_async(lambda: systemd.has_heard("STATUS=waiting for last"))
        too_early = systemd.has_heard("READY=1")
        last.let_be_ready()
        await wait_until_async(lambda: systemd.has_heard("STATUS=ready"))

    assert not too_early
    assert systemd.heard.index("READY=1") < systemd.heard.index("STATUS=ready")


async def test_supervisor_says_ready_only_once_however_often_it_is_mended(systemd: Listener) -> None:
    calls: list[str] = []
    service = Scripted("service")
    supervisor = supervise([spec(service)], environ=systemd.environ, on_ready=lambda: calls.append("ready"))

    async with running(supervisor):
        await wait_until_async(lambda: systemd.has_heard("STATUS=ready"))
        service.crash(OSError("gone"))
        await wait_until_async(lambda: systemd.hear() and systemd.heard[-1] == "STATUS=ready")

    assert systemd.heard.count("READY=1") == 1
    assert "STATUS=waiting for service" in systemd.heard
    assert calls == ["ready"]


async def test_supervisor_says_that_it_drains_and_then_no_more_of_what_it_waits_for(systemd: Listener) -> None:
    working, server = Deaf("working"), Scripted("server")
    supervisor = supervise([spec(server, phase=Phase.SERVERS), spec(working)], environ=systemd.environ)

    async with running(supervisor) as run:
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await wait_until_async(lambda: systemd.has_heard("STOPPING=1\nSTATUS=draining"))
        server.crash(OSError("gone"))
        await wait_until_async(lambda: server.starts == 2 and supervisor.states()["server"] is State.READY)
        supervisor.stop()
        await run.ended.wait()

    systemd.hear()
    assert [message for message in systemd.heard if "STATUS" in message][-1] == "STOPPING=1\nSTATUS=draining"


async def test_watchdog_is_fed_only_while_no_service_is_stuck(
    systemd: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    def alarms() -> int:
        return sum(record.getMessage() == "no progress in: hung" for record in caplog.records)

    hung = Deaf("hung")
    environ = {**systemd.environ, "WATCHDOG_USEC": "10000"}
    supervisor = supervise([spec(hung, stall_s=0.1)], environ=environ)

    async with running(supervisor):
        await wait_until_async(lambda: systemd.has_heard("WATCHDOG=1"))
        await wait_until_async(alarms)
        systemd.hear()
        before = alarms()
        await wait_until_async(lambda: alarms() >= before + 3)
        while_stuck = systemd.hear()
        assert hung.handle is not None
        hung.handle.beat()
        await wait_until_async(lambda: "WATCHDOG=1" in systemd.hear())

    assert while_stuck == []


async def test_watchdog_is_fed_during_the_drain(systemd: Listener) -> None:
    deaf = Deaf("deaf")
    environ = {**systemd.environ, "WATCHDOG_USEC": "10000"}
    supervisor = supervise([spec(deaf)], environ=environ)

    async with running(supervisor):
        await wait_until_async(supervisor.is_ready)
        supervisor.stop()
        await wait_until_async(lambda: systemd.has_heard("STOPPING=1\nSTATUS=draining"))

        await wait_until_async(lambda: "WATCHDOG=1" in systemd.hear())
