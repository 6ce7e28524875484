"""`POST /internal/worker/events`: what a worker tells about its job, in batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.api.body import read_json
from jobd.api.endpoint import Call, Endpoint, json_answer
from jobd.api.problems import ApiError
from jobd.job.history import RESERVED, Told
from jobd.lifecycle.events import Kept, OutOfStep, Telling
from jobd.wire.events import EventsAnswer, EventsRequest, WorkerEvent

if TYPE_CHECKING:
    from starlette.responses import Response

BODY_BYTES = 1 << 20
DATA_BYTES = 16_384


async def tell(call: Call) -> Response:
    asked = await read_json(call.request, EventsRequest, BODY_BYTES)
    now_ms = int(time.time() * 1000)
    events = [_told(n, event, now_ms) for n, event in enumerate(asked.events)]
    try:
        job_id, lease_token = UUID(asked.job_id), UUID(asked.lease_token)
    except ValueError:  # none of ours, so as wrong as that of another
        return json_answer(EventsAnswer(ok=False, reason="lease_lost"))
    telling = Telling(job_id=job_id, lease_token=lease_token, events=events, told_n=asked.offset)
    answer = await call.services.engine.tell(telling)
    if isinstance(answer, Kept):
        return json_answer(EventsAnswer(ok=True, last_event_id=str(answer.last)))
    if isinstance(answer, OutOfStep):
        return json_answer(EventsAnswer(ok=False, reason="out_of_step", offset=answer.told_n))
    return json_answer(EventsAnswer(ok=False, reason="lease_lost"))


def _told(n: int, event: WorkerEvent, now_ms: int) -> Told:
    if event.type in RESERVED:
        raise ApiError("invalid", f"$.events[{n}].type: {event.type} is told by jobd itself; choose another", index=n)
    data = msgspec.json.encode(event.data)
    if len(data) > DATA_BYTES:
        raise ApiError("too_large", f"$.events[{n}].data has {len(data)} bytes, the limit is {DATA_BYTES}", index=n)
    return Told(event.type, now_ms if event.ts is None else event.ts, event.step, msgspec.Raw(data))


ENDPOINTS = (
    Endpoint(
        "POST",
        "/internal/worker/events",
        "worker",
        tell,
        "Tell what happens in a job: progress, tokens, log lines",
        {200: EventsAnswer},
        problems=("too_large",),
        body=EventsRequest,
    ),
)
