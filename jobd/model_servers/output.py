"""What a model server writes, as lines of jobd's log: cut, without control characters, passwords and keys, and bounded
in number, since some servers write several lines for each request.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from jobd.host.masking import HIDDEN
from jobd.tasks.command.output import LINE_BYTES, printable
from jobd.tasks.openai.failures import without_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Lines of one server that are logged in a second at most; the rest is counted.
LINES_PER_S = 20
#: Characters of a line that are logged.
LINE_CHARACTERS = 500
#: Last lines that are kept to explain why a server has ended.
REMEMBERED_LINES = 5


class ServerOutput:
    def __init__(
        self, on_line: Callable[[str], None], secrets: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`secrets`: values that must not be shown."""
        self.last_lines: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._on_line = on_line
        self._secrets = secrets
        self._clock = clock
        self._second = int(clock())
        self._logged = 0
        self._left_out = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: LINE_BYTES + 1]
        for line in lines:
            self._take(line)

    def close(self) -> None:
        if self._rest:
            self._take(self._rest)
            self._rest = b""
        self._tell_left_out()

    def why(self) -> str:
        """Its last line."""
        return self.last_lines[-1] if self.last_lines else ""

    def _take(self, raw: bytes) -> None:
        shown = raw.rstrip(b"\r").rpartition(b"\r")[2]  # as a terminal would after a progress bar
        if not shown.strip():
            return
        line = self._safe(shown)
        self.last_lines.append(line)
        now = int(self._clock())
        if now != self._second:
            self._tell_left_out()
            self._second, self._logged = now, 0
        if self._logged < LINES_PER_S:
            self._logged += 1
            self._on_line(line)
        else:
            self._left_out += 1

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._on_line(f"{self._left_out} more lines are not shown: too many a second")
            self._left_out = 0

    def _safe(self, raw: bytes) -> str:
        """Masked before it is cut: a cut could leave half a key unmasked."""
        text = printable(raw)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return without_keys(text)[:LINE_CHARACTERS]
