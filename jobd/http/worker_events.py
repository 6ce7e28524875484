"""`POST /internal/worker/events`: events that an HTTP worker emits for one job; `.../batch`: for several jobs.

The handlers keep the names `tell` and `tell_batch`, which are operation ids of the OpenAPI document.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.http.body import read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.job.history import RESERVED, HandlerEvent
from jobd.job.model import LeaseLost
from jobd.lifecycle.events import EventBatch, Kept, OutOfStep
from jobd.wire.events import (
    EventsAnswer,
    EventsBatchAnswer,
    EventsBatchRequest,
    EventsRequest,
    JobEvents,
    WorkerEvent,
)
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.lifecycle.events import Answer

#: Largest body in bytes for one job.
BODY_BYTES = 1 << 20
#: Largest body in bytes for several jobs; the largest body of one job and its envelope fit.
BATCH_BYTES = 4 << 20
#: Largest data of one event in bytes of JSON.
DATA_BYTES = 16_384


async def tell(call: Call) -> Response:
    asked = await read_json(call.request, EventsRequest, BODY_BYTES)
    now_ms = int(time.time() * 1000)
    batch = _batch_of(asked, [_event_of(f"$.events[{n}]", n, event, now_ms) for n, event in enumerate(asked.events)])
    return json_answer(_answer(LeaseLost() if batch is None else await call.services.engine.emit(batch)))


async def tell_batch(call: Call) -> Response:
    asked = await read_json(call.request, EventsBatchRequest, BATCH_BYTES)
    now_ms = int(time.time() * 1000)
    batches = [
        _batch_of(job, [_event_of(f"$.jobs[{n}].events[{m}]", n, event, now_ms) for m, event in enumerate(job.events)])
        for n, job in enumerate(asked.jobs)
    ]
    answers = iter(await call.services.engine.emit_many([batch for batch in batches if batch is not None]))
    kept = [_answer(LeaseLost() if batch is None else next(answers)) for batch in batches]
    return json_answer(EventsBatchAnswer(jobs=kept))


def _batch_of(asked: EventsRequest | JobEvents, events: list[HandlerEvent]) -> EventBatch | None:
    """None if its ids are none of ours, and so as wrong as those of another."""
    try:
        job_id, lease_token = UUID(asked.job_id), UUID(asked.lease_token)
    except ValueError:
        return None
    return EventBatch(job_id=job_id, lease_token=lease_token, events=events, emitted_n=asked.offset)


def _answer(answer: Answer | Exception) -> EventsAnswer:
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, Kept):
        return EventsAnswer(ok=True, last_event_id=str(answer.last))
    if isinstance(answer, OutOfStep):
        return EventsAnswer(ok=False, reason="out_of_step", offset=answer.emitted_n)
    return EventsAnswer(ok=False, reason="lease_lost")


def _event_of(where: str, index: int, event: WorkerEvent, now_ms: int) -> HandlerEvent:
    if event.type in RESERVED:
        raise ApiError("invalid", f"{where}.type: {event.type} is emitted by jobd itself; choose another", index=index)
    data = msgspec.json.encode(event.data)
    if len(data) > DATA_BYTES:
        raise ApiError("too_large", f"{where}.data has {len(data)} bytes, the limit is {DATA_BYTES}", index=index)
    return HandlerEvent(event.type, now_ms if event.ts is None else event.ts, event.step, msgspec.Raw(data))


ENDPOINTS = (
    post(
        "/internal/worker/events",
        "worker",
        tell,
        "Tell what happens in a job: progress, tokens, log lines",
        answers={200: EventsAnswer},
        problems=("too_large",),
        body=EventsRequest,
    ),
    post(
        "/internal/worker/events/batch",
        "worker",
        tell_batch,
        "Tell what happens in several jobs at once",
        answers={200: EventsBatchAnswer},
        problems=("too_large",),
        body=EventsBatchRequest,
    ),
)
