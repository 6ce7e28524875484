"""Fail: the attempt is closed, and the job is queued again after a backoff or becomes a dead letter."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

from jobd.job.machine import decide_fail
from jobd.job.model import Canceled, DeadLettered, Requeued
from jobd.job.retry import NO_POLICIES, as_arrays
from jobd.job.status import AttemptOutcome, DeadLetterReason
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held, Refusal, explain, proof_in, proof_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from jobd.job.retry import RetryPolicy
    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

FAIL_IF_LEASED = statement("fail_if_leased")

#: What became of a job whose attempt ended without success.
Ended = Requeued | DeadLettered | Canceled


class Failure(Held, frozen=True, kw_only=True):
    #: JSON text of an object: code, message, stack, retryable
    error: str
    retryable: bool = True


async def fail(
    session: Session,
    reports: Sequence[Failure],
    *,
    policy: RetryPolicy,
    task_policies: Mapping[str, RetryPolicy] = NO_POLICIES,
    tally: Tally | None = None,
    jitter: float | None = None,
    now: datetime | None = None,
) -> list[Ended | Refusal]:
    """Report failed attempts; the answers are in their order. `task_policies`: of tasks that differ.

    `jitter` and `now` are for tests.
    """
    sent = sorted_once(reports, proof_of)
    ordered = [reports[n] for n in sent.values()]
    rows = await session.fetch(
        FAIL_IF_LEASED,
        [report.job_id for report in ordered],
        [report.attempt_id for report in ordered],
        [report.lease_token for report in ordered],
        [report.error for report in ordered],
        [report.retryable for report in ordered],
        [random.random() if jitter is None else jitter for _ in ordered],
        [report.outcome_hash for report in ordered],
        policy.base_s,
        policy.cap_s,
        now,
        *as_arrays(task_policies),
    )
    if tally is not None:
        tally.ended(rows)
    answers: dict[int, Ended | Refusal] = {sent[proof_in(row)]: _ended(row) for row in rows}
    refused = [n for n in range(len(reports)) if n not in answers]
    if refused:
        decide = functools.partial(decide_fail, retryable=True, policy=policy, jitter=0.0, now=0.0)
        reasons = await explain(session, [reports[n] for n in refused], decide)
        answers |= dict(zip(refused, reasons, strict=True))
    return [answers[n] for n in range(len(reports))]


def _ended(row: asyncpg.Record) -> Ended:
    if row["status"] == "queued":
        run_after = row["run_after"].timestamp()
        return Requeued(outcome=AttemptOutcome.FAILED, enqueue_id=row["enqueue_id"], run_after=run_after)
    if row["status"] == "canceled":
        return Canceled(AttemptOutcome.CANCELED)
    reason = DeadLetterReason.ATTEMPTS_EXHAUSTED if row["retryable"] else DeadLetterReason.NOT_RETRYABLE
    return DeadLettered(outcome=AttemptOutcome.FAILED, reason=reason)
