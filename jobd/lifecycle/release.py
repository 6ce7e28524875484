"""Release: a job is handed back unfinished, in its old place and without being charged for the attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.machine import decide_release
from jobd.job.model import Canceled, Requeued
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held, Refusal, explain, proof_in, proof_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.store.session import Session

RELEASE_IF_LEASED = statement("release_if_leased")


async def release(
    session: Session, holders: Sequence[Held], *, now: datetime | None = None
) -> list[Requeued | Canceled | Refusal]:
    """Hand jobs back; the answers are in their order."""
    sent = sorted_once(holders, proof_of)
    ordered = [holders[n] for n in sent.values()]
    rows = await session.fetch(
        RELEASE_IF_LEASED,
        [holder.job_id for holder in ordered],
        [holder.attempt_id for holder in ordered],
        [holder.lease_token for holder in ordered],
        now,
    )
    answers: dict[int, Requeued | Canceled | Refusal] = {}
    for row in rows:
        requeued = Requeued(
            outcome=AttemptOutcome.RELEASED, enqueue_id=row["enqueue_id"], run_after=row["run_after"].timestamp()
        )
        answers[sent[proof_in(row)]] = requeued if row["status"] == "queued" else Canceled(AttemptOutcome.CANCELED)
    refused = [n for n in range(len(holders)) if n not in answers]
    if refused:
        reasons = await explain(session, [holders[n] for n in refused], decide_release)
        answers |= dict(zip(refused, reasons, strict=True))
    return [answers[n] for n in range(len(holders))]
