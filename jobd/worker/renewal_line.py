"""The lease guard's own line to jobd, for when a handler blocks the event loop that all other calls live on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.wire.worker import HeartbeatAnswer
from jobd.worker.engine import heartbeat_request, renewals_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.job.model import LeaseLost
    from jobd.lifecycle.heartbeat import Renewal
    from jobd.lifecycle.lease import LeaseProof
    from jobd.worker.session import WorkerSession


class HttpLine:
    """A new connection for each renewal: they are rare, and connections that are kept belong to one event loop."""

    def __init__(self, open_session: Callable[[], WorkerSession], worker_id: str) -> None:
        self._open_session = open_session
        self._worker_id = worker_id

    async def renew(self, beats: Sequence[LeaseProof], ttl_s: float) -> Sequence[Renewal | LeaseLost]:
        async with self._open_session() as session:
            request = heartbeat_request(self._worker_id, beats)
            return renewals_in(await session.post_at_once("heartbeat", request, HeartbeatAnswer))

    def drop(self) -> None:
        """Nothing is kept."""
