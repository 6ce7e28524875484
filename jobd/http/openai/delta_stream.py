"""The deltas of a call's job as they come, up to what the job ended with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.http.openai.ended import result_of
from jobd.job.history import LAST_EVENTS
from jobd.openai.answer import answer_of
from jobd.openai.deltas import DeltaReader, Restarted
from jobd.openai.errors import OpenAIError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from jobd.follow.followers import EventFollower
    from jobd.http.endpoint import Call
    from jobd.job.history import Cursor, Event
    from jobd.openai.answer import ModelAnswer
    from jobd.openai.deltas import Delta


class DeltaStream:
    """Reads one job; `next` raises OpenAIError or ApiError when there will be no answer."""

    def __init__(self, call: Call, job_id: UUID, follower: EventFollower[Cursor]) -> None:
        self._call = call
        self._job_id = job_id
        self._follower = follower
        self._reader = DeltaReader()
        #: The whole answer, once the job is done; no deltas follow.
        self.answer: ModelAnswer | None = None

    async def next(self, timeout_s: float) -> list[Delta]:
        """The deltas that have come; none after `timeout_s`, or with the whole answer."""
        until = anyio.current_time() + timeout_s
        deltas: list[Delta] = []
        while not deltas and self.answer is None and (left_s := until - anyio.current_time()) > 0:
            events = await self._follower.next_events(left_s)
            if self._follower.was_passed_over:
                self._call.services.tailer.has_room_again(self._follower)
            deltas += self._deltas(events)
            if self._follower.is_over and (not events or events[-1].type in LAST_EVENTS):
                result = await result_of(self._call, self._job_id)
                deltas += self._reader.rest(result)
                self.answer = answer_of(result)
        return deltas

    def _deltas(self, events: list[Event]) -> Iterator[Delta]:
        for event in events:
            delta = self._reader.read(event)
            if isinstance(delta, Restarted):
                raise OpenAIError(502, _RESTARTED, code="stream_broken", should_retry=False)
            if delta is not None:
                yield delta


_RESTARTED = (
    "the worker that computed this answer was lost in the middle of it, and another attempt has begun;"
    " send the call again"
)
