"""The protocol: where it starts, and every step that any actor can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.explorer import Graph, Step, explore
from tests.model.raw_worker import raw_worker_steps, watcher_steps
from tests.model.relay import relay_steps
from tests.model.slots import slot_steps
from tests.model.state import (
    ABSENT,
    NOBODY,
    QUEUED,
    STREAM,
    RawWorker,
    RelayMemory,
    Slot,
    State,
    broken,
    symmetric,
)
from tests.model.surroundings import reaper_steps, redis_steps, time_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.rules import Rules


def start(rules: Rules, mode: str = STREAM) -> State:
    """A job that was just committed, in a Redis that is ready; nobody has done anything yet."""
    bounds = rules.bounds
    return State(
        mode=mode,
        mode_no=1,
        status=QUEUED,
        enqueue_id=1,
        token=0,
        owner=NOBODY,
        epoch=1,
        is_open=True,
        raw_seen=False,
        is_unsure=False,
        is_up=True,
        redis_epoch=1,
        fence=0,
        messages=(ABSENT,) * bounds.enqueue_id,
        raw_end=0,
        slots=(Slot(),) * bounds.slots,
        raw=RawWorker(),
        relays=(RelayMemory(),) * bounds.relays,
        crashes=bounds.crashes,
        losses=bounds.losses,
        outages=bounds.outages,
    )


def steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    yield from slot_steps(state, rules)
    yield from raw_worker_steps(state)
    yield from watcher_steps(state, rules)
    yield from relay_steps(state, rules)
    yield from reaper_steps(state, rules)
    yield from time_steps(state, rules)
    yield from redis_steps(state, rules)


def search(rules: Rules, mode: str = STREAM, *, keep_edges: bool = False) -> Graph[State]:
    return explore(
        start(rules, mode),
        lambda state: steps(state, rules),
        broken,
        most=rules.bounds.states,
        key=symmetric,
        keep_edges=keep_edges,
    )
