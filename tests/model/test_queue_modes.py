"""Every interleaving of two nodes, two relays, a raw Redis worker, crashes and a failing Redis: no double run, no loss.

Each rule that the hand-over rests on is also taken away, and each is then missed: the search finds the shortest list of
steps to a double run. docs/queue-modes.md explains the rules. To read such a list:
    python -m pytest tests/model -k FENCE --log-cli-level=INFO
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.model.explorer import stuck
from tests.model.protocol import search
from tests.model.rules import FOUND_BY_MODEL, Assumption, Bounds, Guard, Rules
from tests.model.state import DIRECT, FINAL, STREAM, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.explorer import Graph

log = logging.getLogger(__name__)

#: The mode changes to and fro while two relays act at once and a node or the raw worker crashes.
HAND_OVER = Bounds(mode_no=4, enqueue_id=1, crashes=1)
#: The job is requeued, so messages, claims and reports of an older attempt are about.
REQUEUE = Bounds(mode_no=3, enqueue_id=2, crashes=1, relays=1)
#: Redis loses its data at any moment; relays that were frozen act late.
LOSS = Bounds(mode_no=4, enqueue_id=1, epoch=2, losses=1, slots=1)
#: Redis is away, and comes back with its data or without.
OUTAGE = Bounds(mode_no=4, enqueue_id=1, epoch=2, outages=1, relays=1)

BOUNDS = {"hand-over": HAND_OVER, "requeue": REQUEUE, "loss": LOSS, "outage": OUTAGE}
#: Minutes in all: more relays, slots, losses and changes of the mode at once.
WIDE_BOUNDS = {
    "hand-over": Bounds(mode_no=5, enqueue_id=1, crashes=1, states=2_000_000),
    "requeue": Bounds(mode_no=3, enqueue_id=2, crashes=1, states=2_000_000),
    "loss": Bounds(mode_no=4, enqueue_id=1, epoch=2, losses=1, states=2_000_000),
    "two losses": Bounds(mode_no=4, enqueue_id=1, epoch=3, losses=2, slots=1, states=3_000_000),
    "outage": Bounds(mode_no=4, enqueue_id=1, epoch=2, outages=1, states=2_000_000),
}

#: Where each rule is missed first.
MISSED_IN: dict[Guard | Assumption, Bounds] = {
    Guard.LOCK_IN_TAKE: HAND_OVER,
    Guard.RECHECK_IN_TAKE: HAND_OVER,
    Guard.FENCE: HAND_OVER,
    Guard.WITHDRAW: HAND_OVER,
    Guard.FOREIGN_HANDS: HAND_OVER,
    Guard.OFFER_AFTER_COMMIT: HAND_OVER,
    Guard.EPOCH: LOSS,
    Guard.CLAIM_SWAP: HAND_OVER,
    Guard.TOKEN: REQUEUE,
    Guard.OWN_CLOCK: REQUEUE,
    Guard.AWAY_WAITS: OUTAGE,
    Guard.AWAY_BY_RELAY: OUTAGE,
    Guard.BEGIN_RAISES_MODE_NO: LOSS,
    Guard.CLAIM_SHOWS_MODE_NO: LOSS,
    Guard.EPOCH_IN_SEARCH: LOSS,
    Guard.LOSS_WAITS: LOSS,
    Assumption.SILENT_IS_GONE: REQUEUE,
    Assumption.SEEN_BEFORE_LOSS: LOSS,
    Assumption.RETURNS_EMPTY: OUTAGE,
}


def _from(bounds: Bounds, mode: str) -> Bounds:
    """A relay that begins raises mode_no only in stream mode: one less is needed for as many changes of the mode."""
    return bounds._replace(mode_no=bounds.mode_no - 1) if mode == DIRECT else bounds


def assert_sound(graph: Graph[State]) -> None:
    assert graph.found is None, f"\n{graph.found}"


@pytest.mark.parametrize("mode", [STREAM, DIRECT])
@pytest.mark.parametrize("name", BOUNDS)
def test_no_interleaving_runs_a_job_twice(name: str, mode: str) -> None:
    graph = search(Rules(_from(BOUNDS[name], mode)), mode)

    assert_sound(graph)
    log.info("%d states", len(graph))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [STREAM, DIRECT])
@pytest.mark.parametrize("name", WIDE_BOUNDS)
def test_no_interleaving_within_wider_bounds_runs_a_job_twice(name: str, mode: str) -> None:
    graph = search(Rules(_from(WIDE_BOUNDS[name], mode)), mode)

    assert_sound(graph)
    log.info("%d states", len(graph))


def test_while_redis_does_not_fail_the_first_plan_is_enough() -> None:
    assert_sound(search(Rules(HAND_OVER._replace(mode_no=3), FOUND_BY_MODEL)))


@pytest.mark.parametrize("rule", [*Guard, *Assumption], ids=lambda rule: rule.name)
def test_every_rule_is_needed(rule: Guard | Assumption) -> None:
    graph = search(Rules(MISSED_IN[rule], frozenset({rule})))

    assert graph.found is not None
    log.info("without the rule that %s:\n%s", rule.value, graph.found)


def test_page_names_every_rule() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "queue-modes.md").read_text()

    assert [rule.name for rule in [*Guard, *Assumption] if f"`{rule.name}`" not in page] == []


def test_search_reaches_every_kind_of_step() -> None:
    small = [bounds._replace(mode_no=3) for bounds in (REQUEUE, LOSS, OUTAGE)] + [HAND_OVER]

    reached = {text for bounds in small for text in search(Rules(bounds._replace(slots=1))).texts}

    missing = [kind for kind in KINDS if not any(kind in text for text in reached)]
    assert missing == []


KINDS = (
    "opens a take",
    "has the job and runs it",
    "reads the message of enqueue_id 2",
    "takes over the message",
    "claims by the message",
    "claims nothing",
    "drops its message",
    "the handler ends",
    "stops the handler",
    "its report ends the job",
    "its report is refused",
    "crashes and starts again",
    "raw worker: joins",
    "raw worker: leaves",
    "raw worker: writes its result",
    "raw worker: acknowledges",
    "raw worker: gives up",
    "raw worker: crashes",
    "watcher: notes",
    "watcher: claims for",
    "watcher: settles",
    "watcher: carries the end",
    "raises the epoch",
    "prepares Redis",
    "begins, raises mode_no",
    "begins again",
    "sends an offer",
    "arrives",
    "refused by the fence",
    "settles the message",
    "raises the fence",
    "sees no waiting job in foreign hands",
    "commits the mode direct",
    "commits the mode stream",
    "does not change the mode",
    "cannot reach Redis",
    "requeues as enqueue_id 2",
    "dead letter",
    "one lease time passes",
    "Redis loses its data",
    "Redis is away",
    "Redis is back with its data",
    "Redis is back, empty",
)


class Policy(NamedTuple):
    """What the leader wants from some moment on, and who is there to work: steps that do not happen any more."""

    name: str
    never: tuple[str, ...]

    def counts(self, text: str) -> bool:
        return not any(words in text for words in self.never)


FAULTS = ("crashes", "is replaced", "Redis loses", "Redis is away", "stops the handler")
TO_DIRECT, TO_STREAM = ("raises the fence", "mode direct"), ("mode stream",)
NO_RAW, NO_NODE = ("raw worker: reads",), ("node 1: reads",)
IN_STREAM = Policy("by a node in stream mode", (*FAULTS, *TO_DIRECT, *NO_RAW))
IN_DIRECT = Policy("by a node in direct mode", (*FAULTS, *TO_STREAM, *NO_RAW, *NO_NODE))
BY_RAW_WORKER = Policy("by the raw worker in stream mode", (*FAULTS, *TO_DIRECT, *NO_NODE))
WITHOUT_REDIS = Policy("while Redis stays away", (*FAULTS, *NO_RAW, "Redis is back"))

#: How many more times mode_no may have to be raised on the way to the end.
ROOM = 3
LIVE = Bounds(mode_no=5, enqueue_id=2, crashes=1, relays=1, slots=1)
LIVE_LOSS = Bounds(mode_no=5, enqueue_id=1, epoch=2, losses=1, relays=1, slots=1)
LIVE_OUTAGE = Bounds(mode_no=5, enqueue_id=1, epoch=2, outages=1, relays=1, slots=1)


@pytest.mark.parametrize(
    ("bounds", "policies"),
    [
        pytest.param(LIVE, (IN_STREAM, IN_DIRECT, BY_RAW_WORKER), id="requeue"),
        pytest.param(LIVE_LOSS, (IN_STREAM, IN_DIRECT, BY_RAW_WORKER), id="loss"),
        pytest.param(LIVE_OUTAGE, (IN_STREAM, IN_DIRECT, BY_RAW_WORKER, WITHOUT_REDIS), id="outage"),
    ],
)
@pytest.mark.parametrize("mode", [STREAM, DIRECT])
def test_from_every_state_the_job_can_be_finished(bounds: Bounds, policies: tuple[Policy, ...], mode: str) -> None:
    graph = search(Rules(_from(bounds, mode)), mode, keep_edges=True)

    assert_sound(graph)
    for policy in policies:
        lost = stuck(graph, _is_final, policy.counts, _has_room(_from(bounds, mode)))
        assert lost is None, f"{policy.name}\n{lost}"
    log.info("%d states", len(graph))


def test_fence_that_is_given_up_closes_the_stream_unless_a_relay_raises_mode_no() -> None:
    graph = search(Rules(LIVE, frozenset({Guard.BEGIN_RAISES_MODE_NO})), keep_edges=True)

    lost = stuck(graph, _is_final, IN_STREAM.counts, _has_room(LIVE))

    assert lost is not None
    log.info("\n%s", lost)


def _is_final(state: State) -> bool:
    return state.status in FINAL


def _has_room(bounds: Bounds) -> Callable[[State], bool]:
    """Whether the bounds of the search leave the relay the numbers that it may still need."""

    def has_room(state: State) -> bool:
        return state.mode_no + ROOM <= bounds.mode_no and (
            state.epoch < bounds.epoch or state.redis_epoch == state.epoch
        )

    return has_room
