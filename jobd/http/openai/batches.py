"""`/v1/batches`: many calls in one file, answered in files. The work is done by `jobd.batches.service`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from jobd.batches.table import FINAL, NewBatch, cancel_batch, create_batch, list_batches, read_batch
from jobd.http.body import read_json
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.openai.files import find_file
from jobd.http.query import read_query
from jobd.http.submit import sender_of
from jobd.openai.batch_objects import (
    ENDPOINTS as LINE_ENDPOINTS,
)
from jobd.openai.batch_objects import (
    WINDOW_S,
    BatchFault,
    BatchFaults,
    BatchList,
    BatchObject,
    BatchRequest,
    LineCounts,
    batch_id_in,
    batch_id_text,
)
from jobd.openai.errors import InvalidCall, refused
from jobd.openai.file_objects import file_id_text
from jobd.store.ids import new_id

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from starlette.responses import Response

    from jobd.batches.table import StoredBatch

#: Largest body in bytes: 16 pairs of metadata take 60 KB at most.
BODY_BYTES = 128 * 1024
#: Most batches in an answer, as OpenAI has it.
MAX_BATCHES = 100
#: Batches in an answer when the query names no limit, as OpenAI has it.
PAGE = 20

BATCH_ID = Parameter("id", str, "The id of a batch: `batch_...`.", "path")
LIST = (
    Parameter("after", str, "Only batches behind this one: `last_id` of the page before."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_BATCHES)], f"Largest number of batches; {PAGE} without it."),
)
_faults = msgspec.json.Decoder(list[BatchFault]).decode
_decode = msgspec.json.Decoder().decode


def batch_object(batch: StoredBatch) -> BatchObject:
    ended = batch.finished_at is not None
    return BatchObject(
        id=batch_id_text(batch.id),
        endpoint=batch.endpoint,
        errors=None if batch.errors is None else BatchFaults(data=_faults(batch.errors)),
        input_file_id=file_id_text(batch.input_file_id),
        status=batch.status,  # type: ignore[arg-type]  # the table has no other words
        output_file_id=_file(batch.output_file_id),
        error_file_id=_file(batch.error_file_id),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=_seconds(batch.finalizing_at),
        cancelling_at=_seconds(batch.cancelling_at),
        completed_at=_ended_at(batch, "completed"),
        failed_at=_ended_at(batch, "failed"),
        expired_at=_ended_at(batch, "expired"),
        cancelled_at=_ended_at(batch, "cancelled"),
        request_counts=LineCounts(
            total=batch.total,
            completed=batch.completed if ended else min(batch.done, batch.total),
            failed=batch.failed if ended else min(batch.error, batch.total),
        ),
        metadata=None if batch.metadata is None else _decode(batch.metadata),
        model=batch.model,
        usage=None if batch.usage is None else _decode(batch.usage),
    )


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _ended_at(batch: StoredBatch, status: str) -> int | None:
    return _seconds(batch.finished_at) if batch.status == status else None


def _file(file_id: UUID | None) -> str | None:
    return None if file_id is None else file_id_text(file_id)


async def find_batch(call: Call, text: str) -> StoredBatch:
    """The batch of this id, if the caller may see it; raises OpenAIError `no_such_batch`."""
    batch_id = batch_id_in(text)
    batch = None if batch_id is None else await read_batch(call.services.database, batch_id)
    if batch is None or call.principal.sees not in (None, batch.owner):
        raise refused("no_such_batch", f"there is no batch {text[:64]!r}, or it ended long ago and was deleted")
    return batch


async def make_batch(call: Call) -> Response:
    services = call.services
    services.disk.check()
    asked = await read_json(call.request, BatchRequest, BODY_BYTES)
    _check(asked)
    file = await find_file(call, asked.input_file_id)
    if file.purpose != "batch":
        message = f"{asked.input_file_id} has the purpose {file.purpose}; send it with the purpose batch"
        raise InvalidCall("input_file_id", message)
    expiry = asked.output_expires_after
    new = NewBatch(
        id=new_id(),
        owner=sender_of(call).owner,
        endpoint=asked.endpoint,
        input_file_id=file.id,
        metadata=None if asked.metadata is None else msgspec.json.encode(asked.metadata).decode(),
        keep_output_s=None if expiry is None else float(expiry.seconds),
        window_s=float(WINDOW_S),
    )
    if not await create_batch(services.database, new):
        raise refused("no_such_file", f"{asked.input_file_id} was deleted just now")
    services.batches.wakeup.set()
    return json_answer(batch_object(await find_batch(call, batch_id_text(new.id))))


def _check(asked: BatchRequest) -> None:
    if asked.endpoint not in LINE_ENDPOINTS:
        message = f"endpoint must be one of {', '.join(LINE_ENDPOINTS)} (got {asked.endpoint[:64]!r})"
        raise InvalidCall("endpoint", message, "unsupported_value")
    if asked.completion_window != "24h":
        message = f"completion_window must be 24h (got {asked.completion_window[:64]!r})"
        raise InvalidCall("completion_window", message, "unsupported_value")


async def get_batches(call: Call) -> Response:
    query = read_query(call.request, LIST)
    after = (await find_batch(call, query["after"])).id if "after" in query else None
    most = query.get("limit", PAGE)
    found = await list_batches(call.services.database, most=most + 1, after=after, owner=call.principal.sees)
    shown = [batch_object(batch) for batch in found[:most]]
    return json_answer(
        BatchList(
            data=shown,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(found) > most,
        )
    )


async def get_batch(call: Call) -> Response:
    return json_answer(batch_object(await find_batch(call, call.request.path_params["id"])))


async def end_batch(call: Call) -> Response:
    """Asked for again it changes nothing; what is done is kept."""
    batch = await find_batch(call, call.request.path_params["id"])
    if await cancel_batch(call.services.database, batch.id):
        call.services.batches.wakeup.set()
    batch = await find_batch(call, batch_id_text(batch.id))
    if batch.status in FINAL - {"cancelled"}:
        raise refused("batch_ended", f"{batch_id_text(batch.id)} is {batch.status}, so there is nothing to cancel")
    return json_answer(batch_object(batch))


_MISSING = ("no_such_batch",)
ENDPOINTS = (
    post(
        "/v1/batches",
        "client",
        make_batch,
        "Run the calls in a file",
        answers={200: BatchObject},
        problems=("invalid", "disk_low", "unsupported_value", "no_such_file"),
        body=BatchRequest,
        own_jobs=True,
    ),
    get(
        "/v1/batches",
        "client",
        get_batches,
        "List batches, newest first",
        answers={200: BatchList},
        problems=("invalid", *_MISSING),
        parameters=LIST,
        own_jobs=True,
    ),
    get(
        "/v1/batches/{id}",
        "client",
        get_batch,
        "Read a batch",
        answers={200: BatchObject},
        problems=_MISSING,
        parameters=(BATCH_ID,),
        own_jobs=True,
    ),
    post(
        "/v1/batches/{id}/cancel",
        "client",
        end_batch,
        "Cancel a batch; what is done is kept",
        answers={200: BatchObject},
        problems=(*_MISSING, "batch_ended"),
        parameters=(BATCH_ID,),
        own_jobs=True,
    ),
)
