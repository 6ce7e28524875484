"""The relay: offers, settles, changes the mode. Several may act at once: nothing rests on there being one leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.explorer import Step
from tests.model.rules import Guard
from tests.model.state import (
    ABSENT,
    ACKED,
    AWAY,
    CLEAR,
    DIRECT,
    FENCED,
    FINAL,
    FOREIGN,
    MET,
    OFFER,
    OWN,
    PREPARE,
    QUEUED,
    REST,
    SETTLED,
    STREAM,
    UNREAD,
    RelayMemory,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.rules import Rules


def relay_steps(state: State, rules: Rules) -> Iterator[Step[State]]:
    for n, memory in enumerate(state.relays):
        relay = RelaySteps(state, rules, n)
        if not memory.epoch and memory.doing == REST:
            yield from relay.meet_redis()
        elif memory.doing == REST:
            yield from relay.learn_mode()
            yield from relay.select()
            yield from relay.settle()
            yield from relay.raise_fence()
            yield from relay.change_to_stream()
            yield from relay.miss_redis(memory.mode_no)
        elif memory.doing == OFFER:
            yield from relay.offer()
        elif memory.doing == PREPARE:
            yield from relay.prepare()
        elif memory.doing == MET:
            yield from relay.begin()
        elif memory.doing == FENCED:
            yield from relay.search_foreign_hands()
        elif memory.doing in (CLEAR, AWAY):
            yield from relay.change_to_direct()
        if memory.doing in (FENCED, CLEAR, AWAY):
            yield relay.step("gives the change up", memory=RelayMemory())
        elif memory.doing != REST:
            yield relay.step("is replaced" if state.is_up else "its call fails", memory=RelayMemory())


class RelaySteps:
    """The steps of one relay in one state."""

    def __init__(self, state: State, rules: Rules, n: int) -> None:
        self.state = state
        self.rules = rules
        self.n = n
        self.memory = state.relays[n]

    def step(self, text: str, *, memory: RelayMemory, **changes: object) -> Step[State]:
        after = self.state._replace(relays=self.state.with_relay(self.n, memory), **changes)  # type: ignore[arg-type]
        return Step(f"relay {self.n + 1}: {text}", after)

    # -- the epoch ---------------------------------------------------------------------------------------------

    def meet_redis(self) -> Iterator[Step[State]]:
        if not self.state.is_up:
            yield from self.miss_redis(self._stream_mode_no())
        elif self.state.redis_epoch != self.state.epoch:
            yield from self._raise_epoch("finds a Redis that Postgres does not know")
        else:
            yield self.step("finds the epoch that Postgres knows", memory=RelayMemory(self.state.epoch, doing=MET))

    def _raise_epoch(self, why: str) -> Iterator[Step[State]]:
        epoch = self.state.epoch + 1
        if epoch <= self.rules.bounds.epoch:
            text = f"{why}, raises the epoch to {epoch}"
            yield self.step(text, memory=RelayMemory(epoch, doing=PREPARE), epoch=epoch, is_open=False)

    def prepare(self) -> Iterator[Step[State]]:
        """What nobody has read is taken back; what somebody has in hand counts as offered in the new epoch."""
        if not self.state.is_up:
            return
        kept = (OWN, FOREIGN, ACKED)
        yield self.step(
            f"prepares Redis for epoch {self.memory.epoch}",
            memory=self.memory._replace(doing=MET),
            redis_epoch=self.memory.epoch,
            messages=tuple(where if where in kept else ABSENT for where in self.state.messages),
        )

    def begin(self) -> Iterator[Step[State]]:
        """One commit, after Redis was seen in this epoch and before anything is offered in it. What was read from an
        older filling of Redis has an older mode_no now; a fence that another relay raised and gave up is passed.
        """
        state, memory = self.state, self.memory
        if state.epoch != memory.epoch and self.rules.has(Guard.BEGIN_RAISES_MODE_NO):
            yield self.step("begins again, another relay has raised the epoch", memory=RelayMemory())
            return
        is_unsure = state.is_unsure or (not state.is_open and state.raw_seen and self.rules.has(Guard.LOSS_WAITS))
        if state.mode == DIRECT or not self.rules.has(Guard.BEGIN_RAISES_MODE_NO):
            known = RelayMemory(memory.epoch, self._stream_mode_no())
            yield self.step(f"begins, the mode is {state.mode}", memory=known, is_open=True, is_unsure=is_unsure)
        elif self._can_raise_mode_no():
            mode_no = state.mode_no + 1
            yield self.step(
                f"begins, raises mode_no to {mode_no}",
                memory=RelayMemory(memory.epoch, mode_no),
                mode_no=mode_no,
                is_open=True,
                is_unsure=is_unsure,
            )

    def _stream_mode_no(self) -> int:
        return self.state.mode_no if self.state.mode == STREAM else 0

    # -- offers ------------------------------------------------------------------------------------------------

    def learn_mode(self) -> Iterator[Step[State]]:
        """At any time before it is needed, so it may be old."""
        known = self._stream_mode_no()
        if known != self.memory.mode_no:
            yield self.step(
                f"reads that the queue is in {self.state.mode} mode, mode_no {self.state.mode_no}",
                memory=self.memory._replace(mode_no=known),
            )
        if self.state.mode == DIRECT and not self.rules.has(Guard.OFFER_AFTER_COMMIT):
            yield self.step(
                f"is about to make the mode stream, mode_no {self.state.mode_no + 1}",
                memory=self.memory._replace(mode_no=self.state.mode_no + 1),
            )

    def select(self) -> Iterator[Step[State]]:
        if not self.memory.mode_no or self.state.status != QUEUED or self.state.is_unsure:
            return
        enqueue_id = self.state.enqueue_id
        yield self.step(
            f"sends an offer of enqueue_id {enqueue_id}: epoch {self.memory.epoch}, mode_no {self.memory.mode_no}",
            memory=self.memory._replace(doing=OFFER, of=enqueue_id),
        )

    def offer(self) -> Iterator[Step[State]]:
        """The script call, whenever it arrives."""
        if not self.state.is_up:
            return
        state, memory = self.state, self.memory
        rest = memory._replace(doing=REST, of=0)
        if self.rules.has(Guard.EPOCH) and state.redis_epoch != memory.epoch:
            yield from self._raise_epoch("its offer is refused, Redis has another epoch")
        elif self.rules.has(Guard.FENCE) and state.fence > memory.mode_no:
            yield self.step("its offer is refused by the fence, begins again", memory=RelayMemory())
        elif state.message(memory.of) == ABSENT:
            added = state.with_message(memory.of, UNREAD)
            yield self.step(f"its offer of enqueue_id {memory.of} arrives", memory=rest, messages=added)
        else:
            yield self.step(f"its offer of enqueue_id {memory.of} is there already", memory=rest)

    def settle(self) -> Iterator[Step[State]]:
        """Delete messages that speak of no queued job. What the outbox says of them is never taken back, so a late call
        does no harm: reading the outbox and calling the script are one step.
        """
        state = self.state
        if not state.is_up or state.redis_epoch != self.memory.epoch:
            return
        for enqueue_id, where in enumerate(state.messages, 1):
            is_over = state.enqueue_id != enqueue_id or state.status in FINAL
            is_unread = where == UNREAD and (is_over or state.status != QUEUED)
            if is_unread or (is_over and where in (OWN, FOREIGN, ACKED)):
                yield self.step(
                    f"settles the message of enqueue_id {enqueue_id}",
                    memory=self.memory,
                    messages=state.with_message(enqueue_id, SETTLED),
                )

    # -- the mode ----------------------------------------------------------------------------------------------

    def _must_wait(self) -> bool:
        """An update of the row waits for those who have it FOR SHARE."""
        return self.rules.has(Guard.LOCK_IN_TAKE) and self.state.is_row_locked

    def _can_raise_mode_no(self) -> bool:
        return self.state.mode_no < self.rules.bounds.mode_no and not self._must_wait()

    def change_to_stream(self) -> Iterator[Step[State]]:
        state = self.state
        if state.mode != DIRECT or not self.memory.epoch or self.memory.doing != REST or not self._can_raise_mode_no():
            return
        mode_no = state.mode_no + 1
        yield self.step(
            f"commits the mode stream, mode_no {mode_no}",
            memory=self.memory._replace(mode_no=mode_no),
            mode=STREAM,
            mode_no=mode_no,
        )

    def raise_fence(self) -> Iterator[Step[State]]:
        state, memory = self.state, self.memory
        if not state.is_up or not memory.mode_no or state.mode_no >= self.rules.bounds.mode_no:
            return
        if self.rules.has(Guard.EPOCH) and state.redis_epoch != memory.epoch:
            return
        messages = state.messages
        if self.rules.has(Guard.WITHDRAW):
            messages = tuple(ABSENT if where == UNREAD else where for where in messages)
        yield self.step(
            f"raises the fence to {memory.mode_no + 1} and withdraws what is unread",
            memory=memory._replace(doing=FENCED),
            fence=max(state.fence, memory.mode_no + 1),
            messages=messages,
        )

    def search_foreign_hands(self) -> Iterator[Step[State]]:
        state, memory = self.state, self.memory
        if not state.is_up:
            return
        if self.rules.has(Guard.EPOCH_IN_SEARCH) and state.redis_epoch != memory.epoch:
            yield from self._raise_epoch("its search is refused, Redis has another epoch")
        elif not self.rules.has(Guard.FOREIGN_HANDS) or not self._is_in_foreign_hands():
            yield self.step("sees no waiting job in foreign hands", memory=memory._replace(doing=CLEAR))

    def _is_in_foreign_hands(self) -> bool:
        """A job that Postgres calls running or final cannot be taken directly, whoever has its message."""
        return self.state.status == QUEUED and bool({FOREIGN, ACKED} & set(self.state.messages))

    def miss_redis(self, mode_no: int) -> Iterator[Step[State]]:
        if not self.state.is_up and mode_no and self.rules.has(Guard.AWAY_BY_RELAY):
            yield self.step("cannot reach Redis", memory=self.memory._replace(mode_no=mode_no, doing=AWAY))

    def change_to_direct(self) -> Iterator[Step[State]]:
        """A compare-and-swap on mode_no. Without Redis, the row itself says when a raw worker was last seen."""
        state, memory = self.state, self.memory
        is_away = memory.doing == AWAY
        if state.mode_no != memory.mode_no:
            yield self.step("does not change the mode, mode_no has moved", memory=RelayMemory(memory.epoch))
        elif state.is_unsure or (is_away and state.raw_seen and self.rules.has(Guard.AWAY_WAITS)):
            return
        elif self._can_raise_mode_no():
            yield self.step(
                f"commits the mode direct, mode_no {state.mode_no + 1}",
                memory=RelayMemory(memory.epoch),
                mode=DIRECT,
                mode_no=state.mode_no + 1,
                is_bypassed=state.is_bypassed or is_away,
            )
