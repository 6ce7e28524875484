"""One queue with one job: all that Postgres, Redis and the processes know of it, as one hashable value."""

from __future__ import annotations

from typing import NamedTuple

# The mode of the queue.
STREAM, DIRECT = "stream", "direct"
# The status of the job. DEAD: its attempts are used up.
QUEUED, RUNNING, DONE, DEAD = "queued", "running", "done", "dead"
FINAL = frozenset({DONE, DEAD})
# Where the message of an enqueue_id is. ABSENT: not offered in this filling of Redis; OWN: pending with a consumer of
# jobd; FOREIGN: pending with the raw worker; ACKED: acknowledged by the raw worker, which does not delete; SETTLED:
# offered and deleted.
ABSENT, UNREAD, OWN, FOREIGN, ACKED, SETTLED = "-", "unread", "own", "foreign", "acked", "settled"
# Who holds the lease.
NOBODY, A_SLOT, RAW_WORKER = "", "slot", "raw"

# What a slot is doing. HEARD: has heard that the queue is direct; TAKE: its statement is open; MESSAGE: has read one.
IDLE, HEARD, TAKE, MESSAGE, RUN, REPORT = "idle", "heard", "take", "message", "run", "report"
# What the raw worker is doing. OUT: has not joined; WAITS: for a message; WROTE: its result, not acknowledged yet.
OUT, WAITS, WROTE = "out", "waits", "wrote"
# What a relay is doing. PREPARE: has raised the epoch; MET: has seen Redis in its epoch; OFFER: its call is under way;
# FENCED: has raised the fence; CLEAR: has seen no waiting job in foreign hands. AWAY, of a relay or a slot: a call of
# Redis has failed.
REST, PREPARE, MET, OFFER, FENCED, CLEAR, AWAY = "rest", "prepare", "met", "offer", "fenced", "clear", "away"


class Slot(NamedTuple):
    doing: str = IDLE
    #: The enqueue_id of its message, or the token of its lease.
    of: int = 0
    #: The mode_no that its node knew when it read the message.
    mode_no: int = 0


class RawWorker(NamedTuple):
    doing: str = OUT
    #: The enqueue_id of its message.
    of: int = 0


class RelayMemory(NamedTuple):
    #: 0: has not met Redis yet.
    epoch: int = 0
    #: The mode_no of the stream mode in which this relay works; 0: none, the queue was direct.
    mode_no: int = 0
    doing: str = REST
    #: The enqueue_id that it offers.
    of: int = 0


class State(NamedTuple):
    # Postgres
    mode: str
    mode_no: int
    status: str
    enqueue_id: int
    #: The token of the last lease; also counts the attempts.
    token: int
    owner: str
    epoch: int
    #: A relay has begun in this epoch.
    is_open: bool
    #: A raw worker was seen within the last lease time.
    raw_seen: bool
    #: The first relay began in this epoch less than a lease time ago, and a raw worker had been seen shortly before.
    is_unsure: bool
    # Redis
    is_up: bool
    redis_epoch: int
    fence: int
    #: For each enqueue_id, beginning with 1.
    messages: tuple[str, ...]
    #: The enqueue_id whose end the raw worker wrote and nobody has carried into Postgres; 0: none.
    raw_end: int
    # processes
    slots: tuple[Slot, ...]
    raw: RawWorker
    relays: tuple[RelayMemory, ...]
    # how often what may still happen
    crashes: int
    losses: int
    outages: int
    # what a run must show at the end
    #: How many reports ended the job.
    finishes: int = 0
    #: A run began after the result of another was recorded.
    ran_again: bool = False
    #: Jobs were taken, or may be, because Redis is away.
    is_bypassed: bool = False

    def message(self, enqueue_id: int) -> str:
        return self.messages[enqueue_id - 1]

    def with_message(self, enqueue_id: int, where: str) -> tuple[str, ...]:
        return (*self.messages[: enqueue_id - 1], where, *self.messages[enqueue_id:])

    def with_slot(self, n: int, doing: str, of: int = 0, mode_no: int = 0) -> tuple[Slot, ...]:
        return (*self.slots[:n], Slot(doing, of, mode_no), *self.slots[n + 1 :])

    def with_relay(self, n: int, memory: RelayMemory) -> tuple[RelayMemory, ...]:
        return (*self.relays[:n], memory, *self.relays[n + 1 :])

    @property
    def is_row_locked(self) -> bool:
        """A statement that takes jobs is open and has the row of the queue FOR SHARE."""
        return any(slot.doing == TAKE for slot in self.slots)

    @property
    def is_recorded(self) -> bool:
        """The result of a run is kept somewhere from where it reaches, or has reached, Postgres."""
        return self.status == DONE or self.raw_end > 0


def symmetric(state: State) -> State:
    """Nodes are alike, and so are relays: one state stands for all that differ only in who is who."""
    slots, relays = tuple(sorted(state.slots)), tuple(sorted(state.relays))
    if slots == state.slots and relays == state.relays:
        return state
    return state._replace(slots=slots, relays=relays)


def broken(state: State) -> str | None:
    runs = sum(slot.doing == RUN for slot in state.slots) + (state.raw.doing == RUN)
    if runs > 1:
        return "two runs of the job at the same time"
    if state.finishes > 1:
        return "the job was finished twice"
    if state.ran_again:
        return "a run began though the result of another is recorded"
    return None
