"""`/v1/responses`: make, read, follow, cancel and delete responses. A response is one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import msgspec
from msgspec import Meta

from jobd.http.endpoint import Call, Parameter, delete, get, json_answer, post
from jobd.http.openai.calls import ANSWER_HEADERS, JOB_ID_HEADER, PARAMETERS, PROBLEMS, job_of, make_call, read_call
from jobd.http.openai.response_answer import ResponseStream, WholeResponse, forget
from jobd.http.openai.response_reading import FoundResponse, find_response, read_context, read_response
from jobd.http.query import read_query
from jobd.http.wait import wait_for_end
from jobd.openai.errors import InvalidCall, OpenAIError
from jobd.openai.responses_items import items_of
from jobd.openai.responses_request import conversation_in, read_request, remembered_in, response_call
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.openai.responses_stream import ResponseReader

#: Header that says in how many milliseconds to ask again.
POLL_AFTER = "openai-poll-after-ms"
#: Milliseconds after which a response that has not ended is worth another look, by its status: a model that has begun
#: takes seconds, and one that waits for others longer.
POLL_AFTER_MS = {"queued": 1000, "in_progress": 500}
#: Seconds that a cancel waits for a job that was told to stop. Slots of this node stop at once; workers elsewhere hear
#: of it with their next heartbeat.
CANCEL_S = 5.0
#: Items of a page, unless the query says how many.
PAGE = 20

RESPONSE_ID = Parameter("id", str, "The id of a response.", "path")
READ_PARAMETERS = (
    RESPONSE_ID,
    Parameter("stream", bool, "Follow the response as server-sent events."),
    Parameter(
        "starting_after",
        Annotated[int, Meta(ge=0)],
        "With `stream`: only events after the one with this sequence number.",
    ),
    Parameter("include", list[str], "Accepted; there is nothing to add.", "query", True),
    Parameter("include[]", list[str], "Accepted; there is nothing to add.", "query", True),
    Parameter("include_obfuscation", bool, "Accepted; nothing is obfuscated."),
)
ITEM_PARAMETERS = (
    RESPONSE_ID,
    Parameter("limit", Annotated[int, Meta(ge=1, le=100)], f"Largest number of items; {PAGE} without it."),
    Parameter("order", Literal["asc", "desc"], "Oldest or newest first; `desc` without it."),
    Parameter("after", str, "Only items behind the one with this id."),
    Parameter("include", list[str], "Accepted; there is nothing to add.", "query", True),
    Parameter("include[]", list[str], "Accepted; there is nothing to add.", "query", True),
)


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


async def create_response(call: Call) -> Any:
    config = call.services.config()
    request = read_request(await read_call(call), config)
    context = [] if request.previous_id is None else await read_context(call, request.previous_id)
    asked = response_call(request, config, context)
    about = remembered_in(asked.payload)
    assert about is not None, "a response remembers what it is"
    job = job_of(call, asked)
    if about.stream:
        return ResponseStream(call, FoundResponse(job.id, asked.payload, about), job)
    if not about.background:
        return WholeResponse(call, job, asked.payload, about)
    made = await make_call(call, job)
    found = FoundResponse(made.job_id, asked.payload, about)
    return _answer(found, await read_response(call, found))


async def get_response(call: Call) -> Any:
    query = _query(call, READ_PARAMETERS)
    found = await find_response(call, call.request.path_params["id"])
    if query.get("stream"):
        return ResponseStream(call, found, after=query.get("starting_after", -1))
    if "starting_after" in query:
        raise InvalidCall("starting_after", "starting_after is only for stream = true")
    return _answer(found, await read_response(call, found))


async def cancel_response(call: Call) -> Response:
    """One that has ended stays as it is."""
    found = await find_response(call, call.request.path_params["id"])
    await _end(call, found)
    return _answer(found, await read_response(call, found))


async def delete_response(call: Call) -> Response:
    """One that has not ended is canceled first."""
    found = await find_response(call, call.request.path_params["id"])
    await _end(call, found)
    if not await forget(call, found.job_id):
        message = f"response {found.id} was told to stop and has not done so yet; delete it again in a moment"
        raise OpenAIError(503, message, code="unavailable", retry_after_s=1)
    return json_answer(DeletedResponse(id=found.id))


async def list_input_items(call: Call) -> Response:
    query = _query(call, ITEM_PARAMETERS)
    found = await find_response(call, call.request.path_params["id"])
    own = conversation_in(found.payload, found.about)[found.about.own_from :]
    items = items_of(own, found.job_id.hex)
    if query.get("order", "desc") == "desc":
        items.reverse()
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidCall("after", f"response {found.id} has no input item {after[:64]!r}")
        items = items[ids.index(after) + 1 :]
    page = items[: query.get("limit", PAGE)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return json_answer(InputItems(data=page, has_more=len(items) > len(page), **ends))


def _query(call: Call, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    try:
        return read_query(call.request, parameters)
    except ApiError as error:
        raise InvalidCall(None, error.detail, "invalid_value") from None


async def _end(call: Call, found: FoundResponse) -> None:
    """Cancel the job, and wait a while until it has ended."""
    with call.services.tailer.waiting(found.job_id) as waiter:
        await call.services.engine.cancel([found.job_id])
        if not (await read_response(call, found)).is_over:
            with anyio.move_on_after(CANCEL_S):
                await wait_for_end(call.request, waiter, CANCEL_S)


def _answer(found: FoundResponse, response: ResponseReader) -> Response:
    headers = {JOB_ID_HEADER: str(found.job_id)}
    if response.status in POLL_AFTER_MS:
        headers[POLL_AFTER] = str(POLL_AFTER_MS[response.status])
    return json_answer(response.as_json(), 200, headers)


RESPONSE_HEADERS = {
    **ANSWER_HEADERS,
    POLL_AFTER: "Of a response that has not ended: in how many milliseconds to ask again.",
}
MISSING_RESPONSE = ("response_not_found", "invalid_value", "result_elsewhere", "result_lost")
ENDPOINTS = (
    post(
        "/v1/responses",
        "client",
        create_response,
        "Let a model respond: at its end, as a stream, or in the background",
        answers={200: dict[str, Any]},
        problems=(
            *PROBLEMS,
            *("invalid_value", "unsupported_parameter", "context_length_exceeded", "previous_response_not_found"),
        ),
        body=dict[str, Any],
        parameters=PARAMETERS,
        headers=RESPONSE_HEADERS,
        own_jobs=True,
    ),
    get(
        "/v1/responses/{id}",
        "client",
        get_response,
        "Read a response, or follow it from any of its events on",
        answers={200: dict[str, Any]},
        problems=MISSING_RESPONSE,
        parameters=READ_PARAMETERS,
        headers=RESPONSE_HEADERS,
        own_jobs=True,
    ),
    post(
        "/v1/responses/{id}/cancel",
        "client",
        cancel_response,
        "Cancel a response; one that has ended stays as it is",
        answers={200: dict[str, Any]},
        problems=MISSING_RESPONSE,
        parameters=(RESPONSE_ID,),
        headers=RESPONSE_HEADERS,
        own_jobs=True,
    ),
    delete(
        "/v1/responses/{id}",
        "client",
        delete_response,
        "Delete a response; one that has not ended is canceled first",
        answers={200: DeletedResponse},
        problems=MISSING_RESPONSE,
        parameters=(RESPONSE_ID,),
        own_jobs=True,
    ),
    get(
        "/v1/responses/{id}/input_items",
        "client",
        list_input_items,
        "List the input items of a response",
        answers={200: InputItems},
        problems=MISSING_RESPONSE,
        parameters=ITEM_PARAMETERS,
        own_jobs=True,
    ),
)
