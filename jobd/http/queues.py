"""`/v1/queues` and `/v1/stats`: where jobs stand by counters, and which queues are paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.query import read_query
from jobd.lifecycle.read import QueueStats, queue_stats
from jobd.lifecycle.waiting import outbox_depth, queue_heads
from jobd.wire import gateway as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.store.session import Session


async def get_queues(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(wire.Queues(await _queue_objects(call, call.services.database)))


async def get_stats(call: Call) -> Response:
    read_query(call.request, ())
    queues = await _queue_objects(call, call.services.database)
    outbox = await outbox_depth(call.services.database)
    totals = wire.Totals(
        queued=sum(one.queued for one in queues),
        running=sum(one.running for one in queues),
        done=sum(one.done for one in queues),
        error=sum(one.error for one in queues),
        canceled=sum(one.canceled for one in queues),
    )
    return json_answer(
        wire.Stats(
            degraded=call.services.supervisor.is_degraded(),
            totals=totals,
            queues=queues,
            outbox_depth=outbox.depth,
            outbox_age_s=outbox.age_s,
        )
    )


async def _queue_objects(call: Call, connection: Session) -> list[wire.QueueObject]:
    """Every queue that is configured or has ever had a job."""
    configured, drain = call.services.config().queues, call.services.drain
    stats = {one.queue: one for one in await queue_stats(connection)}
    await drain.sample()
    names = sorted({*configured, *stats})
    heads = await queue_heads(connection, names)
    return [
        _queue_object(
            stats.get(name) or _unused(name),
            slots=configured[name].slots if name in configured else None,
            head_waits_s=heads.get(name),
            drain_per_s=drain.per_s(name),
        )
        for name in names
    ]


def _queue_object(
    stats: QueueStats, *, slots: int | None, head_waits_s: float | None, drain_per_s: float | None
) -> wire.QueueObject:
    return wire.QueueObject(
        name=stats.queue,
        paused=stats.paused,
        slots=slots,
        queued=stats.queued,
        running=stats.running,
        done=stats.done,
        error=stats.error,
        canceled=stats.canceled,
        head_waits_s=head_waits_s,
        drain_per_s=drain_per_s,
    )


def _unused(queue: str) -> QueueStats:
    return QueueStats(queue=queue, paused=False, queued=0, running=0, done=0, error=0, canceled=0)


async def pause_queue(call: Call) -> Response:
    return await _set_paused(call, paused=True)


async def resume_queue(call: Call) -> Response:
    return await _set_paused(call, paused=False)


async def _set_paused(call: Call, *, paused: bool) -> Response:
    name, known = call.request.path_params["queue"], call.services.config().queues
    if name not in known:
        raise ApiError("no_such_queue", f"there is no queue {name[:64]!r}; this jobd has {', '.join(sorted(known))}")
    await call.services.engine.pause_queue(name, paused=paused)
    return json_answer(wire.PauseAnswer(name, paused))


QUEUE = Parameter("queue", wire.Name, "The name of a queue in the configuration.", "path")

ENDPOINTS = (
    get(
        "/v1/queues",
        "client",
        get_queues,
        "Every queue with its counters",
        answers={200: wire.Queues},
        problems=("invalid",),
    ),
    post(
        "/v1/queues/{queue}/pause",
        "admin",
        pause_queue,
        "Start no more jobs of a queue",
        answers={200: wire.PauseAnswer},
        problems=("no_such_queue",),
        parameters=(QUEUE,),
    ),
    post(
        "/v1/queues/{queue}/resume",
        "admin",
        resume_queue,
        "Start jobs of a queue again",
        answers={200: wire.PauseAnswer},
        problems=("no_such_queue",),
        parameters=(QUEUE,),
    ),
    get(
        "/v1/stats",
        "client",
        get_stats,
        "Totals, queues, and commits that Redis does not know yet",
        answers={200: wire.Stats},
        problems=("invalid",),
    ),
)
