"""The promises of jobd as rules over a history: each yields what breaks it, job by job. Pure.

Delivery is at least once: a handler may have run again after a fault, which breaks no rule. What must never be is a job
that was accepted and is gone, one that counts as done twice, a run or a report without a lease, or a bound that a fault
used up.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from jobd.chaos.records import AttemptRow, History

T = TypeVar("T")

#: How jobs of each kind may end.
ENDS = {
    "short": {"done"},
    "long": {"done"},
    "retried": {"done"},
    "delayed": {"done"},
    "keyed": {"done"},
    "batch": {"done"},
    "group": {"done"},
    "failing": {"error"},
    "fatal": {"error"},
    "canceled": {"canceled", "done"},  # a completion beats a cancel request
}
#: Why jobs of each kind may be dead letters; others never are.
REASONS = {"failing": "attempts_exhausted", "fatal": "not_retryable"}
FINAL = frozenset({"done", "error", "canceled"})
#: Statuses of requests that are to be sent again later.
REFUSALS = frozenset({429, 503, 507})
#: Outcomes of attempts that are not charged.
FREE = frozenset({"released", "interrupted"})


class BrokenPromise(msgspec.Struct, frozen=True):
    rule: str
    text: str


def lost(history: History) -> Iterator[str]:
    """A job that was accepted is in the table."""
    known = {job.id for job in history.jobs}
    for job in history.accepted:
        if job.job_id not in known:
            yield f"job {job.job_id} ({job.kind}) was accepted and is gone"


def doubled(history: History) -> Iterator[str]:
    """No job is done twice, and no submit made two jobs, however often it was sent."""
    times = Counter(attempt.job_id for attempt in history.attempts if attempt.outcome == "done")
    for job in history.jobs:
        if times[job.id] != (job.status == "done"):
            yield f"job {job.id} is {job.status}, and {times[job.id]} of its attempts are done"
    for number, copies in Counter(job.number for job in history.jobs).items():
        if copies > 1:
            yield f"submit {number} made {copies} jobs"
    for number, ids in _by(history.accepted, lambda job: job.number).items():
        if len({job.job_id for job in ids}) > 1:
            yield f"submit {number} was answered with the ids of {len({job.job_id for job in ids})} jobs"


def unfinished(history: History) -> Iterator[str]:
    """Every job ends once the faults are over, and no lease is left."""
    for job in history.jobs:
        if job.status not in FINAL:
            yield f"job {job.id} ({job.kind}) is still {job.status}"
    if history.leases and not any(job.status == "running" for job in history.jobs):
        yield f"{history.leases} leases are left, though no job is running"


def wrong_end(history: History) -> Iterator[str]:
    """A job ends as its handler would have it: no fault makes a dead letter or changes a result."""
    for job in history.jobs:
        if job.status in FINAL and job.status not in ENDS[job.kind]:
            yield f"job {job.id} ({job.kind}) ended in {job.status}, reason {job.reason}"
        if job.status == "done" and job.result != job.number:
            yield f"job {job.id} has the result of submit {job.result}, it is {job.number}"
        if (job.status == "error") != (job.reason is not None):
            yield f"job {job.id} is {job.status}, and its dead letter says {job.reason}"
        if job.reason is not None and job.reason != REASONS.get(job.kind):
            yield f"job {job.id} ({job.kind}) is a dead letter because of {job.reason}"


def numbers(history: History) -> Iterator[str]:
    """Attempts have the numbers 1, 2, 3 ..., each once; only the last can have ended the job."""
    attempts = _by(history.attempts, lambda attempt: attempt.job_id)
    for job in history.jobs:
        ended = sorted(attempt.number for attempt in attempts.get(job.id, ()))
        if job.status in FINAL and ended != list(range(1, job.attempt_no + 1)):
            yield f"job {job.id} had {job.attempt_no} attempts, those that ended are {ended}"
        last = [attempt.number for attempt in attempts.get(job.id, ()) if attempt.outcome == "done"]
        if last and max(last) != job.attempt_no:
            yield f"job {job.id} was done by attempt {max(last)}, and attempt {job.attempt_no} came after it"


def bounds(history: History) -> Iterator[str]:
    """Failures are charged as attempts, interruptions apart; a job that ran out of attempts had them all."""
    attempts = _by(history.attempts, lambda attempt: attempt.job_id)
    for job in history.jobs:
        outcomes = Counter(attempt.outcome for attempt in attempts.get(job.id, ()))
        charged = sum(number for outcome, number in outcomes.items() if outcome not in FREE)
        if job.status in FINAL and charged != job.attempt_count:
            yield f"job {job.id} was charged for {job.attempt_count} attempts, {charged} are to be: {dict(outcomes)}"
        if job.interruptions != outcomes["interrupted"]:
            yield f"job {job.id} counts {job.interruptions} interruptions, there were {outcomes['interrupted']}"
        if job.attempt_count > job.max_attempts:
            yield f"job {job.id} was charged for {job.attempt_count} attempts of {job.max_attempts}"
        if job.reason == "attempts_exhausted" and job.attempt_count < job.max_attempts:
            yield f"job {job.id} ran out of attempts after {job.attempt_count} of {job.max_attempts}"


def holders(history: History) -> Iterator[str]:
    """Who ran or reported a job held its lease: one lease at a time, a token and a run of its own for each attempt."""
    for token, times in Counter(attempt.lease_token for attempt in history.attempts).items():
        if times > 1:
            yield f"lease token {token} was given out {times} times"
    for job_id, attempts in _by(history.attempts, lambda attempt: attempt.job_id).items():
        yield from _overlaps(job_id, attempts)
    leased = {(attempt.job_id, attempt.number): attempt for attempt in history.attempts}
    known = {job.id: job for job in history.jobs}
    begun = Counter((run.job_id, run.attempt) for run in history.runs if not run.is_end)
    ended = {(run.job_id, run.attempt) for run in history.runs if run.is_end}
    for (job_id, number), times in begun.items():
        if times > 1:
            yield f"attempt {number} of job {job_id} was run {times} times"
        if job_id not in known or ((job_id, number) not in leased and known[job_id].status in FINAL):
            yield f"attempt {number} of job {job_id} was run, and no lease was given for it"
    for key, attempt in leased.items():
        if attempt.outcome == "done" and key not in ended:
            yield f"attempt {key[1]} of job {key[0]} is done, and its handler never came to its end"


def _overlaps(job_id: str, attempts: Iterable[AttemptRow]) -> Iterator[str]:
    ordered = sorted(attempts, key=lambda attempt: attempt.number)
    for one, other in itertools.pairwise(ordered):
        if other.started_at < one.ended_at:
            yield f"attempt {other.number} of job {job_id} began before attempt {one.number} had ended"


def early(history: History) -> Iterator[str]:
    """A delayed job does not run before its time."""
    due_at = {job.job_id: job.sent_at + job.delay_s for job in history.accepted if job.delay_s}
    for run in history.runs:
        if not run.is_end and run.at < due_at.get(run.job_id, 0.0):
            yield f"job {run.job_id} ran {due_at[run.job_id] - run.at:.3f} s before its time"


def canceled(history: History) -> Iterator[str]:
    """A job that was answered to be canceled is, and does not run afterwards."""
    answered = {cancel.job_id: cancel.answered_at for cancel in history.canceled}
    for job in history.jobs:
        if job.id in answered and job.status != "canceled":
            yield f"job {job.id} was answered to be canceled and is {job.status}"
    for run in history.runs:
        if not run.is_end and run.at > answered.get(run.job_id, run.at):
            yield f"attempt {run.attempt} of job {run.job_id} began after it was canceled"


def whole(history: History) -> Iterator[str]:
    """A batch is accepted whole or not at all."""
    found = Counter(job.batch for job in history.jobs)
    for batch in history.batches:
        if found[batch.name] not in (0, batch.jobs):
            yield f"batch {batch.name} has {found[batch.name]} of its {batch.jobs} jobs"


def counters(history: History) -> Iterator[str]:
    """What the counters of queues and groups say is what is in the table."""
    counted = Counter((job.queue, job.status) for job in history.jobs)
    said = {(count.queue, count.status): count.number for count in history.counts}
    for queue, status in counted.keys() | said.keys():
        if counted[queue, status] != said.get((queue, status), 0):
            number, text = counted[queue, status], said.get((queue, status), 0)
            yield f"queue {queue} has {number} jobs that are {status}, its counter says {text}"
    members = _by(history.jobs, lambda job: job.group_id)
    for group in history.groups:
        statuses = Counter(job.status for job in members.get(group.id, ()))
        is_so = (sum(statuses.values()), statuses["done"], statuses["error"], statuses["canceled"])
        says = (group.members, group.done, group.error, group.canceled)
        if is_so != says:
            yield f"group {group.id} has {is_so} members, done, error and canceled, its counters say {says}"


def answers(history: History) -> Iterator[str]:
    """A request is refused for the moment, and says so: too much to do, no server, no room."""
    for status, times in history.refusals.items():
        if status not in REFUSALS:
            yield f"{times} requests were answered with status {status}"


def clean_end(history: History) -> Iterator[str]:
    """After all faults jobd stops as ever, and leaves no process behind."""
    if history.exit_code:
        yield f"the stop at the end had the exit code {history.exit_code}"
    if history.left:
        yield f"processes are left after the stop: {', '.join(map(str, history.left))}"


def _by(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


RULES: dict[str, Callable[[History], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        lost,
        doubled,
        unfinished,
        wrong_end,
        numbers,
        bounds,
        holders,
        early,
        canceled,
        whole,
        counters,
        answers,
        clean_end,
    )
}


def check(history: History) -> list[BrokenPromise]:
    """Everything that breaks a rule; empty: all promises were kept."""
    return [BrokenPromise(name, text) for name, rule in RULES.items() for text in rule(history)]
