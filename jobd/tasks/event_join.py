"""Joins adjacent deltas of a model's answer into fewer, longer events, whose texts add up to the same."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.job.history import HandlerEvent
from jobd.openai.deltas import REASONING, TOKEN, TOOL_CALL

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Most characters of a joined event. Its data has at most 16 KB, and no character takes more than 6 bytes there.
MAX_JOINED_CHARS = 2000

#: The field of each type of event whose text grows.
_TEXT_FIELD = {TOKEN: "text", REASONING: "text", TOOL_CALL: "arguments"}
#: The fields of an event that adds nothing else than such a text.
_FIELDS = {TOKEN: {"text"}, REASONING: {"text"}, TOOL_CALL: {"index", "arguments"}}


def joined(events: Iterable[HandlerEvent]) -> deque[HandlerEvent]:
    """The same events, with adjacent deltas joined as far as one event may be long."""
    found: deque[HandlerEvent] = deque()
    open_run: _Run | None = None
    for event in events:
        if open_run is not None:
            if open_run.takes(event):
                continue
            found.append(open_run.event())
        open_run = _run_of(event)
        if open_run is None:
            found.append(event)
    if open_run is not None:
        found.append(open_run.event())
    return found


class _Run:
    """An event, and the texts of those that were joined to it."""

    def __init__(self, first: HandlerEvent, data: dict[str, Any]) -> None:
        self._first = first
        self._data = data
        self._field = _TEXT_FIELD[first.type]
        self._texts: list[str] = [data[self._field]]
        self._chars = len(data[self._field])

    def takes(self, event: HandlerEvent) -> bool:
        """Whether the event is part of this one from now on."""
        if event.type != self._first.type or event.step != self._first.step:
            return False
        data = _data_of(event)
        if data is None or data.keys() != _FIELDS[event.type] or data.get("index") != self._data.get("index"):
            return False
        text = data[self._field]
        if self._chars + len(text) > MAX_JOINED_CHARS:
            return False
        self._texts.append(text)
        self._chars += len(text)
        return True

    def event(self) -> HandlerEvent:
        if len(self._texts) == 1:
            return self._first
        data = msgspec.json.encode({**self._data, self._field: "".join(self._texts)})
        return HandlerEvent(self._first.type, self._first.ts, self._first.step, msgspec.Raw(data))


def _run_of(event: HandlerEvent) -> _Run | None:
    """None: nothing can be joined to the event."""
    data = _data_of(event)
    return None if data is None else _Run(event, data)


def _data_of(event: HandlerEvent) -> dict[str, Any] | None:
    """The data of a delta whose text is a text; None: of anything else."""
    field = _TEXT_FIELD.get(event.type)
    if field is None:
        return None
    data = msgspec.json.decode(event.data)
    return data if isinstance(data, dict) and isinstance(data.get(field), str) else None
