"""Workers that pull over HTTP: claim with a long poll, and heartbeat. The contract is in `wire/worker.py`.

The lease token is the proof: whoever shows it for its job is the holder, whatever its `worker_id`. A refused heartbeat
is an answer (200 with `ok` false), since the worker has to act on it; a problem document means that nothing has changed
or nothing is known.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
import msgspec
from msgspec import UNSET, Raw

from jobd.config.task_settings import heartbeat_s, lease_ttl_s
from jobd.http.body import read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.hang_up import hang_up
from jobd.lifecycle.heartbeat import Beat, Renewal
from jobd.stream.keys import queue_of, stream_of
from jobd.wire import worker as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from jobd.http.gateway import RunningRequest
    from jobd.job.model import LeaseLost
    from jobd.lifecycle.claim import ClaimedJob

#: A claim that only wants to look waits this long, or no reader could have looked for it.
LOOK_S = 0.1
CLAIM_BYTES = 64 * 1024
HEARTBEAT_BYTES = 512 * 1024
#: How the owners begin that speak only Redis: a worker of HTTP must not pass for one.
RAW_OWNER = "redis:"

#: No lease has it: a token that is none of ours is as wrong as that of another.
_NO_TOKEN = UUID(int=0)


# Claim


async def claim(call: Call) -> Response:
    asked = await read_json(call.request, wire.ClaimRequest, CLAIM_BYTES)
    arrived_at = time.monotonic()
    check_worker_id(asked.worker_id)
    queues = _queues(call, asked.streams)
    wait_ms = min(asked.max_wait_ms, wire.MAX_WAIT_MS)
    most = 1 if asked.max_jobs is UNSET else asked.max_jobs
    found: list[ClaimedJob] = []
    if not _is_draining(call):
        found = await _wait_for_jobs(call, queues, asked.worker_id, most, wait_ms / 1000)
    jobs = [_claimed(call, job) for job in found]
    after_ms = int((min(job.sent_at for job in found) - arrived_at) * 1000) if found else UNSET
    only = {"jobs": jobs} if asked.max_jobs is not UNSET else msgspec.structs.asdict(jobs[0]) if jobs else {}
    return json_answer(wire.ClaimAnswer(claimed=bool(jobs), max_wait_ms=wait_ms, claimed_after_ms=after_ms, **only))


def _queues(call: Call, streams: Sequence[str]) -> list[str]:
    """The queues behind the names, each once and in order."""
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
    """At most so many jobs, unless none comes or the caller hangs up; then whatever came is handed back uncharged."""
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
        jobs = await call.services.dispatcher.take(queues, owner_id, most, max(wait_s, LOOK_S))
        tasks.cancel_scope.cancel()
    if hung_up.is_set():
        for job in jobs:
            await call.services.engine.release(job.held)
        if running.refusal is not None:
            raise running.refusal
        return []
    running.end = None
    return jobs


def _claimed(call: Call, job: ClaimedJob) -> wire.ClaimedJob:
    leases = call.services.config().leases
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
    )


# Heartbeat


async def heartbeat(call: Call) -> Response:
    asked = await read_json(call.request, wire.HeartbeatRequest, HEARTBEAT_BYTES)
    check_worker_id(asked.worker_id)
    if asked.jobs is not UNSET:
        if asked.job_id is not UNSET or asked.lease_token is not UNSET:
            raise ApiError("invalid", "a heartbeat has either jobs or job_id and lease_token, not both")
        return json_answer(wire.HeartbeatAnswer(jobs=await _renew(call, asked.jobs)))
    if asked.job_id is UNSET or asked.lease_token is UNSET:
        raise ApiError("invalid", "a heartbeat needs job_id and lease_token, or a list of them in jobs")
    (answer,) = await _renew(call, [wire.HeldJob(job_id=asked.job_id, lease_token=asked.lease_token)])
    return json_answer(answer)


async def _renew(call: Call, jobs: Sequence[wire.HeldJob]) -> list[wire.Heartbeat]:
    for job in jobs:
        call.services.storm.check(job.lease_token)
    beats = [Beat(job_id=job.job_id, lease_token=token_in(job.lease_token)) for job in jobs]
    answers = await call.services.engine.heartbeat(beats)
    return [_renewed(call, beat, answer) for beat, answer in zip(beats, answers, strict=True)]


def _renewed(call: Call, beat: Beat, answer: Renewal | LeaseLost | Exception) -> wire.Heartbeat:
    if isinstance(answer, Exception):
        raise answer
    renewal = answer if isinstance(answer, Renewal) else None
    return wire.Heartbeat(
        job_id=beat.job_id,
        ok=renewal is not None,
        lease_expires_at=renewal.lease_expires_at if renewal else None,
        cancel=renewal is not None and renewal.cancel_requested,
        quiet=_is_draining(call),
        lease_ttl_seconds=int(lease_ttl_s(call.services.config().leases, renewal.lease_ttl_s if renewal else None)),
        reason=UNSET if renewal else "lease_lost",
    )


# What reports need too


def check_worker_id(worker_id: str) -> None:
    if not worker_id.isprintable() or worker_id != worker_id.strip():
        raise ApiError("invalid", "worker_id must be visible characters, without a blank at either end")
    if worker_id.startswith(RAW_OWNER):
        raise ApiError("invalid", f"worker_id must not begin with {RAW_OWNER}, as the owners do that speak only Redis")


def token_in(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return _NO_TOKEN


def _is_draining(call: Call) -> bool:
    return call.services.supervisor.draining or call.request.app.state.in_flight.closing.is_set()


ENDPOINTS = (
    post(
        "/internal/worker/heartbeat",
        "worker",
        heartbeat,
        "Keep the leases of running jobs, and hear whether to stop them",
        answers={200: wire.HeartbeatAnswer},
        problems=("too_many_heartbeats",),
        body=wire.HeartbeatRequest,
    ),
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
