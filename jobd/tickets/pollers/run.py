"""Run: one work order becomes one job, and the result or error of that job becomes one output bundle.

The job's id was chosen with the work order, and the work order's id is its idempotency key: however often a work order
is submitted, by however many runners, there is one job. Nothing here waits for the job.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.config.model import DAY_S
from jobd.engine.limits import key_or_none
from jobd.lifecycle.enqueue import IdempotencyKey, NewJob
from jobd.store.ids import new_ids
from jobd.store.statements import statement
from jobd.tickets.machine import Outcome
from jobd.wire.canonical import NotCanonical, spec_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.config.model import Config
    from jobd.store.session import Session

FIND_OPEN_WORKORDERS = statement("find_open_workorders", "jobd.tickets.pollers")
READ_FOR_RUN = statement("read_for_run", "jobd.tickets.pollers")
WATCH_JOBS = statement("watch_jobs", "jobd.tickets.pollers")
EXECUTE_IF_HELD = statement("execute_if_held", "jobd.tickets.pollers")

#: Principal of the idempotency keys; no token can have this name.
PRINCIPAL = "jobd tickets"
#: Seconds that the idempotency key of a work order is kept; a later submission is still refused, by the id of the job.
KEY_LIFE_S = float(DAY_S)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    work_order_id: UUID
    job_id: UUID
    task: str
    payload: str
    budget_ms: int
    #: Its job exists, or existed and was deleted by retention.
    is_submitted: bool


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a work order's job that has ended, has used up its budget, or is not there."""

    work_order_id: UUID
    job_id: UUID
    budget_ms: int
    #: None: retention has deleted it.
    status: str | None
    result_ref: str | None
    error: str | None
    cancel_requested: bool
    is_overdue: bool


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    work_order_id: UUID
    lease_token: UUID
    outcome: Outcome
    #: JSON text; None with outcome DONE: the result in the job's row.
    output: str | None = None
    output_ref: str | None = None
    error: str | None = None


async def find_open_workorders(connection: Session, *, most: int) -> list[UUID]:
    return [row["work_order_id"] for row in await connection.fetch(FIND_OPEN_WORKORDERS, most)]


async def read_for_run(connection: Session, work_order_ids: Sequence[UUID]) -> dict[UUID, Order]:
    """The work orders by id; one that is executed already is left out."""
    rows = await connection.fetch(READ_FOR_RUN, list(work_order_ids))
    return {row["work_order_id"]: Order(**dict(row)) for row in rows}


async def watch_jobs(connection: Session, work_order_ids: Sequence[UUID]) -> list[Sighting]:
    return [Sighting(**dict(row)) for row in await connection.fetch(WATCH_JOBS, list(work_order_ids))]


async def execute(connection: Session, bundles: Sequence[Bundle]) -> set[UUID]:
    """Write the outputs of work orders and give up their leases; returns those whose lease the caller still held."""
    ordered = sorted(bundles, key=lambda bundle: bundle.work_order_id)
    rows = await connection.fetch(
        EXECUTE_IF_HELD,
        [bundle.work_order_id for bundle in ordered],
        [bundle.lease_token for bundle in ordered],
        new_ids(len(ordered)),
        [bundle.outcome for bundle in ordered],
        [bundle.output for bundle in ordered],
        [bundle.output_ref for bundle in ordered],
        [bundle.error for bundle in ordered],
    )
    return {row["work_order_id"] for row in rows}


def job_for(order: Order, config: Config) -> NewJob | None:
    """The job of a work order; None: its task is not configured any more."""
    task = config.tasks.get(order.task)
    if task is None:
        return None
    key = str(order.work_order_id)
    return NewJob(
        id=order.job_id,
        task=order.task,
        queue=task.queue,
        payload=order.payload,
        max_attempts=task.max_attempts or config.retry.max_attempts,
        timeout_s=order.budget_ms / 1000,
        ttl_s=config.limits.job_ttl_s,
        spec_hash=_spec_hash(order, task.queue),
        key=IdempotencyKey(
            principal=PRINCIPAL, key=key, body_hash=hashlib.sha256(key.encode()).digest(), life_s=KEY_LIFE_S
        ),
        limit_key=key_or_none(task, msgspec.json.decode(order.payload)) if task.limit_key else None,
    )


def _spec_hash(order: Order, queue: str) -> bytes | None:
    try:
        return spec_hash(order.task, queue, msgspec.json.decode(order.payload))
    except NotCanonical:
        return None


def failed(work_order_id: UUID, lease_token: UUID, outcome: Outcome, code: str, message: str) -> Bundle:
    error = msgspec.json.encode({"code": code, "message": message}).decode()
    return Bundle(work_order_id=work_order_id, lease_token=lease_token, outcome=outcome, error=error)


def bundle_of(seen: Sighting, lease_token: UUID) -> Bundle | None:
    """The output or error of a job; None: it has not ended yet. An output in a file is for the caller to read."""
    if seen.status is None:
        return failed(seen.work_order_id, lease_token, "ERROR", "gone_job", f"job {seen.job_id} was deleted")
    if seen.status == "done":
        return Bundle(
            work_order_id=seen.work_order_id, lease_token=lease_token, outcome="DONE", output_ref=seen.result_ref
        )
    if seen.status not in ("error", "canceled"):
        return None
    if seen.is_overdue or _code(seen.error) == "timeout":
        message = f"the budget of {seen.budget_ms} ms was used up"
        return failed(seen.work_order_id, lease_token, "BUDGET_EXHAUSTED", "budget_exhausted", message)
    if seen.status == "canceled":
        return failed(seen.work_order_id, lease_token, "CANCELED", "canceled", f"job {seen.job_id} was canceled")
    error = seen.error or '{"code": "unknown", "message": "the job ended in error"}'
    return Bundle(work_order_id=seen.work_order_id, lease_token=lease_token, outcome="ERROR", error=error)


def _code(error: str | None) -> str | None:
    value = None if error is None else msgspec.json.decode(error)
    return value.get("code") if isinstance(value, dict) else None
