"""What wakes the ticket pollers before their next poll, and the followers of tickets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.history import LAST_EVENTS
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from jobd.lifecycle.notices import Changes


class Wakeups:
    """One for each poller, and one for the followers of events. A wakeup only saves waiting for the next poll."""

    def __init__(self) -> None:
        self.readiness = Wakeup()
        self.scheduler = Wakeup()
        self.runner = Wakeup()
        self.gate = Wakeup()
        #: `ticket_log` has new lines. For one waiter.
        self.changed = Wakeup()
        #: The jobs whose end the runner waits for.
        self.awaited_jobs: Collection[UUID] = ()

    def jobs_changed(self, changes: Changes) -> None:
        """To be called after a commit of this node that changed jobs: wakes the runner when a job of its own has ended.

        Called often, and costs next to nothing while the runner waits for nothing.
        """
        if self.awaited_jobs and any(notice.type in LAST_EVENTS for notice in changes.of(self.awaited_jobs)):
            self.runner.set()
