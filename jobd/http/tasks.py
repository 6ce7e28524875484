"""`/v1/tasks`: which tasks there are, and which payloads they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.http.query import read_query
from jobd.wire.gateway import Name
from jobd.wire.problems import ApiError
from jobd.wire.tasks import TaskObject, Tasks

if TYPE_CHECKING:
    from starlette.responses import Response


async def get_tasks(call: Call) -> Response:
    read_query(call.request, ())
    return json_answer(Tasks([_task_object(call, name) for name in sorted(call.services.config().tasks)]))


async def get_task(call: Call) -> Response:
    read_query(call.request, ())
    name, known = call.request.path_params["name"], call.services.config().tasks
    if name not in known:
        raise ApiError("no_such_task", f"there is no task {name[:64]!r}; this jobd has {', '.join(sorted(known))}")
    return json_answer(_task_object(call, name))


def _task_object(call: Call, name: str) -> TaskObject:
    config = call.services.config()
    task, runner = config.tasks[name], call.services.runners.get(name)
    return TaskObject(
        name=name,
        run=task.run,
        queue=task.queue,
        timeout_s=task.timeout_s,
        max_attempts=task.max_attempts or config.retry.max_attempts,
        payload_schema=None if runner is None else runner.schema(),
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
    ),
    get(
        "/v1/tasks/{name}",
        "client",
        get_task,
        "One task",
        answers={200: TaskObject},
        problems=("invalid", "no_such_task"),
        parameters=(NAME,),
    ),
)
