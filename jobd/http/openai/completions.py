"""`POST /v1/completions`: the older call without messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.http.endpoint import Call, post
from jobd.http.openai.calls import ANSWER_HEADERS, PARAMETERS, PROBLEMS, job_of, read_call
from jobd.http.openai.streamed_call import StreamedCall
from jobd.http.openai.whole_call import WholeCall
from jobd.openai.answer import answer_of
from jobd.openai.completion_answer import CompletionChunks, TextCompletion, text_completion
from jobd.openai.completion_request import completion_call

if TYPE_CHECKING:
    from uuid import UUID


async def complete_text(call: Call) -> Any:
    asked = completion_call(await read_call(call), call.services.config())
    job, model = job_of(call, asked), asked.model.id

    def chunks(job_id: UUID) -> CompletionChunks:
        return CompletionChunks(job_id, model, include_usage=asked.include_usage)

    def shaped(job_id: UUID, result: Any) -> TextCompletion:
        return text_completion(job_id, model, answer_of(result))

    return StreamedCall(call, job, chunks) if asked.is_stream else WholeCall(call, job, shaped)


ENDPOINTS = (
    post(
        "/v1/completions",
        "client",
        complete_text,
        "Let a model go on with a text, at once or as a stream",
        answers={200: TextCompletion},
        problems=PROBLEMS,
        body=dict[str, Any],
        parameters=PARAMETERS,
        headers=ANSWER_HEADERS,
        own_jobs=True,
    ),
)
