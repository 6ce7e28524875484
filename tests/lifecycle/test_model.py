"""The tables and the pure machine live through the same histories, and agree at every step.

The rules, the promises and the test's own ledger are those of the machine's test. Here every command goes to Postgres
too; the statements must answer what the machine answers, and leave rows that say what the machine's view says. Tests at
the end take one guard out of a statement, and must see it fail.
"""

from __future__ import annotations

import sys
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import MultipleResults, initialize, multiple, precondition, rule, run_state_machine_as_test

from jobd.lifecycle import claim as claim_verb
from jobd.lifecycle import complete as complete_verb
from jobd.lifecycle import enqueue_insert as insert_verb
from jobd.lifecycle import fail as fail_verb
from jobd.lifecycle import lease as lease_verb
from jobd.lifecycle import reap as reap_verb
from jobd.lifecycle import release as release_verb
from jobd.lifecycle import take as take_verb
from jobd.lifecycle.reap import reap
from jobd.store.postgres import Database
from tests.lifecycle.table_history import TableHistory, Tables, forged, forged_ref
from tests.support.job_model import Complete, Heartbeat, Interrupt, Reap
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
    WHICH,
    AnyHistory,
    Held,
    Step,
    command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from tests.support.job_model import Answer

CI = settings(SETTINGS, max_examples=40, stateful_step_count=40)
LONG = settings(SETTINGS, max_examples=500, stateful_step_count=80)

MORE_EVENTS = [
    *EVENTS,
    *"claim claim clock claim_all complete_all fail_all reap_page promote forge".split(),
    *"take complete_and_take submit_and_take switch".split(),
]
#: While jobs are few enough, takes come with a new one.
MANY = 6


@pytest.fixture
def tables(url: str) -> Iterator[Tables]:
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        database = Database(url, 1)
        with portal.wrap_async_context_manager(database.opened()):
            yield Tables(portal, database)


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

    @precondition(lambda self: self.history.views)
    @rule(target=AnyHistory.claims, some=st.lists(WHICH, min_size=1, max_size=4), most=st.integers(0, 2))
    def take(self, some: list[int], most: int) -> MultipleResults[Held]:
        return multiple(*self.history.take([self.history.pick(which) for which in some], most))

    @rule(
        target=AnyHistory.claims,
        claims=st.lists(AnyHistory.claims, min_size=1, max_size=4),
        some=st.lists(WHICH, max_size=4),
        most=st.integers(0, 2),
    )
    def complete_and_take(self, claims: list[Held], some: list[int], most: int) -> MultipleResults[Held]:
        names = [self.history.pick(which) for which in some]
        return multiple(*self.history.complete_and_take(claims, names, most))

    @precondition(lambda self: self.history.views and len(self.history.live()) < MANY)
    @rule(
        target=AnyHistory.claims,
        max_attempts=st.integers(1, 3),
        delay_s=st.sampled_from([0.0, 0.0, 30.0]),
        behind=st.none() | WHICH,
        some=st.lists(WHICH, max_size=3),
        most=st.integers(0, 2),
        has_key=st.booleans(),
    )
    def submit_and_take(
        self, max_attempts: int, delay_s: float, behind: int | None, some: list[int], most: int, has_key: bool
    ) -> MultipleResults[Held]:
        first = None if behind is None else self.history.pick(behind)
        names = [self.history.pick(which) for which in some]
        return multiple(*self.history.submit_and_take(max_attempts, delay_s, first, names, most, has_key))

    @precondition(lambda self: self.history.modes)
    @rule(which=WHICH)
    def switch(self, which: int) -> None:
        self.history.switch(self.history.queues[self.history.pick(which)])

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
        if event == "claim" or ref is None:
            name = history.pick(random.randrange(100))
            if claimed := history.claim(name, random.choice(AGES), random.random() < 0.2):
                claims.append((name, claimed))
        elif event == "claim_all":
            wanted = [(history.pick(random.randrange(100)), random.choice([0, 0, 1])) for _ in range(4)]
            refs = history.claim_all(wanted)
            claims += [(name, found) for (name, _), found in zip(wanted, refs, strict=True) if found]
        elif event == "cuts":
            claims += history.cuts(history.pick(random.randrange(100)), is_canceled=random.random() < 0.3)
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
        elif event == "take":
            claims += history.take(history.pick_some(random), random.randint(0, 2))
        elif event == "complete_and_take":
            ended = random.choices(claims[-6:], k=2)
            if random.random() < 0.5:
                ended = [(name, forged_ref(*random.sample([(name, ref), ended[0]], 2))), ended[1]]
            claims += history.complete_and_take(ended, history.pick_some(random), random.randint(0, 2))
        elif event == "submit_and_take":
            if len(history.live()) < MANY:
                behind = history.pick(random.randrange(100)) if random.random() < 0.5 else None
                claims += history.submit_and_take(
                    random.randint(1, 3),
                    random.choice([0.0, 0.0, 30.0]),
                    behind,
                    history.pick_some(random),
                    random.randint(0, 2),
                    random.random() < 0.5,
                )
        elif event == "switch":
            history.switch(history.queues[name])
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


@pytest.mark.timeout(180)
def test_tables_and_machine_agree_in_any_history(tables: Tables) -> None:
    drive(lambda: TableHistory(tables), CI)


@pytest.mark.timeout(180)
def test_tables_and_machine_agree_in_random_histories_that_reach_every_transition(tables: Tables) -> None:
    reached: set[Step] = set()

    for seed in range(100):
        reached |= wander(TableHistory(tables), Random(seed), steps=100).reached
        if seed > 22 and reached == STEPS:
            break

    assert reached == STEPS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_and_machine_agree_in_very_many_histories(tables: Tables) -> None:
    drive(lambda: TableHistory(tables), LONG)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_and_machine_agree_in_very_many_random_histories(tables: Tables) -> None:
    for seed in range(1000, 1300):
        wander(TableHistory(tables), Random(seed), steps=100)


# A guard less


def without(text: str, *guards: str | tuple[str, str]) -> str:
    """The statement without these words, each of which must stand there once, or with others in their place."""
    for guard in guards:
        words, others = guard if isinstance(guard, tuple) else (guard, "")
        assert text.count(words) == 1, words
        text = text.replace(words, others)
    return text


TOKEN = " AND l.lease_token = a.lease_token"
ATTEMPT = " AND l.attempt_id = a.attempt_id"
ENQUEUE_ID = " AND jobs.enqueue_id = a.enqueue_id"
NOT_EXPIRED = " AND l.lease_expires_at < (SELECT agreed_clock($7))"

IN_DIRECT_MODE = ("queues.mode = 'direct'", "queues.mode IS NOT NULL")

#: Answers or rows are not what the machine says, an answer is to nothing that was asked, or a constraint steps in.
FOUND_OUT = (AssertionError, KeyError, asyncpg.PostgresError)

BREAKS: dict[str, tuple[ModuleType, str, list[str | tuple[str, str]]]] = {
    "complete without the token": (complete_verb, "COMPLETE_IF_LEASED", [TOKEN]),
    "complete without the attempt": (complete_verb, "COMPLETE_IF_LEASED", [ATTEMPT]),
    "complete without token and attempt": (complete_verb, "COMPLETE_IF_LEASED", [TOKEN, ATTEMPT]),
    "fail without the token": (fail_verb, "FAIL_IF_LEASED", [TOKEN]),
    "release without the token": (release_verb, "RELEASE_IF_LEASED", [TOKEN]),
    "heartbeat without the token": (lease_verb, "RENEW_LEASES", [TOKEN]),
    "claim without the enqueue_id": (claim_verb, "CLAIM_JOBS", [ENQUEUE_ID]),
    "claim before its time": (
        claim_verb,
        "CLAIM_JOBS",
        ["(jobs.order_at IS NOT NULL OR jobs.due_at <= (SELECT agreed_clock($7))) IS TRUE AND "],
    ),
    "takeover of a live lease": (claim_verb, "TAKE_OVER_JOBS", [NOT_EXPIRED]),
    "takeover by a stale message": (claim_verb, "TAKE_OVER_JOBS", [ENQUEUE_ID]),
    "takeover of what a node held": (claim_verb, "TAKE_OVER_JOBS", [" AND NOT starts_with(l.owner_id, 'slots:')"]),
    "reaper that charges interruptions as attempts": (
        reap_verb,
        "REAP_EXPIRED",
        [("($7::text[] IS NOT NULL OR starts_with(l.owner_id, 'slots:'))", "($7::text[] IS NOT NULL)")],
    ),
    "reaper to which a silent worker is an interruption": (
        reap_verb,
        "REAP_EXPIRED",
        [("starts_with(l.owner_id, 'slots:')", "true")],
    ),
    "dead node that costs an attempt": (
        reap_verb,
        "REAP_EXPIRED",
        [("attempt_count = attempt_count - f.interrupted::integer", "attempt_count = attempt_count")],
    ),
    "complete and take without the token": (complete_verb, "COMPLETE_AND_TAKE", [TOKEN]),
    "complete and take without the attempt": (complete_verb, "COMPLETE_AND_TAKE", [ATTEMPT]),
    "take from a queue in stream mode": (take_verb, "TAKE_JOBS", [IN_DIRECT_MODE]),
    "complete and take from a queue in stream mode": (complete_verb, "COMPLETE_AND_TAKE", [IN_DIRECT_MODE]),
    "enqueue and take from a queue in stream mode": (insert_verb, "ENQUEUE_AND_TAKE", [IN_DIRECT_MODE]),
    "enqueue and take before those that wait": (
        insert_verb,
        "ENQUEUE_AND_TAKE",
        [("PARTITION BY want_no ORDER BY order_at, id", "PARTITION BY want_no ORDER BY n")],
    ),
    "enqueue and take before its time": (
        insert_verb,
        "ENQUEUE_AND_TAKE",
        [("WHEN order_at IS NOT NULL AND array_position", "WHEN array_position")],
    ),
}


@pytest.mark.timeout(180)
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
    WHERE resource_type = 'JOB' AND CASE
        WHEN $7::text[] IS NULL THEN lease_expires_at < (SELECT agreed_clock($6)) - make_interval(secs => $4)
        ELSE owner_id = ANY ($7)
    END
    ORDER BY resource_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
"""
#: The page comes from a table that the test fills, with whatever age. (The other parameters have to stand somewhere.)
STALE_LOOK = """SELECT resource_id, attempt_id FROM stale_page
    WHERE make_interval(secs => $4) IS NOT NULL AND $7::text[] IS NULL LIMIT $1::integer
"""
SAME_ATTEMPT = " AND l.attempt_id = o.attempt_id"
STILL_OVERDUE = """AND CASE
            WHEN $7::text[] IS NULL THEN l.lease_expires_at < (SELECT agreed_clock($6)) ELSE l.owner_id = ANY ($7)
        END"""


class StaleReaper(TableHistory):
    """Whose reaper writes long after it looked: other statements have come in between."""

    def reap_seen(self, name: str, command: Reap | Interrupt) -> Answer:
        (answer,) = self.reap_stale([(name, command)])
        return answer

    def interrupt(self, name: str, command: Interrupt) -> Answer:
        """Its page has no place for owners: it looks for expired leases only."""
        return self.reap_seen(name, self.reaping(command.attempt_id, command.jitter))

    def reap_page(self, most: int, jitter: float) -> None:
        page = self.overdue()[:most]
        self.reap_stale([(name, self.reaping(attempt, jitter)) for name, attempt in page])

    def reap_stale(self, commands: Sequence[tuple[str, Reap | Interrupt]]) -> list[Answer]:
        call, jitter = self.tables.call, commands[0][1].jitter if commands else 0.0
        call(self.db.execute, "DELETE FROM stale_page")
        page = [(UUID(name), UUID(command.attempt_id)) for name, command in commands]
        call(self.db.pool.executemany, "INSERT INTO stale_page VALUES ($1, $2)", page)

        reaped = call(reap, self.db, policy=POLICY, most=100, jitter=jitter, now=self.at)

        return self.agree_on_reap(reaped, commands)


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


@pytest.mark.timeout(180)
def test_a_reaper_that_looked_long_ago_does_no_harm(
    tables: Tables, stale_page: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap_verb, "REAP_EXPIRED", stale_reaper())

    for seed in range(8):
        wander(StaleReaper(tables), Random(seed), steps=100)


@pytest.mark.timeout(180)
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
