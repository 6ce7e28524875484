"""Claim: the compare-and-swap that turns a queued job into a running one with a lease, for a message."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from jobd.job.inputs import Input
from jobd.job.machine import decide_claim
from jobd.job.model import Canceled, ClaimRef, DeadLettered, JobView, NotClaimable
from jobd.job.status import AttemptOutcome, DeadLetterReason, JobStatus
from jobd.lifecycle.lock_order import sorted_once
from jobd.lifecycle.report import Held
from jobd.store.ids import random_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

CLAIM_JOBS = statement("claim_jobs")
TAKE_OVER_JOBS = statement("take_over_jobs")
EXPLAIN_CLAIMS = statement("explain_claims")
READ_BACK_CLAIMS = statement("read_back_claims")

#: Lease times in seconds of tasks that have one of their own: none.
NO_TTLS: Final[Mapping[str, float]] = {}
#: For asking the machine why a job cannot be claimed: nothing is claimed by it.
NO_CLAIM: Final = ClaimRef("", "")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says, and who wants the job."""

    job_id: UUID
    enqueue_id: int
    owner_id: str
    stream: str | None = None
    message_id: str | None = None


#: The two ids that an ask brings, for its attempt and its lease token, in 32 bytes. By them an ask that is sent again
#: knows its own claim.
Fresh = bytes


def fresh_ids(count: int) -> list[Fresh]:
    noise = random_ids(2 * count)
    return [noise[n : n + 32] for n in range(0, 32 * count, 32)]


class ClaimRow(msgspec.Struct, frozen=True):
    """In the order of the statements' columns."""

    job_id: UUID
    task: str
    queue: str
    #: JSON text, as stored
    payload: str
    enqueue_id: int
    attempt_id: UUID
    attempt_no: int
    attempt_count: int
    max_attempts: int
    lease_token: UUID
    lease_expires_at: datetime
    timeout_s: float
    ttl_s: int
    owner_id: str
    stream: str | None
    message_id: str | None
    #: None: as long as the leases of all tasks without a setting of their own.
    lease_ttl_s: float | None = None
    #: The trace that the job belongs to (W3C Trace Context).
    traceparent: str | None = None
    tracestate: str | None = None
    #: Seconds from when it was due to this claim; None: the claim took over a lease that had expired.
    waited_s: float | None = None
    #: It depended on others: `inputs` has what they ended with.
    has_inputs: bool = False


class ClaimedJob(ClaimRow, frozen=True):
    #: When its claim was sent, by time.monotonic(): its lease ends no earlier than its time after that.
    sent_at: float = msgspec.field(default_factory=time.monotonic)
    #: What came with the claim from a jobd elsewhere; None: it is to be read, if there is any.
    inputs: Mapping[str, Input] | None = None

    @property
    def held(self) -> Held:
        """What its holder shows with every report."""
        return Held(job_id=self.job_id, attempt_id=self.attempt_id, lease_token=self.lease_token)


class Unknown(msgspec.Struct, frozen=True):
    """No such job here (yet: a message may be ahead of a standby that became the primary)."""


ClaimAnswer = ClaimedJob | NotClaimable | DeadLettered | Canceled | Unknown

_COLUMNS = len(ClaimRow.__struct_fields__)


async def claim(
    session: Session,
    asks: Sequence[Ask],
    *,
    ttl_s: float,
    task_ttls: Mapping[str, float] = NO_TTLS,
    fresh: Sequence[Fresh] | None = None,
    tally: Tally | None = None,
    now: datetime | None = None,
) -> list[ClaimAnswer]:
    """Claim the jobs that messages speak of; the answers are in their order. `task_ttls`: of tasks that differ.

    One statement takes what is queued. Only for the rest a second one takes over expired leases, and a third, which
    reads only, says why the remainder is not to be had. `fresh`: the same ids again if the asks are sent again.
    """
    fresh = fresh_ids(len(asks)) if fresh is None else fresh
    answers: dict[int, ClaimAnswer] = {}
    sent = sorted_once(asks, lambda ask: (ask.job_id, ask.enqueue_id))
    order = list(sent.values())
    ids = [fresh[n] for n in order]
    for row in await _run(session, CLAIM_JOBS, [asks[n] for n in order], ids, ttl_s, task_ttls, now):
        answers[order[row["n"] - 1]] = _claimed(row)
    rest = [n for n in order if n not in answers]
    if rest:
        ids = [fresh[n] for n in rest]
        rows = await _run(session, TAKE_OVER_JOBS, [asks[n] for n in rest], ids, ttl_s, task_ttls, now)
        answers |= {sent[row["job_id"], row["enqueue_id"]]: _taken_over(row) for row in rows}
        if tally is not None:
            tally.ended(rows)
    unclear = [n for n in range(len(asks)) if n not in answers]
    if unclear:
        rows = await session.fetch(EXPLAIN_CLAIMS, sorted({asks[n].job_id for n in unclear}))
        known = {row["job_id"]: row for row in rows}
        answers |= {n: _refusal(asks[n], known.get(asks[n].job_id)) for n in unclear}
        own = [n for n in unclear if _is_own(fresh[n], known.get(asks[n].job_id))]
        if own:
            stand = await own_claims(session, [asks[n] for n in own], [fresh[n] for n in own])
            answers |= {n: job for n, job in zip(own, stand, strict=True) if job is not None}
    return [answers[n] for n in range(len(asks))]


async def claims_that_stand(session: Session, asks: Sequence[Ask]) -> dict[UUID, ClaimedJob]:
    """The claims that these owners hold; an owner id never recurs, so what stands there is its own."""
    rows = await session.fetch(READ_BACK_CLAIMS, [ask.job_id for ask in asks], [ask.owner_id for ask in asks])
    return {row["job_id"]: ClaimedJob(**{name: row[name] for name in ClaimRow.__struct_fields__}) for row in rows}


async def own_claims(session: Session, asks: Sequence[Ask], fresh: Sequence[Fresh]) -> list[ClaimedJob | None]:
    """What came of asks whose answer was lost: the claims that stand with the very ids that they brought."""
    found = {job.lease_token.bytes: job for job in (await claims_that_stand(session, asks)).values()}
    return [found.get(ids[16:]) for ids in fresh]


def _is_own(ids: Fresh, row: asyncpg.Record | None) -> bool:
    """The job is leased by this very ask: an earlier sending of it, whose answer was lost."""
    return row is not None and row["lease_token"] is not None and row["lease_token"].bytes == ids[16:]


async def _run(
    session: Session,
    text: str,
    asks: Sequence[Ask],
    ids: Sequence[Fresh],
    ttl_s: float,
    task_ttls: Mapping[str, float],
    now: datetime | None,
) -> list[asyncpg.Record]:
    return await session.fetch(
        text,
        [ask.job_id for ask in asks],
        [ask.enqueue_id for ask in asks],
        [ask.owner_id for ask in asks],
        [ask.stream for ask in asks],
        [ask.message_id for ask in asks],
        ttl_s,
        now,
        b"".join(ids),
        list(task_ttls),
        list(task_ttls.values()),
    )


def _claimed(row: asyncpg.Record) -> ClaimedJob:
    return ClaimedJob(*row[:_COLUMNS])


def _taken_over(row: asyncpg.Record) -> ClaimAnswer:
    if row["status"] == "running":
        return _claimed(row)
    if row["status"] == "canceled":
        return Canceled(AttemptOutcome.EXPIRED)
    return DeadLettered(outcome=AttemptOutcome.EXPIRED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED)


def _refusal(ask: Ask, row: asyncpg.Record | None) -> NotClaimable | Unknown:
    """Why the machine refuses the claim. A job that has become due since the claim was not due at the claim."""
    if row is None:
        return Unknown()
    view = JobView(
        job_id=str(ask.job_id),
        max_attempts=1,
        status=JobStatus(row["status"]),
        enqueue_id=row["enqueue_id"],
        run_after=math.inf,
        cancel_requested=row["cancel_requested"],
    )
    refusal = decide_claim(view, NO_CLAIM, enqueue_id=ask.enqueue_id, ttl_s=0.0, now=0.0)
    assert isinstance(refusal, NotClaimable)  # it is neither due nor under a lease that has expired
    return refusal
