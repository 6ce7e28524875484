"""A command with descendants that try to stay: `family.py KIND END`, for 60 s unless they are ended.

KIND  child        a child in the same group
      deaf         the same, ignoring SIGTERM
      session      a child in a session of its own
      daemon       forked twice, in a session of its own, with nothing open
      stranger     a daemon that has become another program, with an empty environment
      brood        a daemon that goes on forking
      dead         a daemon that ends at once
END   exit | hang | deaf
"""

from __future__ import annotations

import os
import signal
import sys
import time

LONG_S = 60


def rest() -> None:
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        time.sleep(1)
    os._exit(0)


def daemon() -> bool:
    """True in the daemon."""
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    return True


def breed() -> None:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(LONG_S)
            os._exit(0)
        time.sleep(0.02)
    rest()


def have(kind: str) -> None:
    if kind in {"child", "deaf", "session"}:
        if os.fork() == 0:
            if kind == "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if kind == "session":
                os.setsid()
            rest()
    elif daemon():
        if kind == "stranger":
            os.execve("/bin/sleep", ["sleep", str(LONG_S)], {})
        if kind == "brood":
            breed()
        if kind == "dead":
            os._exit(0)
        rest()


def main(kind: str, end: str) -> None:
    have(kind)
    if end == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(2, b"ready\n")
    if end != "exit":
        rest()
    os.write(1, b'{"kind": "%s"}' % kind.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
