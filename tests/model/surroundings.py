"""What happens to the processes: leases that end, time that passes, a Redis that is away or loses its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.explorer import Step
from tests.model.rules import Assumption, Guard
from tests.model.state import ABSENT, AWAY, DEAD, NOBODY, OUT, QUEUED, RAW_WORKER, RUN, RUNNING, RawWorker, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.rules import Rules


def reaper_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    """A lease ends, and the reaper requeues its job or, when the attempts are used up, makes it a dead letter."""
    if state.status != RUNNING or _is_kept(state, rules):
        return
    if state.enqueue_id == rules.bounds.enqueue_id:
        dead = state._replace(status=DEAD, owner=NOBODY, raw_end=0, finishes=state.finishes + 1)
        yield Step("reaper: the lease has ended, the job is a dead letter", dead)
    else:
        requeued = state._replace(status=QUEUED, owner=NOBODY, raw_end=0, enqueue_id=state.enqueue_id + 1)
        yield Step(f"reaper: the lease has ended, requeues as enqueue_id {state.enqueue_id + 1}", requeued)


def _is_kept(state: State, rules: Rules) -> bool:
    """The holder of the lease runs and keeps it, or will have stopped before it ends."""
    if state.owner == RAW_WORKER:
        return state.raw.doing == RUN and rules.has(Assumption.SILENT_IS_GONE)
    holders = [slot for slot in state.slots if slot.doing == RUN and slot.of == state.token]
    return bool(holders) and rules.has(Guard.OWN_CLOCK)


def time_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    """One lease time without a sight of the raw worker. What it did unseen and unheard counts as not done."""
    is_working = state.raw.doing == RUN and rules.has(Assumption.SILENT_IS_GONE)
    if (state.raw_seen or state.is_unsure) and not is_working:
        later = state._replace(raw_seen=False, is_unsure=False, raw_end=0 if state.status == QUEUED else state.raw_end)
        yield Step("one lease time passes in which no raw worker is seen", later)


def redis_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    if not state.is_up:
        is_bypassed = state.is_bypassed or any(memory.doing == AWAY for memory in state.relays)
        if not is_bypassed or not rules.has(Assumption.RETURNS_EMPTY):
            yield Step("Redis is back with its data", state._replace(is_up=True, is_bypassed=False))
        yield Step("Redis is back, empty", _empty(state)._replace(is_up=True, is_bypassed=False))
        return
    is_unseen = (state.raw.doing == RUN or state.raw_end) and state.status == QUEUED and not state.raw_seen
    if is_unseen and rules.has(Assumption.SEEN_BEFORE_LOSS):
        return
    if state.losses:
        yield Step("Redis loses its data", _empty(state)._replace(losses=state.losses - 1))
    if state.outages:
        yield Step("Redis is away", state._replace(is_up=False, outages=state.outages - 1))


def _empty(state: State) -> State:
    """A claim that Postgres knows keeps its end: the raw worker's hash is written again, and watched."""
    return state._replace(
        redis_epoch=0,
        fence=0,
        messages=(ABSENT,) * len(state.messages),
        raw_end=0 if state.status == QUEUED else state.raw_end,
        raw=RawWorker(OUT) if state.raw.doing != RUN else state.raw,
    )
