"""`POST /internal/worker/claim`: an HTTP worker claims jobs, with a long poll."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec import UNSET, Raw

from jobd.config.task_settings import heartbeat_s, lease_ttl_s
from jobd.http.body import read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.hang_up import hang_up
from jobd.http.worker_request import check_worker_id, is_draining
from jobd.lifecycle.inputs import read_inputs
from jobd.stream.keys import queue_of, stream_of
from jobd.wire import worker as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from msgspec import UnsetType
    from starlette.responses import Response

    from jobd.config.model import Leases
    from jobd.http.gateway import RunningRequest
    from jobd.lifecycle.claim import ClaimedJob

#: Shortest wait in seconds, also for `max_wait_ms` = 0: a dispatcher needs this long to find a job that is there.
SHORTEST_WAIT_S = 0.1
#: Largest body of a claim in bytes: a worker id, streams and numbers.
BODY_BYTES = 64 * 1024
#: Bytes of inputs in one answer, shared by its jobs; results beyond are to be read one by one.
INPUT_BYTES = 4 * 1024 * 1024
#: Bytes of inputs that each job gets in any case.
LEAST_INPUT_BYTES = 64 * 1024


async def claim(call: Call) -> Response:
    asked = await read_json(call.request, wire.ClaimRequest, BODY_BYTES)
    arrived_at = time.monotonic()
    check_worker_id(asked.worker_id)
    queues = _queues(call, asked.streams)
    wait_ms = min(asked.max_wait_ms, wire.MAX_WAIT_MS)
    most = 1 if asked.max_jobs is UNSET else asked.max_jobs
    claimed: list[ClaimedJob] = []
    if not is_draining(call):
        claimed = await _wait_for_jobs(call, queues, asked.worker_id, most, wait_ms / 1000)
    leases = call.services.config().leases
    inputs = await _inputs(call, claimed) if any(job.has_inputs for job in claimed) else {}
    jobs = [_claimed(leases, job, inputs.get(job.job_id, UNSET)) for job in claimed]
    after_ms = int((min(job.sent_at for job in claimed) - arrived_at) * 1000) if claimed else UNSET
    only = {"jobs": jobs} if asked.max_jobs is not UNSET else msgspec.structs.asdict(jobs[0]) if jobs else {}
    return json_answer(wire.ClaimAnswer(claimed=bool(jobs), max_wait_ms=wait_ms, claimed_after_ms=after_ms, **only))


def _queues(call: Call, streams: Sequence[str]) -> list[str]:
    """The queue of each stream, in the order asked for and without doubles."""
    configured, allowed = call.services.config().queues, call.principal.queues
    queues: dict[str, None] = {}
    for stream in streams:
        queue = queue_of(stream)
        if queue is not None and allowed is not None and queue not in allowed:
            raise ApiError("forbidden", f"{call.principal.name} may not serve {stream!r}: its token names other queues")
        if queue is None or queue not in configured or stream_of(queue) != stream:
            known = ", ".join(stream_of(name) for name in configured)
            raise ApiError("unknown_stream", f"there is no stream {stream!r}; the streams here are {known}")
        queues[queue] = None
    return list(queues)


async def _wait_for_jobs(
    call: Call, queues: Sequence[str], owner_id: str, most: int, wait_s: float
) -> list[ClaimedJob]:
    """Claim at most `most` jobs within `wait_s`. When the worker hangs up, what was claimed is released uncharged."""
    jobs: list[ClaimedJob] = []
    hung_up = anyio.Event()
    running: RunningRequest = call.request.scope["state"]["running_request"]

    def end() -> None:
        hung_up.set()
        tasks.cancel_scope.cancel()

    async def watch() -> None:
        await hang_up(call.request.receive)
        end()

    async with anyio.create_task_group() as tasks:
        running.end = end  # called when the token of this worker is no longer valid
        tasks.start_soon(watch)
        jobs = await call.services.dispatcher.take(queues, owner_id, most, max(wait_s, SHORTEST_WAIT_S))
        tasks.cancel_scope.cancel()
    if hung_up.is_set():
        await call.services.engine.release_many([job.held for job in jobs])
        if running.refusal is not None:
            raise running.refusal
        return []
    running.end = None
    return jobs


async def _inputs(call: Call, jobs: Sequence[ClaimedJob]) -> dict[UUID, dict[str, wire.JobInput]]:
    """What the claimed jobs get of those that they waited for. If it cannot be read, they are released uncharged."""
    job_ids = [job.job_id for job in jobs if job.has_inputs]
    most_bytes = max(INPUT_BYTES // len(job_ids), LEAST_INPUT_BYTES)
    try:
        found = await read_inputs(call.services.database, job_ids, most_bytes=most_bytes)
    except Exception:
        await call.services.engine.release_many([job.held for job in jobs])
        raise
    return {
        job_id: {name: wire.JobInput(**msgspec.structs.asdict(part)) for name, part in inputs.items()}
        for job_id, inputs in zip(job_ids, found, strict=True)
    }


def _claimed(leases: Leases, job: ClaimedJob, inputs: dict[str, wire.JobInput] | UnsetType) -> wire.ClaimedJob:
    return wire.ClaimedJob(
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        lease_token=job.lease_token,
        stream=job.stream or stream_of(job.queue),
        message_id=job.message_id or "",
        payload=Raw(job.payload.encode()),
        lease_ttl_seconds=int(lease_ttl_s(leases, job.lease_ttl_s)),
        heartbeat_interval_seconds=heartbeat_s(leases, job.lease_ttl_s),
        task=job.task,
        attempt=job.attempt_no,
        max_attempts=job.max_attempts,
        timeout_s=job.timeout_s,
        enqueue_id=job.enqueue_id,
        traceparent=job.traceparent or UNSET,
        tracestate=job.tracestate or UNSET,
        inputs=inputs,
    )


ENDPOINTS = (
    post(
        "/internal/worker/claim",
        "worker",
        claim,
        "Wait for a job and hold it",
        answers={200: wire.ClaimAnswer},
        problems=("unknown_stream",),
        body=wire.ClaimRequest,
    ),
)
