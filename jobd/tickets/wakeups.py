"""What wakes the ticket pollers before their next poll, and the followers of tickets."""

from __future__ import annotations

from jobd.supervise.wakeup import Wakeup


class Wakeups:
    """One for each poller, and one for the followers of events. A wakeup only saves waiting for the next poll."""

    def __init__(self) -> None:
        self.readiness = Wakeup()
        self.scheduler = Wakeup()
        self.runner = Wakeup()
        self.gate = Wakeup()
        #: Something in `ticket_log` is new. For one waiter.
        self.changed = Wakeup()
        #: Whether the runner waits for jobs, so that the news of every job would interest it.
        self.runner_waits = False

    def job_committed(self) -> None:
        """Something about jobs was committed; called often."""
        if self.runner_waits:
            self.runner.set()
