"""A history of jobs that happens in the tables and in the pure machine at once, and must look the same in both.

What differs, and is bridged: instants of the machine are seconds, so the tables live in 1970; jitters are eighths,
which both can say exactly; a poll takes only what was promoted before, and no expired lease; the table marks every
canceled job as asked to stop, the machine only one that was running then; and most jobs have a queue of their own, so
that a poll can be for one job.
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
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete, complete_and_take
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, KeyMismatch, enqueue, enqueue_and_take
from jobd.lifecycle.fail import Failure, fail
from jobd.lifecycle.heartbeat import Renewal, heartbeat
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.modes import QueueMode, change_mode, queue_modes
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import ReapCounts, ReapedJob, counted, reap
from jobd.lifecycle.redrive import redrive
from jobd.lifecycle.release import Release as Handback
from jobd.lifecycle.release import release
from jobd.lifecycle.take import Want, take
from jobd.store.ids import new_id
from jobd.store.leader import NODE_PREFIX
from tests.support.factories import empty, new_job
from tests.support.job_model import Cancel, Claim, Complete, Fail, Heartbeat, Interrupt, Reap, Release
from tests.unit.test_machine_properties import POLICY, STEPS, TTL, Held, History

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    import asyncpg
    from anyio.from_thread import BlockingPortal

    from jobd.lifecycle.modes import Mode
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
        self.modes: dict[str, QueueMode] = {}
        #: Who has held each attempt, the slots of a node or a worker.
        self.owners: dict[str, str] = {}
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
        self.submitted(name, max_attempts, delay_s)

    def submit_and_take(
        self, max_attempts: int, delay_s: float, behind: str | None, names: Sequence[str], most: int, has_key: bool
    ) -> list[Held]:
        """A new job, perhaps in the queue of another, and takes from its queue and those of others."""
        name = self.new_id()
        queue = self.queues[behind] if behind else name
        booked = IdempotencyKey(principal="p", key=name, body_hash=b"", life_s=FOR_EVER_S) if has_key else None
        job = new_job(id=UUID(name), queue=queue, max_attempts=max_attempts, delay_s=delay_s, key=booked)
        self.open_queue(queue)
        wants = self.wants([queue, *(self.queues[name] for name in names)], most)
        lines = self.lines(wants)

        answers, taken = self.tables.call(enqueue_and_take, self.db, [job], wants, ttl_s=TTL, now=self.at)

        assert answers == [Created(job.id)]
        self.submitted(name, max_attempts, delay_s, queue)
        if delay_s <= 0:
            lines[queue].append((self.at, name))
        return self.agree_on_take(wants, lines, taken)

    def submitted(self, name: str, max_attempts: int, delay_s: float, queue: str | None = None) -> None:
        run_after = self.now + delay_s
        self.add(JobView(job_id=name, max_attempts=max_attempts, run_after=run_after, in_line=delay_s <= 0), "submit")
        self.queues[name] = queue or name

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
        self.open_queue(self.queues[job.job_id])

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

    def claim(self, name: str, age: int | None, of_node: bool = False) -> ClaimRef | None:
        owner_id = self.new_owner(of_node)
        if age is None:
            return self.poll(name, owner_id)
        (ref,) = self.claim_all([(name, age)], owner_id)
        return ref

    def new_owner(self, of_node: bool) -> str:
        """Nodes have one lease each, so that the death of one is about one job."""
        return f"{NODE_PREFIX}{new_id()}" if of_node else "w"

    def claim_all(self, wanted: Sequence[tuple[str, int]], owner_id: str = "w") -> list[ClaimRef | None]:
        """Claims by messages of these ages, in one batch.

        The machine takes them one after the other, but those last that were refused: the statements find the reasons
        when the others are through.
        """
        asks = [
            Ask(job_id=UUID(name), enqueue_id=self.views[name].enqueue_id - age, owner_id=owner_id)
            for name, age in wanted
        ]

        answers = self.tables.call(claim, self.db, asks, ttl_s=TTL, now=self.at)

        refs: dict[int, ClaimRef | None] = {}
        for n in sorted(range(len(asks)), key=lambda n: isinstance(answers[n], NotClaimable)):
            refs[n] = self.agree_on_claim(wanted[n][0], asks[n].enqueue_id, answers[n])
        return [refs[n] for n in range(len(asks))]

    def poll(self, name: str, owner_id: str) -> ClaimRef | None:
        """Claims without a message. The job must be the first of its queue; a redriven one may stand behind another."""
        self.promote()
        waiting = [one for one in self.queued_in(self.queues[name]) if one != name]
        if waiting:
            return None
        wants = [Want(self.queues[name], [owner_id, owner_id])]
        claimed = self.tables.call(take, self.db, wants, ttl_s=TTL, any_mode=True, now=self.at)

        if self.views[name].status is JobStatus.QUEUED:
            return self.agree_on_claim(name, None, claimed[0] if claimed else None)
        assert claimed == []
        return None

    # Takes

    def open_queue(self, queue: str) -> None:
        if queue not in self.modes:
            self.modes[queue] = QueueMode()
            self.switch(queue)

    def switch(self, queue: str) -> None:
        """From one mode to the other."""
        old = self.modes[queue]
        new: Mode = "stream" if old.mode == "direct" else "direct"

        assert self.tables.call(change_mode, self.db, queue, new, mode_no=old.mode_no)

        self.modes[queue] = QueueMode(new, old.mode_no + 1)
        assert self.tables.call(queue_modes, self.db) == self.modes

    def pick_some(self, random: Random) -> list[str]:
        return [self.pick(random.randrange(100)) for _ in range(random.randint(1, 4))]

    def take(self, names: Sequence[str], most: int) -> list[Held]:
        """Takes from the queues of these jobs."""
        wants = self.wants([self.queues[name] for name in names], most)
        lines = self.lines(wants)

        taken = self.tables.call(take, self.db, wants, ttl_s=TTL, now=self.at)

        return self.agree_on_take(wants, lines, taken)

    def complete_and_take(self, claims: Sequence[Held], names: Sequence[str], most: int) -> list[Held]:
        reports = [Completion(**proof(UUID(name), ref)) for name, ref in claims]
        wants = self.wants([self.queues[name] for name in names], most)
        lines = self.lines(wants)

        answers, taken = self.tables.call(complete_and_take, self.db, reports, wants, ttl_s=TTL, now=self.at)

        for (name, ref), answer in zip(claims, answers, strict=True):
            assert answer == super().do(name, Complete(ref))
        return self.agree_on_take(wants, lines, taken)

    def wants(self, queues: Sequence[str], most: int) -> list[Want]:
        return [
            Want(queue, [self.new_owner(True) if n % 2 else f"{queue}-{n}" for n in range(most)])
            for queue in dict.fromkeys(queues)
        ]

    def lines(self, wants: Sequence[Want]) -> dict[str, list[tuple[datetime, str]]]:
        """For each queue, who waits there and where."""
        text = "SELECT queue, order_at, id FROM jobs WHERE order_at IS NOT NULL AND queue = ANY ($1::text[])"
        lines: dict[str, list[tuple[datetime, str]]] = {want.queue: [] for want in wants}
        for row in self.tables.call(self.db.fetch, text, list(lines)):
            lines[row["queue"]].append((row["order_at"], str(row["id"])))
        return lines

    def agree_on_take(
        self, wants: Sequence[Want], lines: dict[str, list[tuple[datetime, str]]], taken: Sequence[ClaimedJob]
    ) -> list[Held]:
        """What was taken is what stood first in each line, in its order, and the machine claims it too."""
        by_owner = {job.owner_id: job for job in taken}
        expected = {
            owner_id: name
            for want in wants
            if self.modes[want.queue].mode == "direct"
            for owner_id, (_, name) in zip(want.owner_ids, sorted(lines[want.queue]), strict=False)
        }
        assert {owner_id: str(job.job_id) for owner_id, job in by_owner.items()} == expected
        assert len(by_owner) == len(taken)
        refs = [(name, self.agree_on_claim(name, None, by_owner[owner_id])) for owner_id, name in expected.items()]
        return [(name, ref) for name, ref in refs if ref]

    def queued_in(self, queue: str) -> list[str]:
        return [
            name for name in self.views if self.queues[name] == queue and self.views[name].status is JobStatus.QUEUED
        ]

    def agree_on_claim(self, name: str, enqueue_id: int | None, claimed: object) -> ClaimRef | None:
        """The machine claims too, by the same token; both must come to the same."""
        ref, of_node = ClaimRef(f"attempt-{new_id()}", "no token"), False
        if isinstance(claimed, ClaimedJob):
            ref = ClaimRef(str(claimed.attempt_id), str(claimed.lease_token))
            self.owners[ref.attempt_id] = claimed.owner_id
            of_node = is_node(claimed.owner_id)
        answer = super().do(name, Claim(claim=ref, ttl_s=TTL, enqueue_id=enqueue_id, of_node=of_node))
        if not isinstance(answer, Claimed):
            assert claimed == answer or (claimed is None and isinstance(answer, NotClaimable))
            return None
        assert isinstance(claimed, ClaimedJob), f"the machine claims, the table does not: {claimed}"
        assert enqueue_id in (None, self.views[name].enqueue_id), "a stale message claimed"
        assert (claimed.attempt_no, claimed.enqueue_id) == (answer.attempt_no, self.views[name].enqueue_id)
        assert claimed.attempt_count == self.views[name].attempt_count
        assert claimed.lease_expires_at.timestamp() == answer.lease.lease_expires_at
        assert ref.lease_token not in self.tokens, "a token recurred"
        self.tokens.add(ref.lease_token)
        return ref

    def do(self, name: str, command: Command) -> Answer:
        if isinstance(command, Fail | Reap | Interrupt):
            command = replace(command, jitter=round(command.jitter * 8) / 8)
        if isinstance(command, Interrupt) and command.is_dead and is_node(self.owners[command.attempt_id]):
            return self.interrupt(name, command)
        if isinstance(command, Reap | Interrupt):
            return self.reap_seen(name, self.reaping(command.attempt_id, command.jitter))
        answered = self.run_verb(name, command)
        answer = super().do(name, command)
        assert answered == (renewal(answer) if isinstance(answer, Renewed) else answer)
        return answer

    def run_verb(self, name: str, command: Command) -> object:
        """What the verb answers to it."""
        (answer,) = self.tables.call(self._run_verb, UUID(name), command)
        return answer

    async def _run_verb(self, job_id: UUID, command: Command) -> Sequence[object]:
        if isinstance(command, Cancel):
            return await cancel(self.db, [job_id], now=self.at)
        if isinstance(command, Heartbeat):
            return await heartbeat(self.db, [beat(job_id, command)], ttl_s=TTL, now=self.at)
        if isinstance(command, Complete):
            return await complete(self.db, [Completion(**proof(job_id, command.claim))], now=self.at)
        if isinstance(command, Release):
            holder = Handback(**proof(job_id, command.claim), delay_s=command.delay_s)
            return await release(self.db, [holder], now=self.at)
        assert isinstance(command, Fail)
        return await fail(self.db, [failure(job_id, command)], policy=POLICY, jitter=command.jitter, now=self.at)

    def complete_all(self, claims: Sequence[Held]) -> None:
        """Reports of anybody, in one batch; the machine takes them one after the other."""
        reports = [Completion(**proof(UUID(name), ref)) for name, ref in claims]

        answers = self.tables.call(complete, self.db, reports, now=self.at)

        for (name, ref), answer in zip(claims, answers, strict=True):
            assert answer == super().do(name, Complete(ref))

    def fail_all(self, claims: Sequence[Held], retryable: bool) -> None:
        commands = [Fail(claim=ref, retryable=retryable, jitter=0.5) for _, ref in claims]
        reports = [failure(UUID(name), one) for (name, _), one in zip(claims, commands, strict=True)]

        answers = self.tables.call(fail, self.db, reports, policy=POLICY, jitter=0.5, now=self.at)

        for (name, _), one, answer in zip(claims, commands, answers, strict=True):
            assert answer == super().do(name, one)

    def reaping(self, attempt_id: str, jitter: float) -> Reap | Interrupt:
        """What the end of this attempt by a reaper is to the machine."""
        kind = Interrupt if is_node(self.owners[attempt_id]) else Reap
        return kind(attempt_id=attempt_id, jitter=jitter)

    def interrupt(self, name: str, command: Interrupt) -> Answer:
        """The node that held the attempt starts again."""
        dead = [self.owners[command.attempt_id]]
        lease = self.views[name].lease
        holds = lease is not None and lease.claim.attempt_id == command.attempt_id

        reaped = self.tables.call(reap, self.db, policy=POLICY, jitter=command.jitter, now=self.at, dead_owners=dead)

        assert [str(job.job_id) for job in reaped] == ([name] if holds else [])
        (answer,) = self.agree_on_reap(reaped, [(name, command)])
        return answer

    def reap_seen(self, name: str, command: Reap | Interrupt) -> Answer:
        """A reaper looks again for itself, so what was seen before does not matter."""
        self.reap_page(100, command.jitter)
        return super().do(name, command)

    def reap_page(self, most: int, jitter: float) -> None:
        page = self.overdue()[:most]

        reaped = self.tables.call(reap, self.db, policy=POLICY, most=most, jitter=jitter, now=self.at)

        self.agree_on_reap(reaped, [(name, self.reaping(attempt, jitter)) for name, attempt in page])

    def overdue(self) -> list[tuple[str, str]]:
        return [
            (name, job.lease.claim.attempt_id)
            for name, job in sorted(self.views.items())
            if job.lease is not None and job.lease.lease_expires_at < self.now
        ]

    def agree_on_reap(
        self, reaped: Sequence[ReapedJob], commands: Sequence[tuple[str, Reap | Interrupt]]
    ) -> list[Answer]:
        answers = [super(TableHistory, self).do(name, command) for name, command in commands]
        assert replace(counted(reaped), late_s=0.0) == ReapCounts(
            requeued=sum(isinstance(answer, Requeued) for answer in answers),
            dead_lettered=sum(isinstance(answer, DeadLettered) for answer in answers),
            canceled=sum(isinstance(answer, Canceled) for answer in answers),
            interrupted=sum(
                isinstance(answer, Requeued | DeadLettered | Canceled) and answer.outcome is AttemptOutcome.INTERRUPTED
                for answer in answers
            ),
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
        """The outbox has every change once, in order, along legal edges, and none after a job's end."""
        changes_of: dict[str, list[tuple[str, int]]] = {}
        for row in rows:
            changes_of.setdefault(str(row["job_id"]), []).append((row["event"], row["version"]))
        assert set(changes_of) == set(self.views)
        for name, changes in changes_of.items():
            assert [version for _, version in changes] == list(range(1, len(changes) + 1))
            passed = [STATUS_AFTER[event] for event, _ in changes]
            assert passed[-1] is self.views[name].status
            assert not FINAL_STATUSES.intersection(passed[:-1]), "something happened after the end"
            assert set(zip([None, *passed[:-1]], passed, strict=True)) <= EDGES

    def check_counters(self, jobs: Sequence[asyncpg.Record], rows: Sequence[asyncpg.Record]) -> None:
        counts = Counter((row["queue"], row["status"]) for row in jobs)
        shown = {(row["queue"], status.value): row[status.value] for row in rows for status in JobStatus}
        assert {where: count for where, count in shown.items() if count} == counts

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


def is_node(owner_id: str) -> bool:
    return owner_id.startswith(NODE_PREFIX)


def forged_ref(attempt_of: Held, token_of: Held) -> ClaimRef:
    return ClaimRef(attempt_of[1].attempt_id, token_of[1].lease_token)


def forged(attempt_of: Held, token_of: Held, verb: str) -> Command:
    """A report that shows the attempt of the one and the token of the other."""
    ref = forged_ref(attempt_of, token_of)
    commands: dict[str, Command] = {
        "complete": Complete(ref),
        "fail": Fail(claim=ref, retryable=True, jitter=0.0),
        "release": Release(ref),
    }
    return commands[verb]


def beat(job_id: UUID, command: Heartbeat) -> LeaseProof:
    return LeaseProof(resource_id=job_id, lease_token=UUID(command.lease_token), claim_version=command.claim_version)


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
        claim=claim_in(row),
        lease_expires_at=row["lease_expires_at"].timestamp(),
        claim_version=row["claim_version"],
        of_node=is_node(row["owner_id"]),
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
        interruptions=row["interruptions"],
        cancel_requested=row["cancel_requested"],
        lease=lease[0] if lease else None,
        closed=tuple(closed),
        redriven_from=str(row["redriven_from"]) if row["redriven_from"] else None,
    )
