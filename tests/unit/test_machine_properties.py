"""Whatever is asked of jobs, in whatever order, by whomever: the promises about them hold at every step.

What happened is kept in a ledger of the test's own, from the commands and the answers alone, so that a guard missing in
the machine shows as a broken promise. Two tests drop a guard to prove that it does.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobd.job import machine
from jobd.job.machine import TRANSITIONS, decide_redrive
from jobd.job.model import (
    AlreadyFinished,
    Canceled,
    Claimed,
    ClaimRef,
    Completed,
    DeadLettered,
    JobView,
    Renewed,
    Requeued,
)
from jobd.job.retry import RetryPolicy
from jobd.job.status import FINAL_STATUSES, AttemptOutcome, JobStatus
from tests.support.job_model import (
    Answer,
    Cancel,
    Claim,
    Command,
    Complete,
    Fail,
    Heartbeat,
    Interrupt,
    Reap,
    Release,
    apply,
)

TTL = 60.0
POLICY = RetryPolicy(base_s=1.0, cap_s=40.0, max_interruptions=1)
SETTINGS = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate, Phase.shrink],  # explaining traces every line, and takes most of the time
)
#: Finding a dropped guard is enough; to shrink the finding proves nothing more.
BROKEN = settings(
    SETTINGS,
    max_examples=2000,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)

#: So that much happens to each job rather than little to many.
FEW = 3

Held = tuple[str, ClaimRef]
Step = tuple[JobStatus | None, str, JobStatus]

STEPS = {(row.source, row.event, row.target) for row in TRANSITIONS}
EVENTS = "claim heartbeat complete complete_again fail release cancel reap interrupt cuts redrive clock".split()

ENDS = (Completed, Requeued, DeadLettered, Canceled)
CHANCE = st.floats(min_value=0, max_value=1)
WHICH = st.integers(0, 30)
AGES = [0, 0, 0, 1, None]
CLOCK_STEPS_S = [1.0, 40.0, TTL + 1, 2 * TTL, -10.0]


class Entry:
    """What the test itself knows of one job: who holds it, until when, and all tokens it ever gave out."""

    def __init__(self) -> None:
        self.holder: ClaimRef | None = None
        self.expires_at = 0.0
        self.attempts = 0
        self.charged = 0
        self.interruptions = 0
        self.of_node = False


class History:
    """Jobs under the machine, with every promise checked at each step and a ledger to check it by."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.views: dict[str, JobView] = {}
        self.ledger: dict[str, Entry] = {}
        self.tokens: set[str] = set()
        self.reached: set[Step] = set()

    def submit(self, max_attempts: int, delay_s: float) -> None:
        job = JobView(job_id=self.new_id(), max_attempts=max_attempts, run_after=self.now + delay_s)
        self.add(job, "submit")

    def redrive(self, name: str) -> None:
        old = self.views[name]
        new = decide_redrive(old, self.new_id(), now=self.now)
        assert isinstance(new, JobView) == (old.status is JobStatus.ERROR)
        if isinstance(new, JobView):
            assert new.redriven_from == name
            self.add(new, "redrive")

    def claim(self, name: str, age: int | None, of_node: bool = False) -> ClaimRef | None:
        """Claims by a message of this age, or without one."""
        number = len(self.tokens)
        ref = ClaimRef(f"attempt-{number}", f"token-{number}")
        enqueue_id = None if age is None else self.views[name].enqueue_id - age
        answer = self.do(name, Claim(claim=ref, ttl_s=TTL, enqueue_id=enqueue_id, of_node=of_node))
        if not isinstance(answer, Claimed):
            return None
        assert age is None or age == 0, "a stale message claimed"
        assert ref.lease_token not in self.tokens
        self.tokens.add(ref.lease_token)
        return ref

    def cuts(self, name: str, is_canceled: bool) -> list[Held]:
        """Node after node takes the job, and dies."""
        held = []
        for _ in range(POLICY.max_interruptions + 1):
            self.now += TTL
            if ref := self.claim(name, 0, of_node=True):
                held.append((name, ref))
                if is_canceled:
                    self.do(name, Cancel())
                self.do(name, Interrupt(attempt_id=ref.attempt_id, jitter=0.5, is_dead=True))
        return held

    def complete_again(self, name: str, ref: ClaimRef) -> None:
        first = self.do(name, Complete(ref))
        before = self.views[name]
        again = self.do(name, Complete(ref))
        assert self.views[name] == before
        assert isinstance(again, AlreadyFinished) if isinstance(first, Completed) else again == first

    def live(self) -> list[str]:
        return [name for name, job in self.views.items() if job.status not in FINAL_STATUSES]

    def pick(self, which: int) -> str:
        """Mostly a job that can still change."""
        names = [*self.live(), *self.live(), *self.views]
        return names[which % len(names)]

    def new_id(self) -> str:
        return f"job-{len(self.views)}"

    def add(self, job: JobView, event: str) -> None:
        self.views[job.job_id] = job
        self.ledger[job.job_id] = Entry()
        self.reached.add((None, event, job.status))

    def do(self, name: str, command: Command) -> Answer:
        before, entry = self.views[name], self.ledger[name]
        after, answer = apply(before, command, now=self.now, policy=POLICY)
        self.views[name] = after
        if before.status in FINAL_STATUSES:
            assert after == before, "a final job changed"
        if after != before:
            self.note_transition(before, command, after)
        self.check_authority(command, answer, entry)
        self.check_numbers(before, after, answer, entry)
        self.check_dead_letter(before, command, after, answer)
        self.record(answer, entry)
        return answer

    def note_transition(self, before: JobView, command: Command, after: JobView) -> None:
        step = (before.status, type(command).__name__.lower(), after.status)
        assert step in STEPS
        self.reached.add(step)

    def check_authority(self, command: Command, answer: Answer, entry: Entry) -> None:
        """Only the holder renews or ends its attempt, and others only once it is overdue."""
        overdue = entry.holder is not None and entry.expires_at < self.now
        if isinstance(answer, Renewed):
            assert isinstance(command, Heartbeat)
            assert entry.holder is not None
            assert command.lease_token == entry.holder.lease_token
            assert answer.lease.lease_expires_at >= entry.expires_at
        if isinstance(command, Complete | Fail | Release) and isinstance(answer, ENDS):
            assert command.claim == entry.holder, "a zombie ended an attempt"
        if isinstance(command, Reap) and isinstance(answer, ENDS):
            assert entry.holder is not None, "a reaper ended an attempt that was over"
            assert command.attempt_id == entry.holder.attempt_id, "a reaper ended an attempt it had not seen"
            assert overdue, "a reaper ended a live attempt"
            assert not entry.of_node, "an interruption was charged as an attempt"
        if isinstance(command, Interrupt) and isinstance(answer, ENDS):
            assert entry.of_node, "the attempt of a worker counted as an interruption"
            assert entry.holder is not None, "a reaper ended an attempt that was over"
            assert command.attempt_id == entry.holder.attempt_id, "a reaper ended an attempt it had not seen"
            assert overdue or command.is_dead, "a reaper ended a live attempt"
        if isinstance(command, Claim) and isinstance(answer, ENDS):
            assert overdue
        if isinstance(answer, Claimed):
            assert entry.holder is None or overdue, "two leases on one job"
            assert entry.holder is None or not entry.of_node, "a claim took over what a node held"
            assert answer.took_over == (entry.holder is not None)

    def check_numbers(self, before: JobView, after: JobView, answer: Answer, entry: Entry) -> None:
        requeued = isinstance(answer, Requeued)
        assert after.enqueue_id == before.enqueue_id + requeued
        if requeued:
            assert (before.status, after.status) == (JobStatus.RUNNING, JobStatus.QUEUED)
        if isinstance(answer, Claimed):
            assert answer.attempt_no == entry.attempts + 1, "an attempt number recurred or was left out"
            assert before.status is JobStatus.RUNNING or before.in_line or before.run_after <= self.now

    def check_dead_letter(self, before: JobView, command: Command, after: JobView, answer: Answer) -> None:
        """A dead letter exactly when a failed attempt may not be repeated and no cancel was asked for."""
        died = after.status is JobStatus.ERROR and before.status is not JobStatus.ERROR
        assert died == isinstance(answer, DeadLettered)
        if isinstance(answer, DeadLettered | Requeued):
            assert not before.cancel_requested
        used_up = before.attempt_count >= before.max_attempts
        if isinstance(command, Interrupt):
            used_up = before.interruptions >= POLICY.max_interruptions
        refused = isinstance(command, Fail) and not command.retryable
        if isinstance(answer, DeadLettered):
            assert used_up or refused
        if isinstance(answer, Requeued) and answer.outcome is not AttemptOutcome.RELEASED:
            assert not used_up
            assert not refused
            assert self.now <= answer.run_after <= self.now + POLICY.cap_s

    def record(self, answer: Answer, entry: Entry) -> None:
        if isinstance(answer, Claimed):
            entry.holder, entry.expires_at = answer.lease.claim, answer.lease.lease_expires_at
            entry.attempts, entry.charged = entry.attempts + 1, entry.charged + 1
            entry.of_node = answer.lease.of_node
        elif isinstance(answer, Renewed):
            entry.expires_at = answer.lease.lease_expires_at
        elif isinstance(answer, ENDS):
            entry.holder = None
            outcome = None if isinstance(answer, Completed) else answer.outcome
            entry.charged -= isinstance(answer, Requeued) and outcome is AttemptOutcome.RELEASED
            entry.charged -= outcome is AttemptOutcome.INTERRUPTED
            entry.interruptions += outcome is AttemptOutcome.INTERRUPTED

    def check_all(self) -> None:
        for name, job in self.views.items():
            self.check_ledger(job, self.ledger[name])
            self.check_attempts(job)

    def check_ledger(self, job: JobView, entry: Entry) -> None:
        assert (job.lease.claim if job.lease else None) == entry.holder
        assert (job.status is JobStatus.RUNNING) == (entry.holder is not None)
        assert job.attempt_no == entry.attempts
        assert job.attempt_count == entry.charged
        assert job.interruptions == entry.interruptions

    def check_attempts(self, job: JobView) -> None:
        numbers = [attempt.number for attempt in job.closed] + ([job.attempt_no] if job.lease else [])
        assert numbers == list(range(1, job.attempt_no + 1))
        assert 0 <= job.attempt_count <= job.max_attempts
        assert 0 <= job.interruptions <= POLICY.max_interruptions + 1
        if job.status is JobStatus.QUEUED:
            assert job.attempt_count < job.max_attempts, "queued, though no attempt is left"
            assert job.interruptions <= POLICY.max_interruptions, "queued, though interrupted too often"


class AnyHistory(RuleBasedStateMachine):
    claims: Bundle[Held] = Bundle("claims")  # kept for ever: whoever lost its lease is a zombie
    sightings: Bundle[Held] = Bundle("sightings")  # what a reaper saw, perhaps long ago

    def __init__(self) -> None:
        super().__init__()
        self.history = History()

    @precondition(lambda self: len(self.history.live()) < FEW)
    @rule(max_attempts=st.integers(1, 3), delay_s=st.sampled_from([0.0, 0.0, 30.0]))
    def submit(self, max_attempts: int, delay_s: float) -> None:
        self.history.submit(max_attempts, delay_s)

    @precondition(lambda self: self.history.views)
    @rule(target=claims, which=WHICH, age=st.sampled_from(AGES), of_node=st.booleans())
    def claim(self, which: int, age: int | None, of_node: bool) -> MultipleResults[Held] | Held:
        name = self.history.pick(which)
        ref = self.history.claim(name, age, of_node)
        return (name, ref) if ref else multiple()

    @rule(held=claims)
    def heartbeat(self, held: Held) -> None:
        self.history.do(held[0], Heartbeat(lease_token=held[1].lease_token, ttl_s=TTL))

    @rule(held=claims)
    def complete(self, held: Held) -> None:
        self.history.do(held[0], Complete(held[1]))

    @rule(held=claims)
    def complete_again(self, held: Held) -> None:
        self.history.complete_again(*held)

    @rule(held=claims, retryable=st.sampled_from([True, True, False]), jitter=CHANCE)
    def fail(self, held: Held, retryable: bool, jitter: float) -> None:
        self.history.do(held[0], Fail(claim=held[1], retryable=retryable, jitter=jitter))

    @rule(held=claims, delay_s=st.sampled_from([0.0, 0.0, 30.0]))
    def release(self, held: Held, delay_s: float) -> None:
        self.history.do(held[0], Release(held[1], delay_s))

    @precondition(lambda self: self.history.views)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        self.history.do(self.history.pick(which), Cancel())

    @rule(held=claims)
    def cancel_claimed(self, held: Held) -> None:
        self.history.do(held[0], Cancel())

    @rule(target=sightings, held=claims)
    def see_a_lease(self, held: Held) -> Held:
        return held

    @rule(seen=sightings, jitter=CHANCE)
    def reap(self, seen: Held, jitter: float) -> None:
        self.history.do(seen[0], Reap(attempt_id=seen[1].attempt_id, jitter=jitter))

    @rule(seen=sightings, jitter=CHANCE, is_dead=st.booleans())
    def interrupt(self, seen: Held, jitter: float, is_dead: bool) -> None:
        self.history.do(seen[0], Interrupt(attempt_id=seen[1].attempt_id, jitter=jitter, is_dead=is_dead))

    @precondition(lambda self: self.history.views)
    @rule(which=WHICH)
    def redrive(self, which: int) -> None:
        self.history.redrive(list(self.history.views)[which % len(self.history.views)])

    @rule(seconds=st.sampled_from(CLOCK_STEPS_S))
    def move_clock(self, seconds: float) -> None:
        self.history.now += seconds

    @invariant()
    def every_promise_holds(self) -> None:
        self.history.check_all()


def wander(random: Random, steps: int) -> History:
    """The same by dice alone: no shrinking, but a hundred times as many steps a second."""
    history = History()
    claims: list[Held] = []
    for _ in range(steps):
        if len(history.live()) < FEW:
            history.submit(random.randint(1, 3), random.choice([0.0, 0.0, 30.0]))
        name, ref = random.choice(claims[-5:] if random.random() < 0.7 else claims) if claims else ("", None)
        event = random.choice(EVENTS)
        if event == "claim" or ref is None:
            name = history.pick(random.randrange(100))
            if claimed := history.claim(name, random.choice(AGES), random.random() < 0.5):
                claims.append((name, claimed))
        elif event == "cuts":
            claims += history.cuts(history.pick(random.randrange(100)), is_canceled=random.random() < 0.3)
        elif event == "clock":
            history.now += random.choice(CLOCK_STEPS_S)
        elif event == "redrive":
            history.redrive(name)
        elif event == "complete_again":
            history.complete_again(name, ref)
        else:
            history.do(name, command(event, ref, random))
        history.check_all()
    return history


def command(event: str, ref: ClaimRef, random: Random) -> Command:
    chance, jitter, other = random.random(), random.random(), random.random()
    commands: dict[str, Command] = {
        "heartbeat": Heartbeat(lease_token=ref.lease_token, ttl_s=TTL),
        "complete": Complete(ref),
        "fail": Fail(claim=ref, retryable=chance < 0.7, jitter=jitter),
        "release": Release(ref, 30.0 if chance < 0.3 else 0.0),
        "cancel": Cancel(),
        "reap": Reap(attempt_id=ref.attempt_id, jitter=other),
        "interrupt": Interrupt(attempt_id=ref.attempt_id, jitter=other, is_dead=chance < 0.5),
    }
    return commands[event]


def drive(how: settings) -> None:
    run_state_machine_as_test(AnyHistory, settings=how)  # type: ignore[no-untyped-call, unused-ignore]  # typed in newer Hypothesis


def test_every_promise_holds_in_any_history() -> None:
    drive(SETTINGS)


def test_every_promise_holds_in_a_long_random_history_that_reaches_every_transition() -> None:
    reached: set[Step] = set()

    for seed in range(1000):
        reached |= wander(Random(seed), steps=100).reached

    assert reached == STEPS


def test_a_machine_that_ignores_the_token_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "holds", lambda job, _claim: job.status is JobStatus.RUNNING)

    with pytest.raises(AssertionError, match="a zombie ended an attempt"):
        drive(BROKEN)


def test_a_heartbeat_that_ignores_the_token_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "holds_token", lambda job, _token: job.status is JobStatus.RUNNING)

    with pytest.raises(AssertionError):
        drive(BROKEN)


def test_a_reaper_that_does_not_look_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "still_overdue", lambda _job, _attempt_id, _now: True)

    with pytest.raises(AssertionError, match=r"a final job changed|a reaper ended"):
        drive(BROKEN)


def test_a_machine_that_charges_interruptions_as_attempts_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_of_node", lambda _job: False)

    with pytest.raises(AssertionError, match=r"charged as an attempt|what a node held"):
        drive(BROKEN)


def test_a_claim_that_ignores_the_lease_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_expired", lambda _job, _now: True)

    with pytest.raises(AssertionError):
        drive(BROKEN)
