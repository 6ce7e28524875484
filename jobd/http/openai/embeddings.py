"""`POST /v1/embeddings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.http.endpoint import Call, post
from jobd.http.openai.calls import ANSWER_HEADERS, PARAMETERS, PROBLEMS, job_of, read_call
from jobd.http.openai.whole_call import WholeCall
from jobd.openai.embedding_answer import EmbeddingList, embedding_list
from jobd.openai.embedding_request import embedding_call

if TYPE_CHECKING:
    from uuid import UUID


async def embed(call: Call) -> Any:
    asked, encoding = embedding_call(await read_call(call), call.services.config())

    def shaped(job_id: UUID, result: Any) -> EmbeddingList:
        return embedding_list(asked.model.id, result, encoding)

    return WholeCall(call, job_of(call, asked), shaped)


ENDPOINTS = (
    post(
        "/v1/embeddings",
        "client",
        embed,
        "Turn texts into vectors",
        answers={200: EmbeddingList},
        problems=PROBLEMS,
        body=dict[str, Any],
        parameters=PARAMETERS,
        headers=ANSWER_HEADERS,
        own_jobs=True,
    ),
)
