"""A worker that speaks only Redis, and the service of jobd that carries what it does into Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.explorer import Step
from tests.model.state import (
    ACKED,
    DONE,
    FOREIGN,
    NOBODY,
    OUT,
    QUEUED,
    RAW_WORKER,
    RUN,
    RUNNING,
    SETTLED,
    UNREAD,
    WAITS,
    WROTE,
    RawWorker,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.rules import Rules

RAW = "raw worker"
WATCHER = "watcher"


def raw_worker_steps(state: State) -> Iterator[Step[State]]:
    """It reads, works, writes the hash and acknowledges; nothing of it asks Postgres. It runs from its read on."""
    doing, enqueue_id = state.raw
    if doing == OUT and state.is_up:
        yield Step(f"{RAW}: joins", state._replace(raw=RawWorker(WAITS)))
    elif doing == WAITS:
        yield Step(f"{RAW}: leaves", state._replace(raw=RawWorker(OUT)))
        for n, where in enumerate(state.messages, 1):
            if state.is_up and where == UNREAD:
                yield _read(state, n)
    elif doing == RUN:
        if state.is_up:
            yield _write_end(state, enqueue_id)
        else:
            yield Step(f"{RAW}: gives up, Redis does not answer", state._replace(raw=RawWorker(OUT)))
        if state.crashes:
            crashed = state._replace(raw=RawWorker(OUT), crashes=state.crashes - 1)
            yield Step(f"{RAW}: crashes", crashed)
    elif doing == WROTE:
        messages = state.messages
        if state.is_up and state.message(enqueue_id) == FOREIGN:
            messages = state.with_message(enqueue_id, ACKED)
        yield Step(f"{RAW}: acknowledges", state._replace(raw=RawWorker(WAITS), messages=messages))


def _read(state: State, enqueue_id: int) -> Step[State]:
    begun = state._replace(
        raw=RawWorker(RUN, enqueue_id),
        messages=state.with_message(enqueue_id, FOREIGN),
        ran_again=state.ran_again or state.is_recorded,
    )
    return Step(f"{RAW}: reads the message of enqueue_id {enqueue_id} and runs the job", begun)


def _write_end(state: State, enqueue_id: int) -> Step[State]:
    """Somebody will see it if the message is still there, or if the claim is known already."""
    is_seen = _stands(state, enqueue_id)
    kept = enqueue_id if is_seen or state.message(enqueue_id) == FOREIGN else state.raw_end
    return Step(f"{RAW}: writes its result", state._replace(raw=RawWorker(WROTE, enqueue_id), raw_end=kept))


def watcher_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    """When a raw worker was last seen matters only if Redis can fail."""
    if not state.is_up:
        return
    can_fail = rules.bounds.losses or rules.bounds.outages
    if can_fail and state.raw.doing != OUT and not state.raw_seen and not state.is_row_locked:
        yield Step(f"{WATCHER}: notes that a raw worker reads the queue", state._replace(raw_seen=True))
    for enqueue_id, where in enumerate(state.messages, 1):
        if where in (FOREIGN, ACKED) and not _stands(state, enqueue_id):
            yield _claim_for(state, enqueue_id)
    if state.raw_end and _stands(state, state.raw_end):
        ended = state._replace(status=DONE, owner=NOBODY, raw_end=0, finishes=state.finishes + 1)
        yield Step(f"{WATCHER}: carries the end of the raw worker into Postgres", ended)


def _claim_for(state: State, enqueue_id: int) -> Step[State]:
    """A normal claim. If it fails, the worker has lost the job, and its message is settled."""
    if state.status == QUEUED and state.enqueue_id == enqueue_id:
        claimed = state._replace(status=RUNNING, owner=RAW_WORKER, token=state.token + 1)
        return Step(f"{WATCHER}: claims for the raw worker that has the message of enqueue_id {enqueue_id}", claimed)
    lost = state._replace(
        messages=state.with_message(enqueue_id, SETTLED), raw_end=0 if state.raw_end == enqueue_id else state.raw_end
    )
    return Step(f"{WATCHER}: settles the foreign message of enqueue_id {enqueue_id}, its job is not to be had", lost)


def _stands(state: State, enqueue_id: int) -> bool:
    """The claim of the raw worker for this message is in Postgres."""
    return state.status == RUNNING and state.owner == RAW_WORKER and state.enqueue_id == enqueue_id
