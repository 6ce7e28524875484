"""Complete: result, final status, attempt closed and lease gone, in one commit; idempotent by attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.machine import decide_complete
from jobd.job.model import Completed
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held, Refusal, explain, proof_of
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.store.session import Session

COMPLETE_IF_LEASED = statement("complete_if_leased")


class Completion(Held, frozen=True, kw_only=True):
    #: JSON text, checked by `jobd.wire.json_check`
    result: str | None = None
    #: The file that holds a result too large for the table.
    result_ref: str | None = None


async def complete(
    session: Session, reports: Sequence[Completion], *, now: datetime | None = None
) -> list[Completed | Refusal]:
    """Finish jobs whose attempts their callers still hold; the answers are in their order."""
    sent = sorted_once(reports, proof_of)
    ordered = [reports[n] for n in sent.values()]
    rows = await session.fetch(
        COMPLETE_IF_LEASED,
        [report.job_id for report in ordered],
        [report.attempt_id for report in ordered],
        [report.lease_token for report in ordered],
        [report.result for report in ordered],
        [report.result_ref for report in ordered],
        [report.outcome_hash for report in ordered],
        now,
    )
    order = list(sent.values())
    answers: dict[int, Completed | Refusal] = {order[row["n"] - 1]: Completed() for row in rows}
    refused = [n for n in range(len(reports)) if n not in answers]
    if refused:
        reasons = await explain(session, [reports[n] for n in refused], decide_complete)
        answers |= dict(zip(refused, reasons, strict=True))
    return [answers[n] for n in range(len(reports))]
