"""A history of jobs that happens in the tables and in the pure machine at once, and must look the same in both.

What differs, and is bridged: instants of the machine are seconds, so the tables live in 1970; jitters are eighths,
which both can say exactly; a poll takes only what was promoted before, and no expired lease; the table marks every
canceled job as asked to stop, the machine only one that was running then; and every job has a queue of its own, so that
a poll can be for one job.
"""

from __future__ import annotations

import functools
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from msgspec.structs import replace

from jobd.job.machine import decide_redrive
from jobd.job.model import (
    Canceled,
    Claimed,
    ClaimRef,
    ClosedAttempt,
    DeadLettered,
    JobView,
    Lease,
    NotClaimable,
    Renewed,
    Requeued,
)
from jobd.job.status import FINAL_STATUSES, AttemptOutcome, JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import Ask, ClaimedJob, claim, poll_claim
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, KeyMismatch, enqueue
from jobd.lifecycle.fail import Failure, fail
from jobd.lifecycle.heartbeat import Beat, Renewal, heartbeat
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import ReapCounts, reap
from jobd.lifecycle.redrive import redrive
from jobd.lifecycle.release import release
from jobd.lifecycle.report import Held as Holder
from jobd.store.ids import new_id
from tests.support.factories import empty, new_job
from tests.support.job_model import Cancel, Claim, Complete, Fail, Heartbeat, Reap, Release
from tests.unit.test_machine_properties import POLICY, STEPS, TTL, Held, History

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import asyncpg
    from anyio.from_thread import BlockingPortal

    from jobd.store.postgres import Database
    from tests.support.job_model import Answer, Command

T = TypeVar("T")

EDGES = {(row[0], row[2]) for row in STEPS}
STATUS_AFTER = {
    "queued": JobStatus.QUEUED,
    "requeued": JobStatus.QUEUED,
    "running": JobStatus.RUNNING,
    "cancel_requested": JobStatus.RUNNING,
    "done": JobStatus.DONE,
    "error": JobStatus.ERROR,
    "canceled": JobStatus.CANCELED,
}
FOR_EVER_S = 10.0**9

LOOKS = {
    "jobs": "SELECT * FROM jobs",
    "leases": "SELECT * FROM leases",
    "attempts": "SELECT * FROM attempts ORDER BY job_id, number",
    "dead_letters": "SELECT job_id FROM dead_letters",
    "outbox": "SELECT event, t.* FROM outbox, unnest(job_ids, versions) AS t (job_id, version) ORDER BY seq",
    "counts": """
        SELECT queue, sum(queued)::int AS queued, sum(running)::int AS running, sum(done)::int AS done,
            sum(error)::int AS error, sum(canceled)::int AS canceled
        FROM queue_counts GROUP BY queue
    """,
}


class Tables:
    """The real thing, to be asked from a thread that knows nothing of event loops."""

    def __init__(self, portal: BlockingPortal, database: Database) -> None:
        self.portal = portal
        self.database = database

    def call(self, verb: Callable[..., Awaitable[T]], *arguments: Any, **named: Any) -> T:
        return self.portal.call(functools.partial(verb, *arguments, **named))

    def look(self) -> dict[str, list[asyncpg.Record]]:
        """Everything that stands in the tables."""
        return self.call(self._look)

    async def _look(self) -> dict[str, list[asyncpg.Record]]:
        async with self.database.pool.acquire() as connection:
            return {name: await connection.fetch(query) for name, query in LOOKS.items()}


class TableHistory(History):
    """A history that happens in the tables and in the machine at once."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables
        self.db = tables.database
        self.keys: dict[str, tuple[str, bytes]] = {}
        self.queues: dict[str, str] = {}
        tables.call(empty, self.db)

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.now, timezone.utc)

    # Into the queue

    def submit(self, max_attempts: int, delay_s: float) -> None:
        name = self.new_id()
        job = new_job(id=UUID(name), queue=name, max_attempts=max_attempts, delay_s=delay_s)

        answers = self.tables.call(enqueue, self.tables.database, [job], now=self.at)

        assert answers == [Created(job.id)]
        run_after = self.now + delay_s
        self.add(JobView(job_id=name, max_attempts=max_attempts, run_after=run_after, in_line=delay_s <= 0), "submit")

    def submit_with_key(self, key: str, body: bytes) -> None:
        name = self.new_id()
        booked = IdempotencyKey(principal="p", key=key, body_hash=body, life_s=FOR_EVER_S)
        job = new_job(id=UUID(name), queue=name, max_attempts=1, key=booked)

        (answer,) = self.tables.call(enqueue, self.tables.database, [job], now=self.at)

        known, known_body = self.keys.setdefault(key, (name, body))
        if known == name:
            assert answer == Created(job.id)
            self.add(JobView(job_id=name, max_attempts=1, run_after=self.now, in_line=True), "submit")
        else:
            assert answer == (Existing if known_body == body else KeyMismatch)(UUID(known))

    def add(self, job: JobView, event: str) -> None:
        super().add(job, event)
        self.queues[job.job_id] = self.queues[job.redriven_from] if job.redriven_from else job.job_id

    def redrive(self, name: str) -> None:
        old = self.views[name]

        made = self.tables.call(redrive, self.db, [UUID(name)], now=self.at)

        assert isinstance(made, dict)
        assert set(made) == ({UUID(name)} if old.status is JobStatus.ERROR else set())
        for new_id_ in made.values():
            new = decide_redrive(old, str(new_id_), now=self.now)
            assert isinstance(new, JobView)
            self.add(new, "redrive")

    def promote(self) -> None:
        promoted = self.tables.call(promote_due, self.db, now=self.at)

        assert all(self.views[str(job_id)].run_after <= self.now for job_id in promoted)
        for name in map(str, promoted):
            self.views[name] = replace(self.views[name], in_line=True)

    def delayed(self) -> list[str]:
        return [name for name, job in self.views.items() if job.status is JobStatus.QUEUED and job.run_after > self.now]

    # Commands

    def claim(self, name: str, age: int | None) -> ClaimRef | None:
        if age is None:
            return self.poll(name)
        (ref,) = self.claim_all([(name, age)])
        return ref

    def claim_all(self, wanted: Sequence[tuple[str, int]]) -> list[ClaimRef | None]:
        """Claims by messages of these ages, in one batch.

        The machine takes them one after the other, but those last that were refused: the statements find the reasons
        when the others are through.
        """
        asks = [
            Ask(job_id=UUID(name), enqueue_id=self.views[name].enqueue_id - age, owner_id="w") for name, age in wanted
        ]

        answers = self.tables.call(claim, self.db, asks, ttl_s=TTL, now=self.at)

        refs: dict[int, ClaimRef | None] = {}
        for n in sorted(range(len(asks)), key=lambda n: isinstance(answers[n], NotClaimable)):
            refs[n] = self.agree_on_claim(wanted[n][0], asks[n].enqueue_id, answers[n])
        return [refs[n] for n in range(len(asks))]

    def poll(self, name: str) -> ClaimRef | None:
        """Claims without a message. The job must be the first of its queue; a redriven one may stand behind another."""
        self.promote()
        waiting = [one for one in self.queued_in(self.queues[name]) if one != name]
        if waiting:
            return None
        claimed = self.tables.call(
            poll_claim, self.db, [self.queues[name]], owner_id="w", most=2, ttl_s=TTL, now=self.at
        )

        if self.views[name].status is JobStatus.QUEUED:
            return self.agree_on_claim(name, None, claimed[0] if claimed else None)
        assert claimed == []
        return None

    def queued_in(self, queue: str) -> list[str]:
        return [
            name for name in self.views if self.queues[name] == queue and self.views[name].status is JobStatus.QUEUED
        ]

    def agree_on_claim(self, name: str, enqueue_id: int | None, told: object) -> ClaimRef | None:
        """The machine claims too, by the same token; both must come to the same."""
        ref = ClaimRef(f"attempt-{new_id()}", "no token")
        if isinstance(told, ClaimedJob):
            ref = ClaimRef(str(told.attempt_id), str(told.lease_token))
        answer = super().do(name, Claim(claim=ref, ttl_s=TTL, enqueue_id=enqueue_id))
        if not isinstance(answer, Claimed):
            assert told == answer or (told is None and isinstance(answer, NotClaimable))
            return None
        assert isinstance(told, ClaimedJob), f"the machine claims, the table does not: {told}"
        assert enqueue_id in (None, self.views[name].enqueue_id), "a stale message claimed"
        assert (told.attempt_no, told.enqueue_id) == (answer.attempt_no, self.views[name].enqueue_id)
        assert told.attempt_count == self.views[name].attempt_count
        assert told.lease_expires_at.timestamp() == answer.lease.lease_expires_at
        assert ref.lease_token not in self.tokens, "a token recurred"
        self.tokens.add(ref.lease_token)
        return ref

    def do(self, name: str, command: Command) -> Answer:
        if isinstance(command, Fail | Reap):
            command = replace(command, jitter=round(command.jitter * 8) / 8)
        if isinstance(command, Reap):
            return self.reap_seen(name, command)
        told = self.tell(name, command)
        answer = super().do(name, command)
        assert told == (renewal(answer) if isinstance(answer, Renewed) else answer)
        return answer

    def tell(self, name: str, command: Command) -> object:
        """What the verb answers to it."""
        (answer,) = self.tables.call(self._tell, UUID(name), command)
        return answer

    async def _tell(self, job_id: UUID, command: Command) -> Sequence[object]:
        if isinstance(command, Cancel):
            return await cancel(self.db, [job_id], now=self.at)
        if isinstance(command, Heartbeat):
            return await heartbeat(self.db, [beat(job_id, command)], ttl_s=TTL, now=self.at)
        if isinstance(command, Complete):
            return await complete(self.db, [Completion(**proof(job_id, command.claim))], now=self.at)
        if isinstance(command, Release):
            return await release(self.db, [Holder(**proof(job_id, command.claim))], now=self.at)
        assert isinstance(command, Fail)
        return await fail(self.db, [failure(job_id, command)], policy=POLICY, jitter=command.jitter, now=self.at)

    def complete_all(self, claims: Sequence[Held]) -> None:
        """Reports of anybody, in one batch; the machine takes them one after the other."""
        reports = [Completion(**proof(UUID(name), ref)) for name, ref in claims]

        answers = self.tables.call(complete, self.db, reports, now=self.at)

        for (name, ref), told in zip(claims, answers, strict=True):
            assert told == super().do(name, Complete(ref))

    def fail_all(self, claims: Sequence[Held], retryable: bool) -> None:
        commands = [Fail(claim=ref, retryable=retryable, jitter=0.5) for _, ref in claims]
        reports = [failure(UUID(name), one) for (name, _), one in zip(claims, commands, strict=True)]

        answers = self.tables.call(fail, self.db, reports, policy=POLICY, jitter=0.5, now=self.at)

        for (name, _), one, told in zip(claims, commands, answers, strict=True):
            assert told == super().do(name, one)

    def reap_seen(self, name: str, command: Reap) -> Answer:
        """A reaper looks again for itself, so what was seen before does not matter."""
        self.reap_page(100, command.jitter)
        return super().do(name, command)

    def reap_page(self, most: int, jitter: float) -> None:
        page = self.overdue()[:most]

        counts = self.tables.call(reap, self.db, policy=POLICY, most=most, jitter=jitter, now=self.at)

        self.agree_on_reap(counts, [(name, Reap(attempt_id=attempt, jitter=jitter)) for name, attempt in page])

    def overdue(self) -> list[tuple[str, str]]:
        return [
            (name, job.lease.claim.attempt_id)
            for name, job in sorted(self.views.items())
            if job.lease is not None and job.lease.lease_expires_at < self.now
        ]

    def agree_on_reap(self, counts: ReapCounts, commands: Sequence[tuple[str, Reap]]) -> list[Answer]:
        answers = [super(TableHistory, self).do(name, command) for name, command in commands]
        assert replace(counts, late_s=0.0) == ReapCounts(
            requeued=sum(isinstance(answer, Requeued) for answer in answers),
            dead_lettered=sum(isinstance(answer, DeadLettered) for answer in answers),
            canceled=sum(isinstance(answer, Canceled) for answer in answers),
        )
        return answers

    def new_id(self) -> str:
        return str(new_id())

    # Agreement

    def check_all(self) -> None:
        super().check_all()
        found = self.tables.look()
        self.check_views(found)
        self.check_tokens([*found["leases"], *found["attempts"]])
        self.check_dead_letters(found["dead_letters"])
        self.check_told(found["outbox"])
        self.check_counters(found["jobs"], found["counts"])

    def check_views(self, found: dict[str, list[asyncpg.Record]]) -> None:
        """No job is lost or made up, each stands where the machine says, and nothing belongs to no job."""
        leases = {str(row["resource_id"]): lease_in(row) for row in found["leases"]}
        closed: dict[str, list[ClosedAttempt]] = {}
        for row in found["attempts"]:
            closed.setdefault(str(row["job_id"]), []).append(closed_in(row))
        views = {}
        for row in found["jobs"]:
            name = str(row["id"])
            assert (row["finished_at"] is not None) == (row["status"] in FINAL_STATUSES)
            view = view_in(row, leases.pop(name, None), closed.pop(name, []))
            if view.status is JobStatus.CANCELED:
                view = replace(view, cancel_requested=self.views[name].cancel_requested)
            views[name] = view
        assert views == self.views
        assert (leases, closed) == ({}, {})

    def check_tokens(self, rows: Sequence[asyncpg.Record]) -> None:
        assert sorted(str(row["lease_token"]) for row in rows) == sorted(self.tokens)

    def check_dead_letters(self, rows: Sequence[asyncpg.Record]) -> None:
        dead = [name for name, job in self.views.items() if job.status is JobStatus.ERROR]
        assert sorted(str(row["job_id"]) for row in rows) == sorted(dead)

    def check_told(self, rows: Sequence[asyncpg.Record]) -> None:
        """The world is told of every change once, in order, along legal edges, and of nothing after a job's end."""
        told: dict[str, list[tuple[str, int]]] = {}
        for row in rows:
            told.setdefault(str(row["job_id"]), []).append((row["event"], row["version"]))
        assert set(told) == set(self.views)
        for name, changes in told.items():
            assert [version for _, version in changes] == list(range(1, len(changes) + 1))
            passed = [STATUS_AFTER[event] for event, _ in changes]
            assert passed[-1] is self.views[name].status
            assert not FINAL_STATUSES.intersection(passed[:-1]), "something happened after the end"
            assert set(zip([None, *passed[:-1]], passed, strict=True)) <= EDGES

    def check_counters(self, jobs: Sequence[asyncpg.Record], rows: Sequence[asyncpg.Record]) -> None:
        counts = Counter((row["queue"], row["status"]) for row in jobs)
        told = {(row["queue"], status.value): row[status.value] for row in rows for status in JobStatus}
        assert {where: count for where, count in told.items() if count} == counts

    def run_to_the_end(self) -> None:
        """With nobody failing any more, every job ends."""
        for _ in range(40):
            self.now += 2 * TTL
            self.reap_page(1000, 0.0)
            for name in self.live():
                if self.views[name].status is JobStatus.QUEUED and (ref := self.claim(name, 0)):
                    self.do(name, Complete(ref))
            if not self.live():
                break
        assert not self.live(), "a job never ends"
        self.check_all()


def forged(attempt_of: Held, token_of: Held, verb: str) -> Command:
    """A report that shows the attempt of the one and the token of the other."""
    ref = ClaimRef(attempt_of[1].attempt_id, token_of[1].lease_token)
    commands: dict[str, Command] = {
        "complete": Complete(ref),
        "fail": Fail(claim=ref, retryable=True, jitter=0.0),
        "release": Release(ref),
    }
    return commands[verb]


def beat(job_id: UUID, command: Heartbeat) -> Beat:
    return Beat(job_id=job_id, lease_token=UUID(command.lease_token), claim_version=command.claim_version)


def proof(job_id: UUID, ref: ClaimRef) -> dict[str, Any]:
    return {"job_id": job_id, "attempt_id": UUID(ref.attempt_id), "lease_token": UUID(ref.lease_token)}


def failure(job_id: UUID, command: Fail) -> Failure:
    return Failure(**proof(job_id, command.claim), error="{}", retryable=command.retryable)


def renewal(answer: Renewed) -> Renewal:
    return Renewal(
        lease_expires_at=datetime.fromtimestamp(answer.lease.lease_expires_at, timezone.utc),
        claim_version=answer.lease.claim_version,
        cancel_requested=answer.cancel_requested,
    )


def claim_in(row: asyncpg.Record) -> ClaimRef:
    return ClaimRef(str(row["attempt_id"]), str(row["lease_token"]))


def lease_in(row: asyncpg.Record) -> tuple[Lease, int]:
    lease = Lease(
        claim=claim_in(row), lease_expires_at=row["lease_expires_at"].timestamp(), claim_version=row["claim_version"]
    )
    return lease, row["attempt_no"]


def closed_in(row: asyncpg.Record) -> ClosedAttempt:
    return ClosedAttempt(claim=claim_in(row), number=row["number"], outcome=AttemptOutcome(row["outcome"]))


def view_in(row: asyncpg.Record, lease: tuple[Lease, int] | None, closed: Sequence[ClosedAttempt]) -> JobView:
    assert lease is None or lease[1] == row["attempt_no"]
    return JobView(
        job_id=str(row["id"]),
        max_attempts=row["max_attempts"],
        status=JobStatus(row["status"]),
        enqueue_id=row["enqueue_id"],
        run_after=row["run_after"].timestamp(),
        in_line=row["order_at"] is not None,
        attempt_no=row["attempt_no"],
        attempt_count=row["attempt_count"],
        cancel_requested=row["cancel_requested"],
        lease=lease[0] if lease else None,
        closed=tuple(closed),
        redriven_from=str(row["redriven_from"]) if row["redriven_from"] else None,
    )
