"""Release: a job is handed back unfinished and without being charged for the attempt.

It has its old place in the queue again or, with a delay (a *snooze*), comes back when that has passed. A delay is at
least `SHORTEST_SNOOZE_S`, so that a handler which always puts its job off does not keep a worker busy with that.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jobd.job.machine import decide_release
from jobd.job.model import Canceled, Requeued
from jobd.job.retry import SHORTEST_SNOOZE_S
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held, Refusal, explain, proof_in, proof_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

RELEASE_IF_LEASED = statement("release_if_leased")


class Release(Held, frozen=True, kw_only=True):
    #: Seconds until the job comes back; 0: at once, in its old place.
    delay_s: float = 0.0


async def release(
    session: Session, holders: Sequence[Held], *, tally: Tally | None = None, now: datetime | None = None
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
        [_delay_s(holder) for holder in ordered],
    )
    if tally is not None:
        tally.ended(rows)
    answers: dict[int, Requeued | Canceled | Refusal] = {}
    for row in rows:
        requeued = Requeued(
            outcome=AttemptOutcome.RELEASED, enqueue_id=row["enqueue_id"], run_after=row["run_after"].timestamp()
        )
        answers[sent[proof_in(row)]] = requeued if row["status"] == "queued" else Canceled(AttemptOutcome.CANCELED)
    refused = [n for n in range(len(holders)) if n not in answers]
    if refused:
        decide = functools.partial(decide_release, now=0.0)
        reasons = await explain(session, [holders[n] for n in refused], decide)
        answers |= dict(zip(refused, reasons, strict=True))
    return [answers[n] for n in range(len(holders))]


def _delay_s(holder: Held) -> float:
    delay_s = holder.delay_s if isinstance(holder, Release) else 0.0
    return max(delay_s, SHORTEST_SNOOZE_S) if delay_s > 0 else 0.0
