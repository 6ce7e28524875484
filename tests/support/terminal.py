"""A jobd command on a terminal of its own: what a person would see, and the keys that a person would press."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

from tests.support.daemon import environment
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CTRL_C = "\x03"
#: Enters and leaves the alternate screen.
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
#: Takes the terminal for its own, so that Ctrl-C there is a signal for it, which what runs in the background of a shell
#: would ignore; then it is `jobd`.
_START = """import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from jobd.cli.main import main
main(sys.argv[1:])"""
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    def __init__(self, arguments: tuple[str, ...], columns: int, lines: int, variables: dict[str, str]) -> None:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._inner = inner
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            cwd="/",
            env=environment({"TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        self._said = b""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self._fd, 65536):
                self._said += part

    @property
    def raw(self) -> str:
        return self._said.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """All that was ever shown, without colours and the like."""
        return _CODES.sub("", self.raw)

    @property
    def is_line_mode(self) -> bool:
        """Whether the terminal is as a shell expects it."""
        modes = termios.tcgetattr(self._inner)[3]
        return bool(modes & termios.ICANON and modes & termios.ECHO and modes & termios.ISIG)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, *words: str) -> None:
        """All of the words have been shown."""
        wait_until(lambda: all(word in self.text for word in words), lambda: self.text[-4000:], 30.0)

    def end(self) -> int:
        """The exit code, once it has one."""
        return self._process.wait(30)

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._inner)  # the last end of it, so the reader comes to its end, too
        self._reading.join(10)
        os.close(self._fd)


@contextlib.contextmanager
def terminal(*arguments: str, columns: int = 80, lines: int = 24, **variables: str) -> Iterator[Terminal]:
    made = Terminal(arguments, columns, lines, variables)
    try:
        yield made
    finally:
        made.clean_up()
