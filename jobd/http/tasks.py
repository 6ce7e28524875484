"""`/v1/tasks`: which tasks there are, which payloads they take, and which are paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.query import read_query
from jobd.lifecycle.pause import pauses
from jobd.wire.gateway import Name, PauseAnswer
from jobd.wire.problems import ApiError
from jobd.wire.tasks import TaskObject, Tasks

if TYPE_CHECKING:
    from starlette.responses import Response


async def get_tasks(call: Call) -> Response:
    read_query(call.request, ())
    paused = await _paused_tasks(call)
    return json_answer(Tasks([_task_object(call, name, paused) for name in sorted(call.services.config().tasks)]))


async def get_task(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(_task_object(call, _name_in(call), await _paused_tasks(call)))


async def pause_task(call: Call) -> Response:
    return await _set_paused(call, paused=True)


async def resume_task(call: Call) -> Response:
    return await _set_paused(call, paused=False)


async def _set_paused(call: Call, *, paused: bool) -> Response:
    name = _name_in(call)
    await call.services.engine.pause_task(name, paused=paused)
    return json_answer(PauseAnswer(name, paused))


def _name_in(call: Call) -> str:
    name, known = str(call.request.path_params["name"]), call.services.config().tasks
    if name not in known:
        raise ApiError("no_such_task", f"there is no task {name[:64]!r}; this jobd has {', '.join(sorted(known))}")
    return name


async def _paused_tasks(call: Call) -> set[str]:
    return {pause.name for pause in await pauses(call.services.database) if pause.kind == "task" and pause.paused}


def _task_object(call: Call, name: str, paused: set[str]) -> TaskObject:
    config = call.services.config()
    task, runner = config.tasks[name], call.services.runners.get(name)
    return TaskObject(
        name=name,
        run=task.run,
        queue=task.queue,
        timeout_s=task.timeout_s,
        max_attempts=task.max_attempts or config.retry.max_attempts,
        payload_schema=None if runner is None else runner.schema(),
        paused=name in paused,
    )


NAME = Parameter("name", Name, "The name of a task in the configuration.", "path")

ENDPOINTS = (
    get(
        "/v1/tasks",
        "client",
        get_tasks,
        "Every task with the schema of its payload",
        answers={200: Tasks},
        problems=("invalid",),
        own_jobs=True,
    ),
    get(
        "/v1/tasks/{name}",
        "client",
        get_task,
        "One task",
        answers={200: TaskObject},
        problems=("invalid", "no_such_task"),
        parameters=(NAME,),
        own_jobs=True,
    ),
    post(
        "/v1/tasks/{name}/pause",
        "admin",
        pause_task,
        "Start no more jobs of a task",
        answers={200: PauseAnswer},
        problems=("no_such_task",),
        parameters=(NAME,),
    ),
    post(
        "/v1/tasks/{name}/resume",
        "admin",
        resume_task,
        "Start jobs of a task again",
        answers={200: PauseAnswer},
        problems=("no_such_task",),
        parameters=(NAME,),
    ),
)
