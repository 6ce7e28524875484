"""Reading a response: its job, and the history of that, folded into the object and the conversation that it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.http.answers import read_job
from jobd.http.openai.ended import result_of
from jobd.job.history import START, events_after
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.openai.errors import InvalidCall, OpenAIError
from jobd.openai.responses_request import (
    Remembered,
    conversation_in,
    job_id_of,
    previous_not_found,
    remembered_in,
    response_id,
)
from jobd.openai.responses_stream import ResponseReader
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.http.endpoint import Call

#: Statuses of a response that another can continue.
CONTINUED = ("completed", "incomplete")


class FoundResponse(NamedTuple):
    """The job of a response."""

    job_id: UUID
    payload: dict[str, Any]
    about: Remembered

    @property
    def id(self) -> str:
        return response_id(self.job_id)


async def find_response(call: Call, text: str) -> FoundResponse:
    """The response with this id, if the caller may see it; raises OpenAIError `response_not_found`."""
    job_id = job_id_of(text)
    found = None if job_id is None else await _find(call, job_id)
    if found is None or not found.about.store:
        raise OpenAIError(404, f"there is no response {text[:64]!r}", code="response_not_found")
    return found


async def _find(call: Call, job_id: UUID) -> FoundResponse | None:
    try:
        job = await read_job(call, job_id)
    except ApiError as error:
        if error.code in ("unknown_job", "gone_job"):
            return None
        raise
    payload: dict[str, Any] = msgspec.json.decode(job.payload)
    about = remembered_in(payload)
    return None if about is None else FoundResponse(job_id, payload, about)


async def read_response(call: Call, found: FoundResponse) -> ResponseReader:
    """The response as it stands."""
    reader, after = ResponseReader(*found), START
    while True:
        (record,) = await read_history(call.services.database, [HistoryPlace(found.job_id, after)])
        events = [] if record is None else events_after(record, after)
        for event in events:
            reader.read(event, await result_of(call, found.job_id) if event.type == "done" else None)
        if record is None or not record.is_cut or not events:
            return reader
        after = events[-1].cursor


async def read_context(call: Call, previous_id: UUID) -> list[dict[str, Any]]:
    """The conversation up to the end of an earlier response; raises InvalidCall."""
    found = await _find(call, previous_id)
    if found is None or not found.about.store:
        raise previous_not_found(response_id(previous_id))
    reader = await read_response(call, found)
    if reader.status not in CONTINUED:
        message = f"response {found.id} is {reader.status}; only one that is completed or incomplete can be continued"
        raise InvalidCall("previous_response_id", message, "previous_response_not_found")
    return [*conversation_in(found.payload, found.about), *reader.messages()]
