"""Complete: result, final status, attempt closed and lease gone, in one commit; idempotent by attempt."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import TYPE_CHECKING

from jobd.job.machine import decide_complete
from jobd.job.model import Completed
from jobd.lifecycle.claim import NO_TTLS, ClaimedJob
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held, Refusal, explain, proof_of
from jobd.lifecycle.take import TakeTerms
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from jobd.lifecycle.take import Want
    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

COMPLETE_IF_LEASED = statement("complete_if_leased")
COMPLETE_AND_TAKE = statement("complete_and_take")


class Completion(Held, frozen=True, kw_only=True):
    #: JSON text, checked by `jobd.wire.json_check`
    result: str | None = None
    #: The file that holds a result too large for the table.
    result_ref: str | None = None


async def complete(
    session: Session, reports: Sequence[Completion], *, tally: Tally | None = None, now: datetime | None = None
) -> list[Completed | Refusal]:
    """Finish jobs whose attempts their callers still hold; the answers are in their order."""
    order = list(sorted_once(reports, proof_of).values())
    rows = await session.fetch(COMPLETE_IF_LEASED, *_arguments([reports[n] for n in order], now))
    return await _answers(session, reports, order, rows, tally)


async def complete_and_take(
    session: Session,
    reports: Sequence[Completion],
    wants: Sequence[Want],
    *,
    ttl_s: float,
    task_ttls: Mapping[str, float] = NO_TTLS,
    any_mode: bool = False,
    tally: Tally | None = None,
    now: datetime | None = None,
) -> tuple[list[Completed | Refusal], list[ClaimedJob]]:
    """Complete, and in the same commit take the next jobs: `complete` and `take` in one statement."""
    sent_at = time.monotonic()
    order = list(sorted_once(reports, proof_of).values())
    rows = await session.fetch(
        COMPLETE_AND_TAKE,
        *TakeTerms(wants, ttl_s, task_ttls, any_mode).arguments(now),
        *_arguments([reports[n] for n in order], now),
    )
    done = list(takewhile(_is_about_reports, rows))
    claimed = [ClaimedJob(*(*row[4:], sent_at)) for row in rows[len(done) :]]
    return await _answers(session, reports, order, done, tally), claimed


def _is_about_reports(row: asyncpg.Record) -> bool:
    """Those rows come first, the taken jobs after them."""
    return row["finished"] is not None


def _arguments(reports: Sequence[Completion], now: datetime | None) -> tuple[object, ...]:
    return (
        [report.job_id for report in reports],
        [report.attempt_id for report in reports],
        [report.lease_token for report in reports],
        [report.result for report in reports],
        [report.result_ref for report in reports],
        [report.outcome_hash for report in reports],
        now,
    )


async def _answers(
    session: Session,
    reports: Sequence[Completion],
    order: Sequence[int],
    done: Sequence[asyncpg.Record],
    tally: Tally | None,
) -> list[Completed | Refusal]:
    """For each report; `done` has the places in `order`, from 1, of those whose job is done by them."""
    completed = Completed()
    answers: dict[int, Completed | Refusal] = {}
    for row in done:
        answers |= {order[place - 1]: completed for place in row["finished"]}
        if tally is not None:
            tally.done(row["done_queue"], row["done_task"], row["run_s"])
    refused = [n for n in range(len(reports)) if n not in answers]
    if refused:
        reasons = await explain(session, [reports[n] for n in refused], decide_complete)
        answers |= dict(zip(refused, reasons, strict=True))
    return [answers[n] for n in range(len(reports))]
