"""`POST /internal/worker/heartbeat`: an HTTP worker renews the leases of its jobs, and learns whether to stop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.config.task_settings import lease_ttl_s
from jobd.http.body import read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.worker_request import check_worker_id, is_draining, lease_token_in
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.lease import LeaseProof
from jobd.wire import worker as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from jobd.job.model import LeaseLost

#: Largest body of a heartbeat in bytes: room for 1 000 leases (wire.MAX_JOBS).
BODY_BYTES = 512 * 1024


async def heartbeat(call: Call) -> Response:
    asked = await read_json(call.request, wire.HeartbeatRequest, BODY_BYTES)
    check_worker_id(asked.worker_id)
    if asked.jobs is not UNSET:
        if asked.job_id is not UNSET or asked.lease_token is not UNSET:
            raise ApiError("invalid", "a heartbeat has either jobs or job_id and lease_token, not both")
        return json_answer(wire.HeartbeatAnswer(jobs=await _renew(call, asked.jobs)))
    if asked.job_id is UNSET or asked.lease_token is UNSET:
        raise ApiError("invalid", "a heartbeat needs job_id and lease_token, or a list of them in jobs")
    (answer,) = await _renew(call, [wire.HeartbeatJob(job_id=asked.job_id, lease_token=asked.lease_token)])
    return json_answer(answer)


async def _renew(call: Call, jobs: Sequence[wire.HeartbeatJob]) -> list[wire.Heartbeat]:
    for job in jobs:
        call.services.heartbeat_limit.check(job.lease_token)
    beats = [LeaseProof(resource_id=job.job_id, lease_token=lease_token_in(job.lease_token)) for job in jobs]
    answers = await call.services.engine.heartbeat(beats)
    return [_renewed(call, beat, answer) for beat, answer in zip(beats, answers, strict=True)]


def _renewed(call: Call, beat: LeaseProof, answer: Renewal | LeaseLost | Exception) -> wire.Heartbeat:
    if isinstance(answer, Exception):
        raise answer
    renewal = answer if isinstance(answer, Renewal) else None
    return wire.Heartbeat(
        job_id=beat.resource_id,
        ok=renewal is not None,
        lease_expires_at=renewal.lease_expires_at if renewal else None,
        cancel=renewal is not None and renewal.cancel_requested,
        quiet=is_draining(call),
        lease_ttl_seconds=int(lease_ttl_s(call.services.config().leases, renewal.lease_ttl_s if renewal else None)),
        reason=UNSET if renewal else "lease_lost",
    )


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
)
