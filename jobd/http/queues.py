"""`/v1/queues` and `/v1/stats`: where jobs stand by counters, and which queues are paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.query import read_query
from jobd.lifecycle.pause import pauses
from jobd.lifecycle.read import QueueStats, queue_stats
from jobd.lifecycle.waiting import outbox_depth, queue_heads
from jobd.wire import gateway as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.host.space import FreeSpace
    from jobd.store.session import Session


async def get_queues(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(wire.Queues(await _queue_objects(call, call.services.database)))


async def get_stats(call: Call) -> Response:
    read_query(call.request, ())
    queues = await _queue_objects(call, call.services.database)
    outbox = await outbox_depth(call.services.database)
    space = await call.services.space.read()
    paused = [pause for pause in await pauses(call.services.database) if pause.paused]
    totals = wire.Totals(
        queued=sum(queue.queued for queue in queues),
        running=sum(queue.running for queue in queues),
        done=sum(queue.done for queue in queues),
        error=sum(queue.error for queue in queues),
        canceled=sum(queue.canceled for queue in queues),
    )
    return json_answer(
        wire.Stats(
            degraded=call.services.supervisor.is_degraded(),
            totals=totals,
            queues=queues,
            outbox_depth=outbox.depth,
            outbox_age_s=outbox.age_s,
            disk=_disk_room(space.disk, call.services.config().limits.min_free_mb),
            memory=_memory_room(space.memory),
            paused=any(pause.kind == "all" for pause in paused),
            paused_tasks=[pause.name for pause in paused if pause.kind == "task"],
        )
    )


def _disk_room(space: FreeSpace | None, floor_mb: int) -> wire.DiskRoom | None:
    if space is None:
        return None
    return wire.DiskRoom(free_bytes=space.free, total_bytes=space.total, min_free_bytes=floor_mb << 20)


def _memory_room(space: FreeSpace | None) -> wire.MemoryRoom | None:
    return None if space is None else wire.MemoryRoom(available_bytes=space.free, total_bytes=space.total)


async def _queue_objects(call: Call, connection: Session) -> list[wire.QueueObject]:
    """Every queue that is configured or has ever had a job."""
    configured, drain = call.services.config().queues, call.services.drain
    stats = {queue.queue: queue for queue in await queue_stats(connection)}
    drain.add_if_old(list(stats.values()))
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


async def pause_all(call: Call) -> Response:
    await call.services.engine.pause_all(paused=True)
    return json_answer(wire.PauseAllAnswer(True))


async def resume_all(call: Call) -> Response:
    await call.services.engine.pause_all(paused=False)
    return json_answer(wire.PauseAllAnswer(False))


async def _set_paused(call: Call, *, paused: bool) -> Response:
    name = queue_in(call)
    await call.services.engine.pause_queue(name, paused=paused)
    return json_answer(wire.PauseAnswer(name, paused))


def queue_in(call: Call) -> str:
    name, known = str(call.request.path_params["queue"]), call.services.config().queues
    if name not in known:
        raise ApiError("no_such_queue", f"there is no queue {name[:64]!r}; this jobd has {', '.join(sorted(known))}")
    return name


QUEUE = Parameter("queue", wire.Name, "The name of a queue in the configuration.", "path")

ENDPOINTS = (
    get(
        "/v1/queues",
        "client",
        get_queues,
        "Every queue with its counters",
        answers={200: wire.Queues},
        problems=("invalid",),
        own_jobs=True,
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
    post("/v1/pause", "admin", pause_all, "Start no more jobs at all, on no node", answers={200: wire.PauseAllAnswer}),
    post("/v1/resume", "admin", resume_all, "Start jobs again", answers={200: wire.PauseAllAnswer}),
    get(
        "/v1/stats",
        "client",
        get_stats,
        "Totals, queues, commits that Redis does not know yet, and room on the disk and in memory",
        answers={200: wire.Stats},
        problems=("invalid",),
        own_jobs=True,
    ),
)
