"""The systemd notification protocol: a datagram to the socket named in NOTIFY_SOCKET; silent without one."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        #: Seconds within which systemd's watchdog expects a notification (WatchdogSec=); None: it is off.
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and for_us else None

    def send(self, *assignments: str) -> None:
        """Send `READY=1` and its like; a missing listener is never an error."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(assignments).encode(), address)
