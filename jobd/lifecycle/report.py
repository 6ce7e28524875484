"""What the three reports on an attempt (complete, fail, release) have in common: how a refused one is explained.

A report that changed nothing is either a repetition (the same call again gets the same answer), a contradiction, or
comes from a holder that has lost the job. The pure machine says which, from how the attempt ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.job.model import AlreadyFinished, ClaimRef, ClosedAttempt, Conflicting, JobView, Superseded
from jobd.job.status import AttemptOutcome, JobStatus
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import asyncpg

    from jobd.store.session import Session

EXPLAIN_REPORTS = statement("explain_reports")

Refusal = AlreadyFinished | Conflicting | Superseded


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What proves that a report comes from the holder of the attempt."""

    job_id: UUID
    attempt_id: UUID
    lease_token: UUID
    #: Fingerprint of what is reported.
    outcome_hash: bytes | None = None


def proof_of(report: Held) -> tuple[UUID, UUID, UUID]:
    return report.job_id, report.attempt_id, report.lease_token


def proof_in(row: asyncpg.Record) -> tuple[UUID, UUID, UUID]:
    return row["job_id"], row["attempt_id"], row["lease_token"]


async def explain(
    session: Session, reports: Sequence[Held], decide: Callable[[JobView, ClaimRef], object]
) -> list[Refusal]:
    """Why each of these reports changed nothing."""
    rows = await session.fetch(
        EXPLAIN_REPORTS,
        [report.job_id for report in reports],
        [report.attempt_id for report in reports],
    )
    ended = {(row["job_id"], row["attempt_id"]): row for row in rows}
    return [_explained(report, ended.get((report.job_id, report.attempt_id)), decide) for report in reports]


def _explained(report: Held, row: asyncpg.Record | None, decide: Callable[[JobView, ClaimRef], object]) -> Refusal:
    if row is None:
        return Superseded()
    refusal = decide(_view(row), ClaimRef(str(report.attempt_id), str(report.lease_token)))
    if isinstance(refusal, AlreadyFinished) and row["outcome_hash"] != report.outcome_hash:
        return Conflicting(refusal.outcome)
    # Anything else can only mean that the job moved between the two statements.
    return refusal if isinstance(refusal, (AlreadyFinished, Conflicting)) else Superseded()


def _view(row: asyncpg.Record) -> JobView:
    claim = ClaimRef(str(row["attempt_id"]), str(row["lease_token"]))
    closed = ClosedAttempt(claim=claim, number=row["number"], outcome=AttemptOutcome(row["outcome"]))
    return JobView(
        job_id=str(row["job_id"]),
        max_attempts=1,
        status=JobStatus(row["status"]),
        attempt_no=row["attempt_no"],
        closed=(closed,),
    )
