"""`POST /v1/jobs/batch`: many jobs in one commit, all or none; a JSON array, or one JSON object a line.

Each item is checked by itself, with the limits of a single submit, and the first that is bad is named by its place;
only what breaks the array as such has none.
While a long batch is checked, other requests get their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from anyio.lowlevel import checkpoint

from jobd.http.answers import check_seen, missing
from jobd.http.body import JSON_TYPES, check_content_type, content_type, read_bytes
from jobd.http.dependencies import Refs, link_problem
from jobd.http.endpoint import JSON, Call, json_answer, post
from jobd.http.jobs import IDEMPOTENCY_KEY, SUBMIT_PROBLEMS, TRACE_HEADERS, key_busy, key_mismatch, queue_full
from jobd.http.submit import check_memory, checked_job, idempotency_key, key_in, new_job, sender_of
from jobd.lifecycle.depend import LinkRefused
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, KeyBusy, KeyMismatch, QueueFull
from jobd.lifecycle.waiting import statuses_of
from jobd.store.ids import new_ids
from jobd.wire import gateway as wire
from jobd.wire.json_check import BadPayload, HasBom, NotJson, NotUtf8, TooDeep, check_items, check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from jobd.lifecycle.enqueue import Enqueued, NewJob

#: Largest body of a batch of jobs in bytes.
BODY_BYTES = 64 * 1024 * 1024
#: Media type of one JSON object a line.
LINES = "application/x-ndjson"
#: Largest broken array in bytes that is parsed again to name its fault; for a larger one that takes too long.
NAMED_BYTES = 1024 * 1024
#: Items that are checked before the event loop runs other tasks: 1 to 5 ms of work.
ITEMS_PER_TURN = 100
#: Bytes of items that are checked before the event loop runs other tasks, for items that are large.
BYTES_PER_TURN = 256 * 1024

_BOM = b"\xef\xbb\xbf"
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def submit_batch(call: Call) -> Response:
    call.services.disk.check()
    check_content_type(call.request, JSON_TYPES | {LINES})
    key = key_in(call)
    body = await read_bytes(call.request, BODY_BYTES)
    are_lines = content_type(call.request).lower() == LINES
    items = _lines(body) if are_lines else _array(body)
    if not items:
        raise ApiError("invalid", "the batch is empty; send 1 to 10 000 jobs")
    if len(items) > wire.MAX_BATCH:
        raise ApiError("too_many_items", f"the batch has {len(items)} jobs, the limit is {wire.MAX_BATCH}")
    whole = None if key is None else idempotency_key(call, key, "/v1/jobs/batch", body)
    jobs = await _new_jobs(call, items, whole, are_lines=are_lines)
    answers = await call.services.engine.enqueue_whole(jobs)
    await _refuse_first_refused(call, answers)
    return json_answer(wire.BatchAnswer(await _entries(call, answers)), 202)


def _lines(body: bytes) -> list[bytes]:
    if body.startswith(_BOM):
        raise HasBom("the body begins with a byte order mark; send it without")
    return [line for line in body.split(b"\n") if line.strip()]


def _array(body: bytes) -> Sequence[bytes]:
    try:
        return [bytes(item) for item in _decode_array(body)]
    except RecursionError:
        raise TooDeep("the JSON is nested deeper than 32") from None
    except msgspec.ValidationError:
        raise ApiError("invalid", "a batch must be a JSON array of jobs, or one job a line as " + LINES) from None
    except UnicodeDecodeError:
        raise NotUtf8("the JSON is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        if len(body) <= NAMED_BYTES:
            check_json(body, NAMED_BYTES)  # it has names for these faults
        raise NotJson(f"not JSON: {error}") from None


async def _new_jobs(
    call: Call, items: Sequence[bytes], whole: IdempotencyKey | None, *, are_lines: bool
) -> list[NewJob]:
    jobs: list[NewJob] = []
    refs = Refs()
    while len(jobs) < len(items):
        if jobs:
            await checkpoint()
        some = _one_turn(items, len(jobs))
        values = None if are_lines else check_items(some)  # each line must be JSON by itself
        jobs += _some_jobs(call, some, values, len(jobs), whole, refs)
    refs.check(jobs)
    return jobs


def _one_turn(items: Sequence[bytes], start: int) -> Sequence[bytes]:
    """As many items from there on as are checked before other tasks run; at least one."""
    size = 0
    for n, item in enumerate(items[start : start + ITEMS_PER_TURN]):
        size += len(item)
        if n and size > BYTES_PER_TURN:
            return items[start : start + n]
    return items[start : start + ITEMS_PER_TURN]


def _some_jobs(
    call: Call, items: Sequence[bytes], values: list[Any] | None, start: int, whole: IdempotencyKey | None, refs: Refs
) -> list[NewJob]:
    """The jobs of items that come behind `start` others; without `values` each is checked by itself."""
    config, runners, sender = call.services.config(), call.services.runners, sender_of(call)
    jobs = []
    for n, (job_id, item) in enumerate(zip(new_ids(len(items)), items, strict=True)):
        index = start + n
        key = None if whole is None else _part(whole, index)
        try:
            if values is None:
                jobs.append(new_job(job_id, item, config, key, runners, sender, refs))
            else:
                jobs.append(checked_job(job_id, item, values[n], config, key, runners, sender, refs))
            check_memory(jobs[-1], call.services.memory, config)
        except (ApiError, BadPayload) as error:
            detail = error.detail if isinstance(error, ApiError) else str(error)
            raise ApiError(error.code, f"item {index}: {detail}; nothing was accepted", index=index) from None
    return jobs


def _part(whole: IdempotencyKey, index: int) -> IdempotencyKey:
    """The key of one item: with a space, which no key that a client sends can have."""
    return IdempotencyKey(whole.principal, f"{whole.key} {index}", whole.body_hash, whole.life_s)


async def _refuse_first_refused(call: Call, answers: Sequence[Enqueued]) -> None:
    for index, answer in enumerate(answers):
        if isinstance(answer, Created):
            continue
        if isinstance(answer, KeyBusy):
            raise key_busy()
        if isinstance(answer, KeyMismatch):
            raise key_mismatch(index)
        if isinstance(answer, QueueFull):
            raise await queue_full(call, answer.queue, index)
        if isinstance(answer, LinkRefused):
            raise link_problem(answer, index)


async def _entries(call: Call, answers: Sequence[Enqueued]) -> list[wire.BatchEntry]:
    old = {answer.job_id for answer in answers if isinstance(answer, Existing)}
    statuses = await statuses_of(call.services.database, old) if old else {}
    for job_id in old - statuses.keys():
        raise await missing(call, job_id)
    await check_seen(call, old)
    return [
        wire.BatchEntry(
            answer.job_id,
            statuses.get(answer.job_id, "queued"),  # type: ignore[arg-type]  # the table has no other words
            not isinstance(answer, Created),
        )
        for answer in answers
        if isinstance(answer, Created | Existing)
    ]


ENDPOINTS = (
    post(
        "/v1/jobs/batch",
        "client",
        submit_batch,
        "Submit many jobs, all or none",
        answers={202: wire.BatchAnswer},
        problems=(*SUBMIT_PROBLEMS, "too_many_items", "too_many_dependencies"),
        body=list[wire.Submit],
        parameters=(IDEMPOTENCY_KEY, *TRACE_HEADERS),
        body_types=(JSON, LINES),
        own_jobs=True,
    ),
)
