"""Signals: a second one stops at once, SIGHUP reloads; and what systemd is notified of meanwhile."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd


def test_signal_before_it_is_ready_ends_clean(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start()
    wait_until(lambda: daemon.readiness()[0] == 503, daemon.log, 10)

    assert daemon.stop() == 0, daemon.log()
    assert not daemon.processes()


def test_second_signal_stops_at_once_and_says_so(jobd: Callable[..., Jobd], folder: Path) -> None:
    daemon = jobd().start().until_ready()
    daemon.signal(signal.SIGSTOP)  # both signals wait for it, so that the second surely comes during the drain
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGINT)
    daemon.signal(signal.SIGCONT)

    assert daemon.wait() in (128 + signal.SIGINT, 128 + signal.SIGTERM), daemon.log()
    assert not daemon.processes()
    assert daemon.start().until_ready().stop() == 0


def test_open_connections_do_not_delay_the_stop(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd(None, JOBD_DRAIN_S="2").start().until_ready()
    host, _, port = daemon.address.rpartition(":")
    idle = socket.create_connection((host, int(port)))
    halfway = socket.create_connection((host, int(port)))
    halfway.sendall(b"GET /livez HTTP/1.1\r\nHost: ")

    with idle, halfway:
        assert daemon.stop() == 0


def test_hangup_takes_over_what_can_change_and_names_what_cannot(jobd: Callable[..., Jobd], folder: Path) -> None:
    file = folder / "jobd.toml"
    file.write_text('drain_s = 5\n[log]\nlevel = "info"\n')
    daemon = jobd(None, "--config", str(file)).start().until_ready()
    file.write_text('drain_s = 6\n[log]\nlevel = "info"\n[leases]\nttl_s = 90\n')

    daemon.signal(signal.SIGHUP)

    wait_until(lambda: "reload: leases.ttl_s stays 60; restart jobd to make it 90" in daemon.log(), daemon.log, 20)
    assert "reload: drain_s is now 6 (was 5)" in daemon.log()
    assert daemon.readiness()[0] == 200


def test_hangup_with_a_bad_file_changes_nothing(jobd: Callable[..., Jobd], folder: Path) -> None:
    file = folder / "jobd.toml"
    file.write_text("drain_s = 5\n")
    daemon = jobd(None, "--config", str(file)).start().until_ready()
    file.write_text("drain_s = nonsense\n")

    daemon.signal(signal.SIGHUP)

    wait_until(lambda: "reload refused, nothing changed" in daemon.log(), daemon.log, 20)
    assert daemon.stop() == 0


def test_systemd_is_told_ready_watchdog_and_stopping(jobd: Callable[..., Jobd], folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(folder / "notify"))
        listener.settimeout(5)
        daemon = jobd(None, NOTIFY_SOCKET=str(folder / "notify"), WATCHDOG_USEC="200000").start()
        received = messages(listener)

        ready = read_until(received, "READY=1")
        watchdog = read_until(received, "WATCHDOG=1")
        daemon.signal(signal.SIGTERM)
        stopping = read_until(received, "STOPPING=1")

    assert any(text.startswith("STATUS=waiting for") for text in ready)
    assert watchdog
    assert stopping
    assert daemon.wait() == 0


def messages(listener: socket.socket) -> Iterator[str]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        yield from listener.recv(4096).decode().split("\n")


def read_until(received: Iterator[str], wanted: str) -> list[str]:
    seen = []
    for text in received:
        seen.append(text)
        if text == wanted:
            return seen
    raise AssertionError(f"{wanted} was not received; these were: {seen}")
