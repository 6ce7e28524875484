"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.http.endpoint import Call, post
from jobd.http.openai.calls import ANSWER_HEADERS, PARAMETERS, PROBLEMS, job_of, read_call
from jobd.http.openai.streamed_call import StreamedCall
from jobd.http.openai.whole_call import WholeCall
from jobd.openai.answer import answer_of
from jobd.openai.chat_answer import ChatChunks, ChatCompletion, chat_completion
from jobd.openai.chat_request import chat_call

if TYPE_CHECKING:
    from uuid import UUID


async def chat(call: Call) -> Any:
    asked = chat_call(await read_call(call), call.services.config())
    job, model = job_of(call, asked), asked.model.id

    def chunks(job_id: UUID) -> ChatChunks:
        return ChatChunks(job_id, model, include_usage=asked.include_usage)

    def shaped(job_id: UUID, result: Any) -> ChatCompletion:
        return chat_completion(job_id, model, answer_of(result))

    return StreamedCall(call, job, chunks) if asked.is_stream else WholeCall(call, job, shaped)


ENDPOINTS = (
    post(
        "/v1/chat/completions",
        "client",
        chat,
        "Let a model answer a chat, at once or as a stream",
        answers={200: ChatCompletion},
        problems=PROBLEMS,
        body=dict[str, Any],
        parameters=PARAMETERS,
        headers=ANSWER_HEADERS,
        own_jobs=True,
    ),
)
