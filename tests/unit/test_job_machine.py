from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from jobd.job import diagram
from jobd.job.machine import TRANSITIONS, decide_heartbeat, decide_redrive
from jobd.job.model import (
    AlreadyFinal,
    AlreadyFinished,
    Canceled,
    CancelRequested,
    Claimed,
    ClaimRef,
    Completed,
    Conflicting,
    DeadLettered,
    JobView,
    Lease,
    LeaseLost,
    NotClaimable,
    NotClaimableReason,
    NotDeadLettered,
    NotReapable,
    Renewed,
    Requeued,
    Superseded,
)
from jobd.job.retry import RetryPolicy
from jobd.job.status import (
    FINAL_STATUSES,
    AttemptOutcome,
    DeadLetterReason,
    JobStatus,
)
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

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1000.0
TTL = 60.0
LATER = NOW + 2 * TTL  # every lease taken at NOW has expired
POLICY = RetryPolicy(base_s=1.0, cap_s=300.0)
FIRST = ClaimRef("attempt-1", "token-1")
SECOND = ClaimRef("attempt-2", "token-2")
STRANGER = ClaimRef("attempt-1", "guessed")


def queued(**changes: object) -> JobView:
    return replace(JobView(job_id="job", max_attempts=3, run_after=NOW), **changes)


def running(**changes: object) -> JobView:
    return replace(after(queued(), claim(FIRST)), **changes)


def run(job: JobView, command: Command, now: float = NOW) -> tuple[JobView, Answer]:
    return apply(job, command, now=now, policy=POLICY)


def after(job: JobView, *commands: Command, now: float = NOW) -> JobView:
    for command in commands:
        job, _ = run(job, command, now)
    return job


def answer(job: JobView, command: Command, now: float = NOW) -> Answer:
    return run(job, command, now)[1]


def claim(ref: ClaimRef, enqueue_id: int | None = None) -> Claim:
    return Claim(claim=ref, ttl_s=TTL, enqueue_id=enqueue_id)


def fail(ref: ClaimRef, *, retryable: bool = True, jitter: float = 1.0) -> Fail:
    return Fail(claim=ref, retryable=retryable, jitter=jitter)


def reap(ref: ClaimRef) -> Reap:
    return Reap(attempt_id=ref.attempt_id, jitter=1.0)


def canceling(job: JobView) -> JobView:
    return after(job, Cancel())


DONE = after(running(), Complete(FIRST))
DEAD = after(running(), fail(FIRST, retryable=False))
CANCELED = after(queued(), Cancel())
RETRIED = after(running(), fail(FIRST, jitter=0.0), claim(SECOND))


# Claim


def test_claim_of_a_due_job_charges_an_attempt_and_takes_the_lease() -> None:
    job, given = run(queued(), claim(FIRST, enqueue_id=1))

    lease = Lease(claim=FIRST, lease_expires_at=NOW + TTL, claim_version=1)
    assert given == Claimed(lease=lease, attempt_no=1, took_over=False)
    assert job == queued(status=JobStatus.RUNNING, attempt_no=1, attempt_count=1, lease=lease)


@pytest.mark.parametrize(
    ("job", "enqueue_id", "reason", "ack"),
    [
        (queued(enqueue_id=2), 1, NotClaimableReason.STALE_MESSAGE, True),
        (queued(run_after=NOW + 0.001), 1, NotClaimableReason.NOT_DUE, False),
        (queued(cancel_requested=True), 1, NotClaimableReason.CANCEL_REQUESTED, True),
        (running(), 1, NotClaimableReason.LEASED, True),
        (running(), None, NotClaimableReason.LEASED, True),
        (DONE, 1, NotClaimableReason.FINAL, True),
        (DEAD, None, NotClaimableReason.FINAL, True),
    ],
)
def test_claim_is_refused_with_its_reason(
    job: JobView, enqueue_id: int | None, reason: NotClaimableReason, ack: bool
) -> None:
    unchanged, given = run(job, claim(SECOND, enqueue_id))

    assert isinstance(given, NotClaimable)
    assert (given.reason, given.ack) == (reason, ack)
    assert unchanged == job


def test_claim_takes_over_an_expired_lease_and_closes_its_attempt() -> None:
    job, given = run(running(), claim(SECOND, enqueue_id=1), LATER)

    assert isinstance(given, Claimed)
    assert given.took_over
    assert (job.attempt_no, job.attempt_count, job.enqueue_id) == (2, 2, 1)
    assert [(closed.claim, closed.outcome) for closed in job.closed] == [(FIRST, AttemptOutcome.EXPIRED)]


def test_lease_that_ends_this_instant_is_not_taken_over() -> None:
    assert answer(running(), claim(SECOND), NOW + TTL) == NotClaimable(NotClaimableReason.LEASED)


def test_stale_message_does_not_take_over() -> None:
    assert answer(running(enqueue_id=5), claim(SECOND, enqueue_id=4), LATER) == NotClaimable(
        NotClaimableReason.STALE_MESSAGE
    )


def test_takeover_of_the_last_attempt_dead_letters_instead() -> None:
    job, given = run(running(max_attempts=1), claim(SECOND), LATER)

    assert given == DeadLettered(outcome=AttemptOutcome.EXPIRED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED)
    assert (job.status, job.attempt_no, job.lease) == (JobStatus.ERROR, 1, None)


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_takeover_of_a_job_to_be_canceled_cancels_it(max_attempts: int) -> None:
    job, given = run(canceling(running(max_attempts=max_attempts)), claim(SECOND), LATER)

    assert given == Canceled(AttemptOutcome.EXPIRED)
    assert job.status is JobStatus.CANCELED


# Heartbeat


def test_heartbeat_moves_the_expiry_and_the_version() -> None:
    job, given = run(running(), Heartbeat(lease_token="token-1", ttl_s=TTL), NOW + 20)

    lease = Lease(claim=FIRST, lease_expires_at=NOW + 20 + TTL, claim_version=2)
    assert given == Renewed(lease=lease, cancel_requested=False)
    assert job == running(lease=lease)


def test_heartbeat_never_moves_the_expiry_backwards() -> None:
    given = answer(running(), Heartbeat(lease_token="token-1", ttl_s=TTL), NOW - 3600)

    assert isinstance(given, Renewed)
    assert given.lease.lease_expires_at == NOW + TTL


def test_heartbeat_revives_an_expired_lease_that_nobody_took() -> None:
    assert isinstance(answer(running(), Heartbeat(lease_token="token-1", ttl_s=TTL), LATER), Renewed)


def test_heartbeat_reports_a_cancel_request() -> None:
    given = answer(canceling(running()), Heartbeat(lease_token="token-1", ttl_s=TTL))

    assert isinstance(given, Renewed)
    assert given.cancel_requested


@pytest.mark.parametrize("job", [queued(), after(running(), claim(SECOND), now=LATER), DONE, DEAD, CANCELED])
def test_heartbeat_with_a_token_that_is_not_current_is_lost(job: JobView) -> None:
    assert run(job, Heartbeat(lease_token="token-1", ttl_s=TTL)) == (job, LeaseLost())


def test_heartbeat_that_shows_an_old_version_is_lost() -> None:
    job = after(running(), Heartbeat(lease_token="token-1", ttl_s=TTL))

    assert decide_heartbeat(job, "token-1", ttl_s=TTL, now=NOW, claim_version=1) == LeaseLost()
    assert isinstance(decide_heartbeat(job, "token-1", ttl_s=TTL, now=NOW, claim_version=2), Renewed)


# Complete


@pytest.mark.parametrize("now", [NOW, LATER], ids=["in time", "expired but not taken over"])
def test_complete_ends_the_job(now: float) -> None:
    job, given = run(running(), Complete(FIRST), now)

    assert given == Completed()
    assert (given.ok, given.ack) == (True, True)
    assert (job.status, job.lease, job.attempt_count) == (JobStatus.DONE, None, 1)


def test_complete_beats_a_pending_cancel() -> None:
    assert after(canceling(running()), Complete(FIRST)).status is JobStatus.DONE


def test_complete_again_answers_the_same() -> None:
    unchanged, given = run(DONE, Complete(FIRST))

    assert given == AlreadyFinished(outcome=AttemptOutcome.DONE, requeued=False, dead_lettered=False)
    assert (given.ok, given.ack) == (True, True)
    assert unchanged == DONE


@pytest.mark.parametrize(
    ("job", "ref"),
    [
        (running(), STRANGER),
        (running(), ClaimRef("attempt-9", "token-1")),
        (after(running(), claim(SECOND), now=LATER), FIRST),
        (after(running(), reap(FIRST), now=LATER), FIRST),
        (after(canceling(running()), reap(FIRST), now=LATER), FIRST),
        (DONE, STRANGER),
        (queued(), FIRST),
    ],
    ids=["token", "attempt", "taken over", "reaped", "reaped for cancel", "finished", "never claimed"],
)
@pytest.mark.parametrize("report", [Complete, fail, Release])
def test_report_without_a_current_claim_is_superseded(
    report: Callable[[ClaimRef], Command], job: JobView, ref: ClaimRef
) -> None:
    unchanged, given = run(job, report(ref))

    assert given == Superseded()
    assert (given.ok, given.ack) == (False, True)
    assert unchanged == job


@pytest.mark.parametrize("command", [Complete(FIRST), fail(FIRST)])
def test_report_after_a_release_is_superseded(command: Command) -> None:
    assert answer(after(running(), Release(FIRST)), command) == Superseded()


@pytest.mark.parametrize(
    ("job", "command", "outcome"),
    [
        (DONE, fail(FIRST), AttemptOutcome.DONE),
        (DONE, Release(FIRST), AttemptOutcome.DONE),
        (DEAD, Complete(FIRST), AttemptOutcome.FAILED),
        (after(running(), fail(FIRST)), Complete(FIRST), AttemptOutcome.FAILED),
        (after(canceling(running()), fail(FIRST)), Complete(FIRST), AttemptOutcome.CANCELED),
    ],
)
def test_another_outcome_for_a_reported_attempt_is_conflicting(
    job: JobView, command: Command, outcome: AttemptOutcome
) -> None:
    unchanged, given = run(job, command)

    assert given == Conflicting(outcome)
    assert (given.ok, given.ack) == (False, True)
    assert unchanged == job


# Fail


def test_retryable_failure_requeues_after_a_backoff() -> None:
    job, given = run(running(), fail(FIRST, jitter=0.5), NOW + 5)

    assert given == Requeued(outcome=AttemptOutcome.FAILED, enqueue_id=2, run_after=NOW + 5.5)
    assert (job.status, job.enqueue_id, job.run_after, job.attempt_count) == (JobStatus.QUEUED, 2, NOW + 5.5, 1)


def test_failure_that_is_not_retryable_dead_letters() -> None:
    assert answer(running(), fail(FIRST, retryable=False)) == DeadLettered(
        outcome=AttemptOutcome.FAILED, reason=DeadLetterReason.NOT_RETRYABLE
    )


def test_failure_of_the_last_attempt_dead_letters() -> None:
    assert answer(running(attempt_count=3), fail(FIRST)) == DeadLettered(
        outcome=AttemptOutcome.FAILED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED
    )


@pytest.mark.parametrize("retryable", [True, False])
def test_failure_of_a_job_to_be_canceled_cancels_it(retryable: bool) -> None:
    job, given = run(canceling(running()), fail(FIRST, retryable=retryable))

    assert given == Canceled(AttemptOutcome.CANCELED)
    assert job.status is JobStatus.CANCELED


@pytest.mark.parametrize(
    ("job", "outcome", "requeued", "dead_lettered"),
    [
        (after(running(), fail(FIRST)), AttemptOutcome.FAILED, True, False),
        (after(running(), fail(FIRST), Cancel()), AttemptOutcome.FAILED, True, False),
        (after(RETRIED, Complete(SECOND)), AttemptOutcome.FAILED, True, False),
        (after(RETRIED, fail(SECOND, retryable=False)), AttemptOutcome.FAILED, True, False),
        (DEAD, AttemptOutcome.FAILED, False, True),
        (after(canceling(running()), fail(FIRST)), AttemptOutcome.CANCELED, False, False),
    ],
    ids=["queued", "then canceled", "then done", "then dead", "dead", "canceled"],
)
def test_fail_again_answers_the_same(
    job: JobView, outcome: AttemptOutcome, requeued: bool, dead_lettered: bool
) -> None:
    assert run(job, fail(FIRST)) == (
        job,
        AlreadyFinished(outcome=outcome, requeued=requeued, dead_lettered=dead_lettered),
    )


# Release


def test_release_hands_the_job_back_uncharged() -> None:
    job, given = run(running(), Release(FIRST), NOW + 5)

    assert given == Requeued(outcome=AttemptOutcome.RELEASED, enqueue_id=2, run_after=NOW)
    assert (job.status, job.attempt_no, job.attempt_count) == (JobStatus.QUEUED, 1, 0)


def test_claim_after_a_release_gets_a_new_attempt_number() -> None:
    job = after(running(), Release(FIRST), claim(SECOND))

    assert (job.attempt_no, job.attempt_count) == (2, 1)


def test_release_of_a_job_to_be_canceled_cancels_it() -> None:
    assert answer(canceling(running()), Release(FIRST)) == Canceled(AttemptOutcome.CANCELED)


def test_release_again_answers_the_same() -> None:
    job = after(running(), Release(FIRST))

    assert run(job, Release(FIRST)) == (
        job,
        AlreadyFinished(outcome=AttemptOutcome.RELEASED, requeued=True, dead_lettered=False),
    )


# Cancel


def test_cancel_of_a_queued_job_ends_it() -> None:
    job, given = run(queued(), Cancel())

    assert given == Canceled(None)
    assert (job.status, job.closed) == (JobStatus.CANCELED, ())


def test_cancel_of_a_running_job_is_noted_for_its_holder() -> None:
    job, given = run(running(), Cancel())

    assert given == CancelRequested()
    assert job == running(cancel_requested=True)
    assert run(job, Cancel()) == (job, CancelRequested())


@pytest.mark.parametrize("job", [DONE, DEAD, CANCELED])
def test_cancel_of_a_final_job_changes_nothing(job: JobView) -> None:
    assert run(job, Cancel()) == (job, AlreadyFinal(job.status))


# Reap


def test_reap_requeues_a_job_whose_holder_fell_silent() -> None:
    job, given = run(running(), reap(FIRST), LATER)

    assert given == Requeued(outcome=AttemptOutcome.EXPIRED, enqueue_id=2, run_after=LATER + 1)
    assert (job.status, job.attempt_count) == (JobStatus.QUEUED, 1)


def test_reap_of_the_last_attempt_dead_letters() -> None:
    assert answer(running(max_attempts=1), reap(FIRST), LATER) == DeadLettered(
        outcome=AttemptOutcome.EXPIRED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED
    )


def test_reap_of_a_job_to_be_canceled_cancels_it() -> None:
    assert answer(canceling(running()), reap(FIRST), LATER) == Canceled(AttemptOutcome.EXPIRED)


@pytest.mark.parametrize(
    ("job", "now"),
    [
        (running(), NOW + TTL),
        (after(running(), Heartbeat(lease_token="token-1", ttl_s=TTL), now=LATER), LATER),
        (after(running(), claim(SECOND), now=LATER), LATER + LATER),
        (after(running(), fail(FIRST)), LATER),
        (DONE, LATER),
        (DEAD, LATER),
        (CANCELED, LATER),
    ],
    ids=["not expired", "renewed", "taken over", "requeued", "done", "dead", "canceled"],
)
def test_reap_of_a_job_that_moved_on_changes_nothing(job: JobView, now: float) -> None:
    assert run(job, reap(FIRST), now) == (job, NotReapable())


# Interrupt


def on_a_node(**changes: object) -> JobView:
    return replace(after(queued(), Claim(claim=FIRST, ttl_s=TTL, enqueue_id=None, of_node=True)), **changes)


@pytest.mark.parametrize(("is_dead", "now"), [(True, NOW), (False, LATER)])
def test_interrupt_requeues_a_job_and_gives_its_attempt_back(is_dead: bool, now: float) -> None:
    job, given = run(on_a_node(), Interrupt(attempt_id="attempt-1", jitter=1.0, is_dead=is_dead), now)

    assert given == Requeued(outcome=AttemptOutcome.INTERRUPTED, enqueue_id=2, run_after=now + 1)
    assert (job.status, job.attempt_no, job.attempt_count, job.interruptions) == (JobStatus.QUEUED, 1, 0, 1)


@pytest.mark.parametrize(("before", "dead_letters"), [(9, False), (10, True)])
def test_interruption_after_the_last_that_is_allowed_dead_letters(before: int, dead_letters: bool) -> None:
    given = answer(on_a_node(interruptions=before), Interrupt(attempt_id="attempt-1", jitter=0.0), LATER)

    assert isinstance(given, DeadLettered) == dead_letters
    assert not dead_letters or given == DeadLettered(
        outcome=AttemptOutcome.INTERRUPTED, reason=DeadLetterReason.INTERRUPTIONS_EXHAUSTED
    )


@pytest.mark.parametrize(
    ("job", "command"),
    [
        (on_a_node(), Interrupt(attempt_id="attempt-1", jitter=0.0)),
        (on_a_node(), Interrupt(attempt_id="attempt-2", jitter=0.0, is_dead=True)),
        (running(), Interrupt(attempt_id="attempt-1", jitter=0.0, is_dead=True)),
        (DONE, Interrupt(attempt_id="attempt-1", jitter=0.0, is_dead=True)),
    ],
    ids=["lease not expired", "another attempt", "of a worker", "done"],
)
def test_interrupt_of_anything_else_changes_nothing(job: JobView, command: Interrupt) -> None:
    assert run(job, command) == (job, NotReapable())


def test_expired_lease_of_a_node_is_neither_taken_over_nor_charged() -> None:
    assert answer(on_a_node(), claim(SECOND), LATER) == NotClaimable(NotClaimableReason.LEASED)
    assert answer(on_a_node(), reap(FIRST), LATER) == NotReapable()


# Redrive


def test_redrive_makes_a_new_job_linked_to_the_dead_letter() -> None:
    assert decide_redrive(DEAD, "new", now=LATER) == JobView(
        job_id="new", max_attempts=3, run_after=LATER, in_line=True, redriven_from="job"
    )


@pytest.mark.parametrize("job", [queued(), running(), DONE, CANCELED])
def test_only_a_dead_letter_can_be_redriven(job: JobView) -> None:
    assert decide_redrive(job, "new", now=LATER) == NotDeadLettered(job.status)


# The table and the page


def test_no_transition_leaves_a_final_status() -> None:
    assert not [row for row in TRANSITIONS if row.source in FINAL_STATUSES]


def test_page_of_the_states_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "job-states.md"

    assert page.read_text() == diagram.render(), "run: python -m jobd.job.diagram > docs/job-states.md"
