"""The checker of the drill passes a history in which all is well, and finds every way in which one can be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from jobd.chaos.check import ENDS, RULES, check
from jobd.chaos.load import KINDS
from jobd.chaos.records import (
    Accepted,
    AttemptRow,
    BatchOfJobs,
    CanceledAt,
    CountRow,
    GroupRow,
    History,
    JobRow,
    NotedRun,
)

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = "chaos-1"
#: The jobs of the history, each with the outcomes of its attempts.
JOBS = {
    "short": ["done"],
    "long": ["interrupted", "interrupted", "interrupted", "done"],
    "retried": ["failed", "done"],
    "delayed": ["released", "done"],
    "keyed": ["expired", "done"],
    "batch": ["done"],
    "group": ["interrupted", "failed", "done"],
    "failing": ["failed", "interrupted", "failed"],
    "fatal": ["failed"],
    "canceled": [],
}


def good() -> History:
    jobs, attempts, runs, accepted = [], [], [], []
    for number, (kind, outcomes) in enumerate(JOBS.items(), 1):
        job_id = f"job-{kind}"
        status = {"failing": "error", "fatal": "error", "canceled": "canceled"}.get(kind, "done")
        reasons = {"failing": "attempts_exhausted", "fatal": "not_retryable"}
        accepted.append(
            Accepted(job_id=job_id, kind=kind, number=number, sent_at=100.0, delay_s=1.0 if kind == "delayed" else 0.0)
        )
        jobs.append(
            JobRow(
                id=job_id,
                queue=QUEUE,
                status=status,
                kind=kind,
                number=number,
                batch="b" if kind == "batch" else None,
                group_id="g" if kind == "group" else None,
                result=number if status == "done" else None,
                attempt_no=len(outcomes),
                attempt_count=sum(outcome not in ("interrupted", "released") for outcome in outcomes),
                max_attempts=2,
                interruptions=outcomes.count("interrupted"),
                reason=reasons.get(kind),
            )
        )
        for n, outcome in enumerate(outcomes, 1):
            started_at = 101.0 + n
            attempts.append(
                AttemptRow(
                    job_id=job_id,
                    number=n,
                    lease_token=f"token-{kind}-{n}",
                    outcome=outcome,
                    started_at=started_at,
                    ended_at=started_at + 1,
                )
            )
            runs.append(NotedRun(job_id=job_id, attempt=n, at=started_at + 0.1, is_end=False))
            if outcome == "done":
                runs.append(NotedRun(job_id=job_id, attempt=n, at=started_at + 0.9, is_end=True))
    return History(
        accepted=tuple(accepted),
        canceled=(CanceledAt(job_id="job-canceled", answered_at=100.5),),
        batches=(BatchOfJobs(name="b", jobs=1), BatchOfJobs(name="never arrived", jobs=3)),
        runs=tuple(runs),
        jobs=tuple(jobs),
        attempts=tuple(attempts),
        groups=(GroupRow(id="g", members=1, done=1, error=0, canceled=0),),
        counts=tuple(
            CountRow(queue=QUEUE, status=status, number=number)
            for status, number in (("done", 7), ("error", 2), ("canceled", 1))
        ),
        refusals={429: 1, 503: 7, 507: 2},
    )


def of_job(history: History, kind: str, **changes: Any) -> History:
    jobs = tuple(replace(job, **changes) if job.kind == kind else job for job in history.jobs)
    return replace(history, jobs=jobs)


def of_attempt(history: History, kind: str, which: int, **changes: Any) -> History:
    attempts = tuple(
        replace(attempt, **changes) if (attempt.job_id, attempt.number) == (f"job-{kind}", which) else attempt
        for attempt in history.attempts
    )
    return replace(history, attempts=attempts)


def without_job(history: History, kind: str) -> History:
    return replace(history, jobs=tuple(job for job in history.jobs if job.kind != kind))


def without_attempt(history: History, kind: str, number: int) -> History:
    gone = (f"job-{kind}", number)
    kept = tuple(attempt for attempt in history.attempts if (attempt.job_id, attempt.number) != gone)
    return replace(history, attempts=kept)


def with_run(history: History, kind: str, attempt: int, at: float, *, is_end: bool = False) -> History:
    run = NotedRun(job_id=f"job-{kind}", attempt=attempt, at=at, is_end=is_end)
    return replace(history, runs=(*history.runs, run))


def without_end(history: History, kind: str) -> History:
    kept = tuple(run for run in history.runs if not (run.is_end and run.job_id == f"job-{kind}"))
    return replace(history, runs=kept)


def with_copy(history: History) -> History:
    """The keyed submit made two jobs."""
    (job,) = (job for job in history.jobs if job.kind == "keyed")
    return replace(history, jobs=(*history.jobs, replace(job, id="job-copy", status="queued", attempt_no=0)))


def with_second_answer(history: History) -> History:
    (job,) = (job for job in history.accepted if job.kind == "keyed")
    return replace(history, accepted=(*history.accepted, replace(job, job_id="job-short")))


def with_sums(history: History, **sums: int) -> History:
    return replace(history, groups=(replace(history.groups[0], **sums),))


#: What is broken -> the rule that must find it, and how the history is broken.
BROKEN: dict[str, tuple[str, Callable[[History], History]]] = {
    "a job is gone": ("lost", lambda h: without_job(h, "short")),
    "a job of a batch is gone": ("lost", lambda h: without_job(h, "batch")),
    "two attempts are done": ("doubled", lambda h: of_attempt(h, "retried", 1, outcome="done")),
    "a dead letter was done": ("doubled", lambda h: of_attempt(h, "failing", 1, outcome="done")),
    "done without an attempt": ("doubled", lambda h: of_attempt(h, "short", 1, outcome="failed")),
    "a key made two jobs": ("doubled", with_copy),
    "a key was answered with two ids": ("doubled", with_second_answer),
    "a job waits for ever": ("unfinished", lambda h: of_job(h, "short", status="queued")),
    "a job runs for ever": ("unfinished", lambda h: of_job(h, "long", status="running")),
    "a lease is left": ("unfinished", lambda h: replace(h, leases=1)),
    "kills made a dead letter": (
        "wrong_end",
        lambda h: of_job(h, "long", status="error", reason="interruptions_exhausted", result=None),
    ),
    "a failing job is done": ("wrong_end", lambda h: of_job(h, "failing", status="done", reason=None)),
    "a job has the result of another": ("wrong_end", lambda h: of_job(h, "keyed", result=1)),
    "a job in error is no dead letter": ("wrong_end", lambda h: of_job(h, "fatal", reason=None)),
    "a job that is done is a dead letter": ("wrong_end", lambda h: of_job(h, "short", reason="not_retryable")),
    "a dead letter for another reason": ("wrong_end", lambda h: of_job(h, "failing", reason="not_retryable")),
    "an attempt is missing": ("numbers", lambda h: without_attempt(h, "long", 2)),
    "an attempt number recurs": ("numbers", lambda h: of_attempt(h, "long", 2, number=1)),
    "an attempt after the end": ("numbers", lambda h: of_job(h, "short", attempt_no=2)),
    "a cut cost an attempt": ("bounds", lambda h: of_job(h, "long", attempt_count=2)),
    "a failure cost no attempt": ("bounds", lambda h: of_job(h, "retried", attempt_count=1)),
    "an interruption was not counted": ("bounds", lambda h: of_job(h, "long", interruptions=2)),
    "more attempts than allowed": ("bounds", lambda h: of_job(h, "failing", max_attempts=1)),
    "given up too early": ("bounds", lambda h: of_job(h, "failing", max_attempts=3)),
    "a token was given out twice": (
        "holders",
        lambda h: of_attempt(h, "long", 1, lease_token="token-short-1"),
    ),
    "two leases at a time": ("holders", lambda h: of_attempt(h, "long", 2, started_at=102.5)),
    "an attempt ran twice": ("holders", lambda h: with_run(h, "short", 1, 102.5)),
    "a run without a lease": ("holders", lambda h: with_run(h, "short", 2, 105.0)),
    "a run of an unknown job": ("holders", lambda h: with_run(h, "nowhere", 1, 105.0)),
    "done though the handler never ended": ("holders", lambda h: without_end(h, "short")),
    "a delayed job ran early": (
        "early",
        lambda h: replace(h, accepted=tuple(replace(job, sent_at=102.0) for job in h.accepted)),
    ),
    "a canceled job is done": ("canceled", lambda h: of_job(h, "canceled", status="done", result=10)),
    "a canceled job ran": ("canceled", lambda h: with_run(h, "canceled", 1, 101.0)),
    "half a batch": ("whole", lambda h: replace(h, batches=(BatchOfJobs(name="b", jobs=2),))),
    "a counter is too low": ("counters", lambda h: replace(h, counts=h.counts[1:])),
    "a counter counts what is not there": (
        "counters",
        lambda h: replace(h, counts=(*h.counts, CountRow(queue=QUEUE, status="queued", number=1))),
    ),
    "a group forgot a member": ("counters", lambda h: with_sums(h, members=0, done=0)),
    "a group counted an end twice": ("counters", lambda h: with_sums(h, done=2)),
    "an answer that is no refusal": ("answers", lambda h: replace(h, refusals={500: 1})),
    "a job that had been accepted is unknown": ("answers", lambda h: replace(h, refusals={404: 1})),
    "jobd did not stop": ("clean_end", lambda h: replace(h, exit_code=70)),
    "a process is left": ("clean_end", lambda h: replace(h, left=(4711,))),
}


def test_history_in_which_all_is_well_passes() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_history_is_found_out_by_its_rule(name: str) -> None:
    rule, break_it = BROKEN[name]

    assert rule in {finding.rule for finding in check(break_it(good()))}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN.values()} == set(RULES)


def test_every_kind_that_is_sent_has_its_ends_and_is_in_the_history() -> None:
    assert set(KINDS) == set(ENDS) == set(JOBS)
