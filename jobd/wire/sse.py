"""Parses server-sent events out of bytes that arrive in any pieces, as the WHATWG standard says. Pure.

What was not ended by an empty line when the stream ends was never sent: a cut event is not an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class SseMessage(NamedTuple):
    #: Empty if the message has no id.
    id: str
    type: str
    data: str


class SseParser:
    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, part: bytes) -> Iterator[SseMessage]:
        """The messages that this part completes."""
        *lines, self._rest = _lines(self._rest + part)
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text:
                self._take(text)
            else:
                yield from self._whole()

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        else:
            self._fields[name] = value  # a comment has no name, and nobody asks for it

    def _whole(self) -> Iterator[SseMessage]:
        fields, data = self._fields, self._data
        self._fields, self._data = {}, []
        if data:
            yield SseMessage(fields.get("id", ""), fields.get("event") or "message", "\n".join(data))


def _lines(text: bytes) -> list[bytes]:
    """Lines with their ends; the last one has none yet and may be empty."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[-1].endswith(b"\n"):
        return [*lines, b""]
    return lines  # a final \r stays too: the \n that may follow belongs to it
