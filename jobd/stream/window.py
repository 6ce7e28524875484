"""The window: which jobs are in the streams unclaimed, and which are offered next.

Waiting jobs stay in Postgres. At most `relay.stream_window` of a queue are in its stream unclaimed, in the order in
which they will run, so a late urgent job overtakes the rest. As many more have a hash in Redis; the rest get theirs
when they are offered or run, so Redis stays small however long the queue is.

What is kept here is what has been published, and may be wrong: the scripts offer no job twice, and a sweep finds what
is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.lifecycle.outbox import DONE, QUEUED, RUNNING
from jobd.lifecycle.publish import select_for_publish
from jobd.stream.changes import offer_of, offer_of_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jobd.config.model import Config
    from jobd.lifecycle.outbox import OutboxJob
    from jobd.store.session import Session
    from jobd.stream.changes import OfferArray
    from jobd.stream.modes import Modes

#: A stream is topped up when at least one part in TOP_UP_PARTS of its window is free: a query for each message that
#: was claimed would cost too much.
TOP_UP_PARTS = 4


class Window:
    def __init__(self, config: Callable[[], Config], modes: Modes) -> None:
        self._config = config
        self._modes = modes
        #: For each queue the jobs that are in its stream and not claimed yet, as far as has been published.
        self.offered: dict[str, set[str]] = {}
        #: For each queue the jobs that have a hash and are not offered yet: no more than a window of them.
        self._ahead: dict[str, set[str]] = {}
        #: Queues of which every job that may be offered was offered, by the last query.
        self._emptied: set[str] = set()
        self.paused: set[str] = set()
        #: Tasks that are paused; the names in `paused` are of queues.
        self.paused_tasks: set[str] = set()

    def forget_all(self, queues: Iterable[str]) -> None:
        self.offered, self._ahead = {}, {}
        self._emptied, self.paused, self.paused_tasks = set(), set(), set()
        self.meet(queues)

    def meet(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.offered.setdefault(queue, set())
            self._ahead.setdefault(queue, set())

    def forget(self, queue: str) -> None:
        """Nothing of the queue is in its stream, or nobody knows what."""
        self.offered[queue].clear()
        self._emptied.discard(queue)

    def look_again(self) -> None:
        """Query every queue again: jobs have become available without a change in the outbox."""
        self._emptied.clear()

    def room(self) -> dict[str, int]:
        """How many jobs may be offered, for each queue whose stream is to be topped up."""
        window, may_offer = self._config().relay.stream_window, self._modes.may_offer
        room = {queue: window - len(offered) for queue, offered in self.offered.items() if may_offer(queue)}
        return {queue: number for queue, number in room.items() if number >= max(1, window // TOP_UP_PARTS)}

    def known(self, queues: Iterable[str]) -> list[str]:
        return [job_id for queue in queues for job_id in self.offered[queue]]

    # -- what happened -------------------------------------------------------------------------------------------

    def note(self, jobs: Sequence[OutboxJob]) -> None:
        """Jobs that have begun, ended or been requeued have no unclaimed message any more."""
        for job in jobs:
            if job.kinds & (RUNNING | DONE) or (job.others is not None and job.queue in self.offered):
                offered, ahead = self.offered.get(job.queue), self._ahead.get(job.queue)
                if offered:
                    offered.discard(job.job_id)
                if ahead:
                    ahead.discard(job.job_id)
            if job.others is not None and job.order_at is not None:
                self._emptied.discard(job.queue)  # it was requeued

    def keeps_out(self, job: OutboxJob) -> bool:
        """Whether a waiting job gets no hash yet, since a whole window of jobs that are not offered has one."""
        ahead = self._ahead[job.queue]
        if job.job_id in ahead:
            return False
        if len(ahead) >= self._config().relay.stream_window:
            return True
        ahead.add(job.job_id)
        return False

    # -- offers --------------------------------------------------------------------------------------------------

    def offers_at_once(self, jobs: Sequence[OutboxJob]) -> list[OfferArray]:
        """New jobs of queues in which nothing else waits to be offered: none is overtaken, so no query is needed."""
        offers: list[OfferArray] = []
        if not self._emptied:
            return offers
        window = self._config().relay.stream_window
        new = [(job.order_at, job.job_id, job) for job in jobs if job.order_at is not None and job.kinds == QUEUED]
        for _, job_id, job in sorted(new):
            queue = job.queue
            if queue not in self._emptied or job_id in self.offered[queue]:
                continue
            if len(self.offered[queue]) < window and queue not in self.paused and self._modes.may_offer(queue):
                self.offered[queue].add(job_id)
                offers.append(offer_of_new(job))
            else:
                self._emptied.discard(queue)
        return offers

    async def offers(self, session: Session) -> list[OfferArray]:
        """The jobs that the streams have room for, in the order in which they will run."""
        room = {queue: number for queue, number in self.room().items() if queue not in self._emptied}
        if not room:
            return []
        offers = []
        most, known = max(room.values()), self.known(room)
        for offer in await select_for_publish(session, list(room), most=most, known=known):
            if room[offer.queue] > 0:
                job_id = str(offer.job_id)
                room[offer.queue] -= 1
                self.offered[offer.queue].add(job_id)
                self._ahead[offer.queue].discard(job_id)
                offers.append(offer_of(offer))
        self._emptied |= {queue for queue, left in room.items() if left > 0}
        return offers
