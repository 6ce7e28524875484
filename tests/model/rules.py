"""What the protocol rests on: guards of jobd, assumptions about its surroundings; and the bounds of a search."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Guard(Enum):
    """A rule that jobd keeps. Each can be taken away, and each is then missed."""

    #: A take holds FOR SHARE on the row of its queue until its commit; a change of the mode waits for that.
    LOCK_IN_TAKE = "a take locks the row of its queue"
    #: A take goes by the mode on the locked row, not by what its node last heard.
    RECHECK_IN_TAKE = "a take checks the mode on the locked row"
    #: The script refuses offers whose mode_no is smaller than the fence of the queue.
    FENCE = "Redis refuses offers of an older mode_no"
    #: The script that raises the fence deletes the messages that nobody has read.
    WITHDRAW = "unread messages are withdrawn before direct"
    #: The mode becomes direct only when no waiting job has its message in foreign hands, or acknowledged by them.
    FOREIGN_HANDS = "messages in foreign hands are waited for before direct"
    #: The relay offers only after the commit that made the mode stream.
    OFFER_AFTER_COMMIT = "offers come after the commit of the mode"
    #: The script refuses a call that shows another epoch than the one in Redis.
    EPOCH = "Redis refuses calls of another epoch"
    #: A claim by message is a compare-and-swap on enqueue_id and status.
    CLAIM_SWAP = "a claim by message compares enqueue_id and status"
    #: A report ends the attempt only if its lease token is the job's.
    TOKEN = "a report proves the lease token"
    #: A holder that could not renew stops its handler before its lease ends.
    OWN_CLOCK = "a holder stops before its lease ends"
    #: While Redis is away, a stream queue that raw workers read is taken from only one lease time after they were seen.
    AWAY_WAITS = "without Redis, the queue of a raw worker waits one lease time"
    #: That Redis is away is a change of the mode, made by a relay under its mode_no; no node decides it for itself.
    AWAY_BY_RELAY = "without Redis, a relay makes the queue direct"
    #: A relay that has met Redis in the epoch of Postgres raises mode_no before its first offer, if the epoch is still
    #: the same: what was read from an older filling of Redis then has an older mode_no, and a fence that was raised and
    #: given up does not close the stream.
    BEGIN_RAISES_MODE_NO = "a relay that begins raises mode_no"
    #: A claim by message locks the row of the queue, and fails if mode_no has moved since the message was read.
    CLAIM_SHOWS_MODE_NO = "a claim by message shows the mode_no under which it was read"
    #: The search for messages in foreign hands is refused in another epoch: an empty Redis says nothing.
    EPOCH_IN_SEARCH = "the search for foreign hands shows the epoch"
    #: After Redis lost its data, a queue that raw workers read is neither offered nor made direct for one lease time.
    LOSS_WAITS = "after a loss of Redis, the queue of a raw worker waits one lease time"


class Assumption(Enum):
    """What jobd cannot enforce on a worker that speaks only Redis. Without it, two runs at once are possible."""

    #: A raw worker that says nothing for a lease time has ended: what the contract calls silence.
    SILENT_IS_GONE = "a raw worker silent for a lease time has ended"
    #: Redis does not fail between the first read of a new raw worker and the next look of jobd (1 s).
    SEEN_BEFORE_LOSS = "a raw worker is seen before Redis fails"
    #: A Redis that was away until its queue became direct comes back empty, as the embedded one does.
    RETURNS_EMPTY = "a Redis that was away for long comes back empty"


#: What the first plan of the hand-over did not have, and this model has shown to be needed when Redis fails.
FOUND_BY_MODEL = frozenset(
    {
        Guard.AWAY_BY_RELAY,
        Guard.BEGIN_RAISES_MODE_NO,
        Guard.CLAIM_SHOWS_MODE_NO,
        Guard.EPOCH_IN_SEARCH,
        Guard.LOSS_WAITS,
    }
)


class Bounds(NamedTuple):
    """How far a search goes."""

    #: Largest numbers that occur.
    mode_no: int = 3
    enqueue_id: int = 2
    epoch: int = 1
    relays: int = 2
    slots: int = 2
    #: How often a node or the raw worker crashes, Redis loses its data, Redis is away.
    crashes: int = 0
    losses: int = 0
    outages: int = 0
    #: Largest number of states before the search gives up.
    states: int = 400_000


class Rules(NamedTuple):
    bounds: Bounds = Bounds()
    without: frozenset[Guard | Assumption] = frozenset()

    def has(self, rule: Guard | Assumption) -> bool:
        return rule not in self.without
