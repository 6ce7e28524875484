"""What every request of an HTTP worker has in common (`worker_claim`, `worker_heartbeat`, `worker_events`,
`worker_reports`, `worker_batches`): its worker id, its lease token, and whether jobd drains. The contract is in
`wire/worker.py`.

The lease token is the proof: a worker that sends it for its job holds the job, whatever its `worker_id`. A refusal that
the worker has to act on is an answer (200 with `ok` false). A problem document means that nothing has changed, or that
the outcome is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from jobd.store.leader import NODE_PREFIX
from jobd.stream.keys import RAW_OWNER_PREFIX
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from jobd.http.endpoint import Call

#: Stands for text that is no UUID: no lease has this token, so the verb refuses it like the token of another worker.
_NO_TOKEN = UUID(int=0)


def check_worker_id(worker_id: str) -> None:
    if not worker_id.isprintable() or worker_id != worker_id.strip():
        raise ApiError("invalid", "worker_id must be visible characters, without a blank at either end")
    if worker_id.startswith(RAW_OWNER_PREFIX):
        raise ApiError(
            "invalid", f"worker_id must not begin with {RAW_OWNER_PREFIX}, as the owners do that speak only Redis"
        )
    if worker_id.startswith(NODE_PREFIX):
        raise ApiError("invalid", f"worker_id must not begin with {NODE_PREFIX}, as the slots of a jobd do")


def lease_token_in(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return _NO_TOKEN


def is_draining(call: Call) -> bool:
    return call.services.supervisor.draining or call.request.app.state.in_flight.closing.is_set()
