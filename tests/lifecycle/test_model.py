"""The tables and the pure machine live through the same histories, and agree at every step.

The rules, the promises and the test's own ledger are those of the machine's test. Here every command goes to Postgres
too; the statements must answer what the machine answers, and leave rows that say what the machine's view says. Tests at
the end take one guard out of a statement, and must see it fail.

What differs, and is bridged: instants of the machine are seconds, so the tables live in 1970; jitters are eighths,
which both can say exactly; a poll takes only what was promoted before, and no expired lease; the table marks every
canceled job as asked to stop, the machine only one that was running then; and every job has a queue of its own, so that
a poll can be for one job.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from datetime import datetime, timezone
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import MultipleResults, initialize, multiple, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from jobd.ids import new_id
from jobd.job.machine import decide_redrive
from jobd.job.model import (
    Cancel,
    Canceled,
    Claim,
    Claimed,
    ClaimRef,
    ClosedAttempt,
    Complete,
    DeadLettered,
    Fail,
    Heartbeat,
    JobView,
    Lease,
    NotClaimable,
    Reap,
    Release,
    Renewed,
    Requeued,
)
from jobd.job.status import FINAL_STATUSES, AttemptOutcome, JobStatus
from jobd.lifecycle import claim as claim_verb
from jobd.lifecycle import complete as complete_verb
from jobd.lifecycle import fail as fail_verb
from jobd.lifecycle import heartbeat as heartbeat_verb
from jobd.lifecycle import reap as reap_verb
from jobd.lifecycle import release as release_verb
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
from jobd.store.postgres import Database
from tests.support.factories import empty, new_job
from tests.unit.test_machine_properties import (
    AGES,
    BROKEN,
    CHANCE,
    CLOCK_STEPS_S,
    EVENTS,
    FEW,
    POLICY,
    SETTINGS,
    STEPS,
    TTL,
    AnyHistory,
    Held,
    History,
    Step,
    command,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from jobd.job.model import Answer, Command

T = TypeVar("T")

CI = settings(SETTINGS, max_examples=40, stateful_step_count=40)
LONG = settings(SETTINGS, max_examples=2000, stateful_step_count=80)

#: A queued job may be promoted, or stay as it is, without any event.
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
MORE_EVENTS = [*EVENTS, *"claim claim clock claim_all complete_all fail_all reap_page promote forge".split()]

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


@pytest.fixture
def tables(url: str) -> Iterator[Tables]:
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        database = Database(url, 1)
        with portal.wrap_async_context_manager(database.opened()):
            yield Tables(portal, database)


class TableHistory(History):
    """A history that happens in the tables and in the machine at once."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables
        self.pool = tables.database.pool
        self.keys: dict[str, tuple[str, bytes]] = {}
        self.queues: dict[str, str] = {}
        tables.call(empty, self.pool)

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.now, timezone.utc)

    # Into the queue

    def submit(self, max_attempts: int, delay_s: float) -> None:
        name = self.new_id()
        job = new_job(id=UUID(name), queue=name, max_attempts=max_attempts, delay_s=delay_s)

        answers = self.tables.call(enqueue, self.tables.database, [job], now=self.at)

        assert answers == [Created(job.id)]
        self.add(JobView(job_id=name, max_attempts=max_attempts, run_after=self.now + delay_s), "submit")

    def submit_with_key(self, key: str, body: bytes) -> None:
        name = self.new_id()
        booked = IdempotencyKey(principal="p", key=key, body_hash=body, life_s=FOR_EVER_S)
        job = new_job(id=UUID(name), queue=name, max_attempts=1, key=booked)

        (answer,) = self.tables.call(enqueue, self.tables.database, [job], now=self.at)

        known, known_body = self.keys.setdefault(key, (name, body))
        if known == name:
            assert answer == Created(job.id)
            self.add(JobView(job_id=name, max_attempts=1, run_after=self.now), "submit")
        else:
            assert answer == (Existing if known_body == body else KeyMismatch)(UUID(known))

    def add(self, job: JobView, event: str) -> None:
        super().add(job, event)
        self.queues[job.job_id] = self.queues[job.redriven_from] if job.redriven_from else job.job_id

    def redrive(self, name: str) -> None:
        old = self.views[name]

        made = self.tables.call(redrive, self.pool, [UUID(name)], now=self.at)

        assert set(made) == ({UUID(name)} if old.status is JobStatus.ERROR else set())
        for new_id_ in made.values():
            new = decide_redrive(old, str(new_id_), now=self.now)
            assert isinstance(new, JobView)
            self.add(new, "redrive")

    def promote(self) -> None:
        promoted = self.tables.call(promote_due, self.pool, now=self.at)

        assert all(self.views[str(job_id)].run_after <= self.now for job_id in promoted)

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

        answers = self.tables.call(claim, self.pool, asks, ttl_s=TTL, now=self.at)

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
            poll_claim, self.pool, [self.queues[name]], owner_id="w", most=2, ttl_s=TTL, now=self.at
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
            return await cancel(self.pool, [job_id], now=self.at)
        if isinstance(command, Heartbeat):
            return await heartbeat(self.pool, [beat(job_id, command)], ttl_s=TTL, now=self.at)
        if isinstance(command, Complete):
            return await complete(self.pool, [Completion(**proof(job_id, command.claim))], now=self.at)
        if isinstance(command, Release):
            return await release(self.pool, [Holder(**proof(job_id, command.claim))], now=self.at)
        assert isinstance(command, Fail)
        return await fail(self.pool, [failure(job_id, command)], policy=POLICY, jitter=command.jitter, now=self.at)

    def complete_all(self, claims: Sequence[Held]) -> None:
        """Reports of anybody, in one batch; the machine takes them one after the other."""
        reports = [Completion(**proof(UUID(name), ref)) for name, ref in claims]

        answers = self.tables.call(complete, self.pool, reports, now=self.at)

        for (name, ref), told in zip(claims, answers, strict=True):
            assert told == super().do(name, Complete(ref))

    def fail_all(self, claims: Sequence[Held], retryable: bool) -> None:
        commands = [Fail(claim=ref, retryable=retryable, jitter=0.5) for _, ref in claims]
        reports = [failure(UUID(name), one) for (name, _), one in zip(claims, commands, strict=True)]

        answers = self.tables.call(fail, self.pool, reports, policy=POLICY, jitter=0.5, now=self.at)

        for (name, _), one, told in zip(claims, commands, answers, strict=True):
            assert told == super().do(name, one)

    def reap_seen(self, name: str, command: Reap) -> Answer:
        """A reaper looks again for itself, so what was seen before does not matter."""
        self.reap_page(100, command.jitter)
        return super().do(name, command)

    def reap_page(self, most: int, jitter: float) -> None:
        page = self.overdue()[:most]

        counts = self.tables.call(reap, self.pool, policy=POLICY, most=most, jitter=jitter, now=self.at)

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
        attempt_no=row["attempt_no"],
        attempt_count=row["attempt_count"],
        cancel_requested=row["cancel_requested"],
        lease=lease[0] if lease else None,
        closed=tuple(closed),
        redriven_from=str(row["redriven_from"]) if row["redriven_from"] else None,
    )


class AnyTableHistory(AnyHistory):
    """The rules of the machine's test, and some that only make sense with statements."""

    history: TableHistory

    def __init__(self, history: TableHistory) -> None:
        super().__init__()
        self.history = history

    @initialize(target=AnyHistory.claims, first=st.integers(1, 3), second=st.integers(1, 3))
    def two_jobs_are_running(self, first: int, second: int) -> MultipleResults[Held]:
        """Else many histories would be of jobs that nobody submits or claims."""
        for max_attempts in (first, second):
            self.history.submit(max_attempts, 0.0)
        refs = {name: self.history.claim(name, 0) for name in self.history.views}
        return multiple(*((name, ref) for name, ref in refs.items() if ref))

    @precondition(lambda self: len(self.history.live()) < FEW)
    @rule(key=st.sampled_from("ab"), body=st.sampled_from([b"1", b"1", b"2"]))
    def submit_with_key(self, key: str, body: bytes) -> None:
        self.history.submit_with_key(key, body)

    @precondition(lambda self: self.history.views)
    @rule(
        target=AnyHistory.claims,
        wanted=st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0, 0, 1])), min_size=2, max_size=6),
    )
    def claim_in_a_batch(self, wanted: list[tuple[int, int]]) -> MultipleResults[Held]:
        named = [(self.history.pick(which), age) for which, age in wanted]
        refs = self.history.claim_all(named)
        return multiple(*((name, ref) for (name, _), ref in zip(named, refs, strict=True) if ref))

    @rule(held=AnyHistory.claims, claim_version=st.integers(0, 3))
    def heartbeat_by_version(self, held: Held, claim_version: int) -> None:
        self.history.do(held[0], Heartbeat(lease_token=held[1].lease_token, ttl_s=TTL, claim_version=claim_version))

    @rule(claims=st.lists(AnyHistory.claims, min_size=2, max_size=5))
    def complete_in_a_batch(self, claims: list[Held]) -> None:
        self.history.complete_all(claims)

    @rule(claims=st.lists(AnyHistory.claims, min_size=2, max_size=5), retryable=st.booleans())
    def fail_in_a_batch(self, claims: list[Held], retryable: bool) -> None:
        self.history.fail_all(claims, retryable)

    @rule(held=AnyHistory.claims, other=AnyHistory.claims, verb=st.sampled_from(["complete", "fail", "release"]))
    def report_with_the_token_of_another(self, held: Held, other: Held, verb: str) -> None:
        self.history.do(held[0], forged(held, other, verb))

    @rule(held=AnyHistory.claims, other=AnyHistory.claims, verb=st.sampled_from(["complete", "fail", "release"]))
    def report_with_the_attempt_of_another(self, held: Held, other: Held, verb: str) -> None:
        self.history.do(held[0], forged(other, held, verb))

    @rule(held=AnyHistory.claims, other=AnyHistory.claims)
    def complete_another_job(self, held: Held, other: Held) -> None:
        self.history.do(other[0], Complete(held[1]))

    @rule(held=AnyHistory.claims, other=AnyHistory.claims)
    def heartbeat_another_job(self, held: Held, other: Held) -> None:
        self.history.do(other[0], Heartbeat(lease_token=held[1].lease_token, ttl_s=TTL))

    @precondition(lambda self: self.history.overdue())
    @rule(most=st.integers(1, 3), jitter=CHANCE)
    def reap_a_page(self, most: int, jitter: float) -> None:
        self.history.reap_page(most, round(jitter * 8) / 8)

    @precondition(lambda self: self.history.delayed())
    @rule()
    def promote(self) -> None:
        self.history.promote()

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:  # else the history has failed already, and that is what counts
            self.history.run_to_the_end()


def wander(history: TableHistory, random: Random, steps: int) -> TableHistory:
    """The same by dice alone, which get around more in the same time."""
    claims: list[Held] = []
    for _ in range(steps):
        if len(history.live()) < FEW:
            history.submit(random.randint(1, 3), random.choice([0.0, 0.0, 30.0]))
        name, ref = random.choice(claims[-5:] if random.random() < 0.7 else claims) if claims else ("", None)
        event = random.choice(MORE_EVENTS)
        if event in ("claim", "claim_all") or ref is None:
            ages = AGES if event == "claim" else [0, 0, 1]
            named = [history.pick(random.randrange(100)) for _ in range(1 if event == "claim" else 4)]
            refs = (
                [history.claim(named[0], random.choice(ages))]
                if event == "claim"
                else history.claim_all([(one, random.choice([0, 0, 1])) for one in named])
            )
            claims += [(one, found) for one, found in zip(named, refs, strict=True) if found]
        elif event == "clock":
            history.now += random.choice(CLOCK_STEPS_S)
        elif event == "redrive":
            history.redrive(name)
        elif event == "complete_again":
            history.complete_again(name, ref)
        elif event == "complete_all":
            history.complete_all(random.choices(claims[-6:], k=2))
        elif event == "fail_all":
            history.fail_all(random.choices(claims[-6:], k=2), random.random() < 0.7)
        elif event == "reap_page":
            history.reap_page(random.randint(1, 3), 0.5)
        elif event == "promote":
            history.promote()
        elif event == "forge":
            one, other = random.sample([(name, ref), random.choice(claims[-5:])], 2)
            history.do(name, forged(one, other, random.choice(["complete", "fail", "release"])))
        else:
            history.do(name, command(event, ref, random))
        history.check_all()
    history.run_to_the_end()
    return history


def drive(make: Callable[[], TableHistory], how: settings) -> None:
    run_state_machine_as_test(lambda: AnyTableHistory(make()), settings=how)  # type: ignore[arg-type, no-untyped-call, unused-ignore]  # any callable will do


@pytest.mark.timeout(60)
def test_tables_and_machine_agree_in_any_history(tables: Tables) -> None:
    drive(lambda: TableHistory(tables), CI)


@pytest.mark.timeout(60)
def test_tables_and_machine_agree_in_random_histories_that_reach_every_transition(tables: Tables) -> None:
    reached: set[Step] = set()

    for seed in range(24):
        reached |= wander(TableHistory(tables), Random(seed), steps=100).reached

    assert reached == STEPS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_and_machine_agree_in_very_many_histories(tables: Tables) -> None:
    drive(lambda: TableHistory(tables), LONG)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_and_machine_agree_in_very_many_random_histories(tables: Tables) -> None:
    for seed in range(1000, 2000):
        wander(TableHistory(tables), Random(seed), steps=100)


# A guard less


def without(text: str, *guards: str) -> str:
    """The statement without these words, each of which must stand there once."""
    for guard in guards:
        assert text.count(guard) == 1, guard
        text = text.replace(guard, "")
    return text


TOKEN = " AND l.lease_token = a.lease_token"
ATTEMPT = " AND l.attempt_id = a.attempt_id"
ENQUEUE_ID = " AND jobs.enqueue_id = a.enqueue_id"
NOT_EXPIRED = " AND l.lease_expires_at < clock($7)"

#: Answers or rows are not what the machine says, an answer is to nothing that was asked, or a constraint steps in.
FOUND_OUT = (AssertionError, KeyError, asyncpg.PostgresError)

BREAKS = {
    "complete without the token": (complete_verb, "COMPLETE_IF_LEASED", [TOKEN]),
    "complete without the attempt": (complete_verb, "COMPLETE_IF_LEASED", [ATTEMPT]),
    "complete without token and attempt": (complete_verb, "COMPLETE_IF_LEASED", [TOKEN, ATTEMPT]),
    "fail without the token": (fail_verb, "FAIL_IF_LEASED", [TOKEN]),
    "release without the token": (release_verb, "RELEASE_IF_LEASED", [TOKEN]),
    "heartbeat without the token": (heartbeat_verb, "HEARTBEAT_LEASES", [TOKEN]),
    "claim without the enqueue_id": (claim_verb, "CLAIM_JOBS", [ENQUEUE_ID]),
    "claim before its time": (claim_verb, "CLAIM_JOBS", ["jobs.run_after <= clock($7) AND "]),
    "takeover of a live lease": (claim_verb, "TAKE_OVER_JOBS", [NOT_EXPIRED]),
    "takeover by a stale message": (claim_verb, "TAKE_OVER_JOBS", [ENQUEUE_ID]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("broken", BREAKS)
def test_a_statement_without_one_of_its_guards_is_found_out(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    module, name, guards = BREAKS[broken]
    monkeypatch.setattr(module, name, without(getattr(module, name), *guards))

    with pytest.raises(FOUND_OUT):
        for seed in range(100):
            wander(TableHistory(tables), Random(seed), steps=100)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", ["complete without the token", "claim without the enqueue_id"])
def test_hypothesis_finds_it_out_too(tables: Tables, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    module, name, guards = BREAKS[broken]
    monkeypatch.setattr(module, name, without(getattr(module, name), *guards))

    with pytest.raises(FOUND_OUT):
        drive(lambda: TableHistory(tables), BROKEN)


# A reaper that looked long ago

LOOK = """SELECT resource_id, attempt_id FROM leases
    WHERE resource_type = 'JOB' AND lease_expires_at < clock($6) - make_interval(secs => $4)
    ORDER BY resource_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
"""
#: The page comes from a table that the test fills, with whatever age. (The other parameters have to stand somewhere.)
STALE_LOOK = """SELECT resource_id, attempt_id FROM stale_page
    WHERE make_interval(secs => $4) IS NOT NULL LIMIT $1::integer
"""
SAME_ATTEMPT = " AND l.attempt_id = o.attempt_id"
STILL_OVERDUE = "AND l.lease_expires_at < clock($6)"


class StaleReaper(TableHistory):
    """Whose reaper writes long after it looked: other statements have come in between."""

    def reap_seen(self, name: str, command: Reap) -> Answer:
        (answer,) = self.reap_stale([(name, command)])
        return answer

    def reap_page(self, most: int, jitter: float) -> None:
        page = self.overdue()[:most]
        self.reap_stale([(name, Reap(attempt_id=attempt, jitter=jitter)) for name, attempt in page])

    def reap_stale(self, commands: Sequence[tuple[str, Reap]]) -> list[Answer]:
        call, jitter = self.tables.call, commands[0][1].jitter if commands else 0.0
        call(self.pool.execute, "DELETE FROM stale_page")
        page = [(UUID(name), UUID(command.attempt_id)) for name, command in commands]
        call(self.pool.executemany, "INSERT INTO stale_page VALUES ($1, $2)", page)

        counts = call(reap, self.pool, policy=POLICY, most=100, jitter=jitter, now=self.at)

        return self.agree_on_reap(counts, commands)


@pytest.fixture
def stale_page(tables: Tables) -> Iterator[None]:
    execute = tables.database.pool.execute
    tables.call(execute, "CREATE UNLOGGED TABLE stale_page (resource_id uuid, attempt_id uuid)")
    yield
    tables.call(execute, "DROP TABLE stale_page")


def stale_reaper(*dropped: str) -> str:
    text = reap_verb.REAP_EXPIRED
    assert text.count(LOOK) == 1
    return without(text.replace(LOOK, STALE_LOOK), *dropped)


@pytest.mark.timeout(60)
def test_a_reaper_that_looked_long_ago_does_no_harm(
    tables: Tables, stale_page: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap_verb, "REAP_EXPIRED", stale_reaper())

    for seed in range(8):
        wander(StaleReaper(tables), Random(seed), steps=100)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "dropped",
    [
        [SAME_ATTEMPT, STILL_OVERDUE],
        pytest.param([SAME_ATTEMPT], marks=pytest.mark.slow),
        pytest.param([STILL_OVERDUE], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_reaper_that_looked_long_ago_and_does_not_look_again_is_found_out(
    tables: Tables, stale_page: None, monkeypatch: pytest.MonkeyPatch, dropped: list[str]
) -> None:
    monkeypatch.setattr(reap_verb, "REAP_EXPIRED", stale_reaper(*dropped))

    with pytest.raises(FOUND_OUT):
        for seed in range(100):
            wander(StaleReaper(tables), Random(seed), steps=100)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hypothesis_finds_that_reaper_out_too(
    tables: Tables, stale_page: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap_verb, "REAP_EXPIRED", stale_reaper(SAME_ATTEMPT, STILL_OVERDUE))

    with pytest.raises(FOUND_OUT):
        drive(lambda: StaleReaper(tables), BROKEN)
