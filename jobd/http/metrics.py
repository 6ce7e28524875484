"""`GET /metrics`: what Prometheus reads, in its text form or as OpenMetrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.lowlevel import checkpoint
from starlette.responses import StreamingResponse

from jobd.errors import ServerDown
from jobd.http.endpoint import HEADERS, Call, get
from jobd.lifecycle.read import queue_stats
from jobd.lifecycle.waiting import outbox_depth, queue_heads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence

    from starlette.responses import Response

    from jobd.dispatch.slots import SlotUsage
    from jobd.http.gateway import InFlight
    from jobd.http.request_counts import RequestCounts
    from jobd.lifecycle.read import QueueStats
    from jobd.lifecycle.tally import Tally
    from jobd.lifecycle.waiting import OutboxDepth
    from jobd.store.postgres import Database
    from jobd.supervise.service import State
    from jobd.tasks.openai.model_counts import ModelCounts
    from jobd.wire.board import BoardObject

MEDIA_TYPE = "text/plain"
#: Seconds that Postgres may take; after that its figures are left out, and Prometheus gets the others in time.
STORE_S = 5.0
#: Bytes that are handed to the connection at once.
WRITE_BYTES = 64 * 1024


class StoreFigures(NamedTuple):
    """What Postgres says."""

    queues: Sequence[QueueStats]
    #: Seconds for which the first in line of each queue could have run already.
    heads_s: Mapping[str, float]
    outbox: OutboxDepth


class Figures(NamedTuple):
    """All that one answer is made of. The counters among it go on growing while it is written."""

    #: None: Postgres is away.
    store: StoreFigures | None
    #: Names of the configured queues.
    queues: Collection[str]
    tally: Tally
    requests: RequestCounts
    event_streams: int
    slots: Mapping[str, SlotUsage]
    #: By task.
    models: Mapping[str, ModelCounts]
    services: Mapping[str, State]
    restarts: Mapping[str, int]
    is_degraded: bool
    #: In the file system of the data directory.
    disk_free_bytes: Callable[[], int]
    #: Occurrences of schedules by what became of them.
    occurrences: Mapping[str, int]
    board: BoardObject


async def get_metrics(call: Call) -> Response:
    from jobd.http.metric_families import written  # most jobds are never asked, and prometheus_client takes 10 ms

    pieces, media_type = written(await _figures(call), call.request.headers.get("accept", ""))
    return StreamingResponse(_in_turns(pieces), headers={**HEADERS, "Content-Type": media_type})


async def _in_turns(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Joins small pieces; the event loop runs other tasks between two of them."""
    gathered: list[bytes] = []
    for piece in pieces:
        gathered.append(piece)
        await checkpoint()
        if sum(map(len, gathered)) >= WRITE_BYTES:
            yield b"".join(gathered)
            gathered.clear()
    yield b"".join(gathered)


async def _figures(call: Call) -> Figures:
    services = call.services
    in_flight: InFlight = call.request.app.state.in_flight
    counts = {task: runner.model_counts for task, runner in services.runners.items()}
    return Figures(
        store=await _store_figures(services.database),
        queues=services.config().queues,
        tally=services.engine.tally,
        requests=services.requests,
        event_streams=in_flight.event_streams,
        slots=services.slot_usage(),
        models={task: models for task, models in counts.items() if models is not None},
        services=services.supervisor.states(),
        restarts=services.supervisor.restarts(),
        is_degraded=services.supervisor.is_degraded(),
        disk_free_bytes=services.disk.free_bytes,
        occurrences=services.schedules.occurrences,
        board=services.board.read(),
    )


async def _store_figures(database: Database) -> StoreFigures | None:
    try:
        with anyio.fail_after(STORE_S):
            queues = await queue_stats(database)
            heads_s = await queue_heads(database, [queue.queue for queue in queues])
            return StoreFigures(queues, heads_s, await outbox_depth(database))
    except (ServerDown, TimeoutError):
        return None


ENDPOINTS = (
    get(
        "/metrics",
        "metrics",
        get_metrics,
        "Counters, histograms and gauges for Prometheus",
        answers={200: None},
        media_type=MEDIA_TYPE,
    ),
)
