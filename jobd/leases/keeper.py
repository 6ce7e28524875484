"""Renews many leases together, one request for all of them, and stops the holder of one that is lost.

A holder is stopped at once when its lease was lost to another, when it could not be renewed in time by this process's
own clock (see `timer`), or when its job is to be canceled. What is leased, for how long and how it is renewed is in the
subclasses of `Lease`: jobs in `jobs`, events and work orders of tickets in `jobd.tickets.pollers.claims`.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Generic

import anyio

from jobd.config.task_settings import shortest_heartbeat_s
from jobd.job.model import LeaseLost
from jobd.leases.timer import MARGIN, EarliestTimer, L
from jobd.lifecycle.heartbeat import Renewal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from jobd.config.model import Config, Leases

#: Time between two checks for leases to renew, as a part of the heartbeat interval: a renewal is late by that at most.
CHECK = 0.25


class LeaseKeeper(Generic[L]):
    def __init__(
        self,
        renew: Callable[[Sequence[L]], Awaitable[Sequence[Renewal | LeaseLost | Exception]]],
        config: Callable[[], Config],
    ) -> None:
        #: Sends one renewal for all these leases; an exception as answer: whether that one was renewed is unknown.
        self._renew = renew
        self._config = config
        #: All that were not let go, in the order in which they were taken on.
        self._leases: dict[L, None] = {}
        self._timer = EarliestTimer(self._lose_ended)
        #: Around the pause between two checks.
        self._pause = anyio.CancelScope()

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> list[L]:
        """All that were not let go; may be asked from any thread."""
        return list(self._leases)

    def kept(self) -> list[L]:
        """All that are neither lost nor let go, and so are renewed; may be asked from any thread."""
        return [lease for lease in self.all() if not lease.is_lost]

    def keep(self, *leases: L) -> None:
        """Renew these leases until they are let go or lost."""
        if not leases:
            return
        self._leases.update(dict.fromkeys(leases))
        self._timer.watch(min(lease.ends_at for lease in leases))
        # One may have to be renewed sooner than any that was known when the present pause began.
        config = self._config().leases
        check_at = anyio.current_time() + min(lease.heartbeat_s(config) for lease in leases) * CHECK
        if check_at < self._pause.deadline:
            self._pause.deadline = check_at

    def let_go(self, *leases: L) -> None:
        """Renew these leases no more: their holders have ended, have given them up, or leave them to expire."""
        for lease in leases:
            self._leases.pop(lease, None)

    def lose(self, lease: L) -> None:
        """Stop its holder, unless it was let go while a renewal was under way."""
        if lease in self._leases and not lease.is_lost:
            lease.lose()

    def _lose_ended(self) -> list[float]:
        for lease in self.kept():
            if lease.is_over():
                self.lose(lease)
        return [lease.ends_at for lease in self.kept()]

    async def keep_renewing(self, beat: Callable[[], None] | None = None) -> None:
        """Renew whatever is due, until cancelled; `beat` is called after every pause."""
        while True:
            with anyio.move_on_after(self._pause_s()) as self._pause:
                await anyio.sleep_forever()
            if beat is not None:
                beat()
            await self.renew_due()

    def _pause_s(self) -> float:
        config = self._config()
        own = (lease.heartbeat_s(config.leases) for lease in self.kept())
        return min((shortest_heartbeat_s(config), *own)) * CHECK

    async def renew_due(self) -> None:
        """One renewal for all leases that are due; it times out early enough for another try."""
        leases, sent_at = self._config().leases, time.monotonic()
        due = [lease for lease in self.kept() if is_due(lease, sent_at, leases)]
        if due:
            answers: Sequence[Renewal | LeaseLost | Exception] = []
            with anyio.move_on_after(min(lease.ttl_s(leases) for lease in due) * (1 - MARGIN) / 2):
                answers = await self._renew(due)
            self.settle(due, answers, sent_at, leases)

    def settle(
        self,
        sent: Sequence[L],
        answers: Sequence[Renewal | LeaseLost | Exception],
        sent_at: float,
        leases: Leases,
        call: Callable[[Callable[[], None]], None] = lambda function: function(),
    ) -> None:
        """Apply the answers to a renewal. In another thread, `call` has to run its argument in the event loop."""
        for lease, answer in zip(sent, answers, strict=False):
            if isinstance(answer, Renewal):
                lease.grant(sent_at, lease.ttl_s(leases, answer))
                if then := lease.renewed(answer):
                    call(then)
            elif isinstance(answer, LeaseLost):
                call(functools.partial(self.lose, lease))


def is_due(lease: L, now: float, leases: Leases) -> bool:
    """Whether to renew it now rather than after the next pause."""
    return now - lease.renewed_at > lease.heartbeat_s(leases) * (1 - CHECK)
