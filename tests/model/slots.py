"""A slot of a node: takes directly, by a message, or by a poll; runs; reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.explorer import Step
from tests.model.rules import Guard
from tests.model.state import (
    A_SLOT,
    AWAY,
    DIRECT,
    DONE,
    FINAL,
    HEARD,
    IDLE,
    MESSAGE,
    NOBODY,
    OWN,
    QUEUED,
    REPORT,
    RUN,
    RUNNING,
    STREAM,
    TAKE,
    UNREAD,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.rules import Rules


def slot_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    for n, slot in enumerate(state.slots):
        node = f"node {n + 1}"
        if slot.doing == IDLE:
            yield from _begin_take(state, rules, n, node)
            if not state.is_up and not rules.has(Guard.AWAY_BY_RELAY):
                yield Step(f"{node}: cannot reach Redis", state._replace(slots=state.with_slot(n, AWAY)))
            yield from _read(state, rules, n, node)
        elif slot.doing == HEARD:
            if state.status == QUEUED:
                yield Step(f"{node}: opens a take, by what it heard", state._replace(slots=state.with_slot(n, TAKE)))
        elif slot.doing == AWAY:
            yield from _begin_poll(state, rules, n, node)
        elif slot.doing == TAKE:
            yield _commit_take(state, n, node)
        elif slot.doing == MESSAGE:
            yield _claim(state, rules, n, node)
        elif slot.doing == RUN:
            yield Step(f"{node}: the handler ends", state._replace(slots=state.with_slot(n, REPORT, slot.of)))
            yield Step(f"{node}: stops the handler, its lease is about to end", _left(state, n))
        elif slot.doing == REPORT:
            yield _report(state, rules, n, node)
        if slot.doing != IDLE and state.crashes:
            yield Step(f"{node}: crashes and starts again", _left(state, n)._replace(crashes=state.crashes - 1))


def _begin_take(state: State, rules: Rules, n: int, node: str) -> Iterator[Step[State]]:
    if state.mode != DIRECT:
        return
    if not rules.has(Guard.RECHECK_IN_TAKE):
        yield Step(f"{node}: hears that the queue is direct", state._replace(slots=state.with_slot(n, HEARD)))
    elif state.status == QUEUED:
        how = "locks the row of the queue" if rules.has(Guard.LOCK_IN_TAKE) else "without a lock"
        yield Step(f"{node}: opens a take, {how}; the mode is direct", state._replace(slots=state.with_slot(n, TAKE)))


def _begin_poll(state: State, rules: Rules, n: int, node: str) -> Iterator[Step[State]]:
    """A take from a stream queue. A raw worker is noted in the same row, so the note waits for the commit."""
    if state.mode != STREAM or state.status != QUEUED or state.is_unsure:
        return
    if not state.raw_seen or not rules.has(Guard.AWAY_WAITS):
        opened = state._replace(slots=state.with_slot(n, TAKE), is_bypassed=True)
        yield Step(f"{node}: opens a poll of the stream queue, locks its row", opened)


def _commit_take(state: State, n: int, node: str) -> Step[State]:
    if state.status != QUEUED:
        return Step(f"{node}: commits, there was nothing to take", _left(state, n))
    return Step(f"{node}: commits, has the job and runs it", _run(state, n))


def _read(state: State, rules: Rules, n: int, node: str) -> Iterator[Step[State]]:
    """A message that another consumer of jobd left pending may be taken over at any time."""
    mode_no = state.mode_no if rules.has(Guard.CLAIM_SHOWS_MODE_NO) else 0
    for enqueue_id, where in enumerate(state.messages, 1):
        if state.is_up and where in (UNREAD, OWN):
            how = "reads" if where == UNREAD else "takes over"
            yield Step(
                f"{node}: {how} the message of enqueue_id {enqueue_id}",
                state._replace(
                    messages=state.with_message(enqueue_id, OWN),
                    slots=state.with_slot(n, MESSAGE, enqueue_id, mode_no),
                ),
            )


def _claim(state: State, rules: Rules, n: int, node: str) -> Step[State]:
    _, enqueue_id, mode_no = state.slots[n]
    if mode_no and mode_no != state.mode_no:
        return Step(f"{node}: drops its message of enqueue_id {enqueue_id}, mode_no has moved", _left(state, n))
    is_swapped = state.status == QUEUED and state.enqueue_id == enqueue_id
    if is_swapped or not (rules.has(Guard.CLAIM_SWAP) or state.status in FINAL):
        return Step(f"{node}: claims by the message of enqueue_id {enqueue_id} and runs the job", _run(state, n))
    return Step(f"{node}: its message of enqueue_id {enqueue_id} claims nothing", _left(state, n))


def _run(state: State, n: int) -> State:
    return state._replace(
        status=RUNNING,
        owner=A_SLOT,
        token=state.token + 1,
        slots=state.with_slot(n, RUN, state.token + 1),
        ran_again=state.ran_again or state.is_recorded,
    )


def _report(state: State, rules: Rules, n: int, node: str) -> Step[State]:
    holds = state.status == RUNNING and state.owner == A_SLOT and state.token == state.slots[n].of
    if holds or not rules.has(Guard.TOKEN):
        ended = _left(state, n)._replace(status=DONE, owner=NOBODY, finishes=state.finishes + 1)
        return Step(f"{node}: its report ends the job", ended)
    return Step(f"{node}: its report is refused, the attempt was superseded", _left(state, n))


def _left(state: State, n: int) -> State:
    """The slot has nothing any more; what it held in Postgres and Redis stays."""
    return state._replace(slots=state.with_slot(n, IDLE))
