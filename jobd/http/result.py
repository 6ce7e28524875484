"""`GET /v1/jobs/{id}/result`: the result alone, from the row or, when it is a large one, from its file in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from msgspec import Raw
from starlette.responses import Response

from jobd.engine.results import ResultLost
from jobd.http.answers import job_id_in, read_job
from jobd.http.endpoint import HEADERS, JSON, Call, get
from jobd.http.hang_up import hang_up
from jobd.http.jobs import JOB_ID, MISSING
from jobd.http.query import read_query
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.types import Receive, Scope, Send

    from jobd.engine.results import OpenResult
    from jobd.files.storage import OpenFile

#: Bytes that are read from the file and sent at once.
PIECE_BYTES = 256 * 1024
#: Seconds in which a client must take a piece before the answer is cut.
WRITE_S = 30.0
#: Retry-After in seconds for a result that another node has: behind a load balancer the next call may reach it.
ELSEWHERE_S = 1


class FileAnswer:
    """A file as the answer. One that cannot be sent whole is cut off, which its announced length shows."""

    def __init__(self, opened: OpenResult | OpenFile, media_type: str = JSON) -> None:
        self._file = opened.file
        self._size = opened.size
        self._media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            headers = {"Content-Type": self._media_type, "Content-Length": str(self._size), **HEADERS}
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
                await self._write(send, 0 if scope["method"] == "HEAD" else self._size)
                tasks.cancel_scope.cancel()

    async def _write(self, send: Send, left: int) -> None:
        while left:
            piece = await to_thread.run_sync(self._file.read, min(PIECE_BYTES, left))
            left -= len(piece)
            with anyio.move_on_after(WRITE_S) as writing:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not piece or writing.cancelled_caught:
                return  # the file was cut while it was read, or nobody reads
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await hang_up(receive)
        scope.cancel()


async def get_result(call: Call) -> Any:
    job_id = job_id_in(call.request.path_params["id"])
    read_query(call.request, ())
    job = await read_job(call, job_id)
    if job.result_ref is not None:
        try:
            return FileAnswer(await call.services.results.open(job.result_ref))
        except ResultLost as error:
            raise lost_result(job_id, error) from None
    if job.result is None:
        raise ApiError("no_result", f"job {job_id} is {job.status} and has no result")
    return Response(job.result.encode(), media_type=JSON, headers=HEADERS)


def lost_result(job_id: UUID, error: ResultLost) -> ApiError:
    """Why the file of a result is not here."""
    if error.node is None:
        return ApiError("result_lost", f"job {job_id} is done, but {error}")
    return ApiError(
        "result_elsewhere",
        f"the result of job {job_id} is on node {error.node}, not on this one; ask that node, or again"
        " behind a load balancer, or keep data_dir/results on a disk that all nodes share",
        headers={"Retry-After": str(ELSEWHERE_S)},
        node=error.node,
    )


ENDPOINTS = (
    get(
        "/v1/jobs/{id}/result",
        "client",
        get_result,
        "Read the result of a job, however large",
        answers={200: Raw},
        problems=(*MISSING, "invalid", "no_result", "result_elsewhere", "result_lost"),
        parameters=(JOB_ID,),
        own_jobs=True,
    ),
)
