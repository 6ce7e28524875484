"""What the job of a call ended with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from anyio import to_thread

from jobd.engine.results import ResultLost
from jobd.http.answers import read_job
from jobd.http.result import lost_result
from jobd.openai.errors import OpenAIError, error_of_job

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.http.endpoint import Call


async def result_of(call: Call, job_id: UUID) -> Any:
    """The decoded result of a job that has ended; raises OpenAIError for one without."""
    job = await read_job(call, job_id)
    if job.status in ("error", "canceled"):
        raise error_of_job(job.status, None if job.error is None else msgspec.json.decode(job.error))
    if job.status != "done":
        message = "jobd stops, and the job goes on afterwards; send the call again"
        raise OpenAIError(503, message, code="unavailable", retry_after_s=1)
    if job.result_ref is not None:
        try:
            opened = await call.services.results.open(job.result_ref)
        except ResultLost as error:
            raise lost_result(job_id, error) from None
        with opened.file:
            return msgspec.json.decode(await to_thread.run_sync(opened.file.read))
    return None if job.result is None else msgspec.json.decode(job.result)
