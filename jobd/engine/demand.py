"""Who wants jobs in this process: a commit of the engine that enqueues or completes jobs also takes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.take import Want


class Reservation(Protocol):
    """Jobs that were promised and are being taken: by one statement, for nobody else."""

    @property
    def wants(self) -> Sequence[Want]: ...


class Demand(Protocol):
    def reserve(self, queues: Mapping[str, int] | None = None) -> Reservation | None:
        """What is wanted now: of these queues as many jobs as come there, or of all that may have waiting jobs."""
        ...

    def cancel(self, reservation: Reservation, *, is_unknown: bool) -> None:
        """Nothing was taken; `is_unknown`: or nobody knows, since the connection broke."""
        ...

    def deliver(self, reservation: Reservation, jobs: Sequence[ClaimedJob]) -> None:
        """These jobs were taken, perhaps fewer than wanted."""
        ...

    def note_work(self, queues: Iterable[str] | None = None) -> None:
        """A commit has left jobs waiting in these queues; None: perhaps in any."""
        ...

    def note_delayed(self) -> None:
        """A commit has left jobs that are due later, perhaps soon."""
        ...

    def note_limited(self) -> None:
        """A commit may have given a limit key room, or left jobs to be admitted."""
        ...

    def note_pause(self, queue: str, *, paused: bool) -> None:
        """A commit has paused or resumed this queue."""
        ...


class NoDemand:
    """Nobody in this process takes jobs."""

    def reserve(self, queues: Mapping[str, int] | None = None) -> None:
        return None

    def cancel(self, reservation: Reservation, *, is_unknown: bool) -> None:
        return None

    def deliver(self, reservation: Reservation, jobs: Sequence[ClaimedJob]) -> None:
        return None

    def note_work(self, queues: Iterable[str] | None = None) -> None:
        return None

    def note_delayed(self) -> None:
        return None

    def note_pause(self, queue: str, *, paused: bool) -> None:
        return None

    def note_limited(self) -> None:
        return None
