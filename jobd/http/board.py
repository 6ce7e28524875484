"""`/v1/board`: what the board under this jobd measures of itself, and why jobs wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.board.heat import slots_at
from jobd.http.endpoint import Call, get, json_answer
from jobd.wire.board import BoardObject
from jobd.wire.gateway import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.responses import Response

    from jobd.board.ledger import MemoryLedger
    from jobd.config.model import Config
    from jobd.dispatch.slots import SlotUsage
    from jobd.model_servers.service import ModelServers
    from jobd.wire.board import HeatObject


async def get_board(call: Call) -> Response:
    services = call.services
    return json_answer(msgspec.structs.replace(services.board.read(), model_servers=services.model_servers.read()))


class BoardReasons:
    """Why slots of this node do not start a job that stands in line."""

    def __init__(
        self,
        config: Callable[[], Config],
        memory: MemoryLedger,
        heat: Callable[[], HeatObject],
        usage: Callable[[], Mapping[str, SlotUsage]],
        model_servers: ModelServers,
    ) -> None:
        self._config = config
        self._memory = memory
        self._heat = heat
        self._usage = usage
        self._model_servers = model_servers

    def __call__(self, queue: str, task: str) -> Waiting | None:
        """None: nothing of the board is in the way, or no slot of this node serves the queue."""
        configured = self._config().queues.get(queue)
        if configured is None or not configured.slots:
            return None
        return (self._hot(queue) if configured.hot else None) or self._short(task) or self._swap(task)

    def _swap(self, task: str) -> Waiting | None:
        why = self._model_servers.why_waiting(task)
        return None if why is None else Waiting(reason="model_swap", position=None, detail=why)

    def _short(self, task: str) -> Waiting | None:
        shortage = self._memory.shortage(task) if self._memory.is_used else None
        if shortage is None:
            return None
        needed, free = shortage
        if free is None:
            why = "this node cannot measure its memory (/proc/meminfo, board.enabled), so no job that needs some starts"
        else:
            why = f"it needs {needed >> 20} MB, and {free >> 20} MB are free for jobs"
        return Waiting(reason="memory", position=None, needed_bytes=needed, free_bytes=free, detail=why)

    def _hot(self, queue: str) -> Waiting | None:
        heat, usage = self._heat(), self._usage().get(queue)
        if heat.level == "none" or usage is None or usage.busy < slots_at(heat.level, usage.slots):
            return None
        limit = heat.hard_celsius if heat.level == "hard" else heat.soft_celsius
        starts = "no slot starts a job" if heat.level == "hard" else "half of the slots start jobs"
        why = f"{heat.zone} has {heat.celsius} degrees, the limit is {limit}: {starts}"
        return Waiting(reason="heat", position=None, detail=why)


ENDPOINTS = (
    get(
        "/v1/board",
        "client",
        get_board,
        "The board under this jobd: temperatures, power, memory, disks; model servers that jobd runs",
        answers={200: BoardObject},
        own_jobs=True,
    ),
)
