"""Which task answers a model: `[models.NAME]` of the configuration, and tasks with `run = "openai"` that name one.

A table may name a task of any kind, or a server, for which a task is added to the configuration (`with_model_tasks`).
Nothing here asks a server, so the list is the same while one is down.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.config.model import Task
from jobd.errors import ConfigError
from jobd.openai.errors import InvalidCall, OpenAIError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.config.model import Config

#: Names of models that an error lists; more are counted.
MAX_SHOWN = 20
#: Characters of an unknown name that an error shows.
MAX_NAME_CHARS = 200
#: Names of tasks that are added for models begin with it.
TASK_PREFIX = "model."
#: Longest name of such a task in characters, as of any.
MAX_TASK_CHARS = 64


class Model(NamedTuple):
    #: As clients name it.
    id: str
    #: Task of its jobs.
    task: str
    #: The name that the server knows; empty: the server's own choice.
    server_model: str
    aliases: tuple[str, ...] = ()
    #: Fields that are set when the client does not send them.
    defaults: Mapping[str, Any] = {}
    #: None: that of the task.
    queue: str | None = None
    priority: int = 0


class ModelNotFound(OpenAIError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        shown = name[:MAX_NAME_CHARS]
        super().__init__(
            404, f"there is no model {shown}; this jobd has {_listed(known)}", code="model_not_found", param="model"
        )


def models_of(config: Config) -> dict[str, Model]:
    """Every model by its id, in the order of the configuration."""
    found = {}
    for name, table in config.models.items():
        task = table.task or task_name(name)
        of_task = config.tasks[task].model if table.task and task in config.tasks else ""
        found[name] = Model(
            id=name,
            task=task,
            server_model=table.model or of_task or name,
            aliases=table.aliases,
            defaults=table.defaults,
            queue=table.queue or None,
            priority=table.priority,
        )
    made = {task_name(name) for name, table in config.models.items() if table.base_url}
    for name, each in config.tasks.items():
        if each.run == "openai" and each.model and name not in made:
            found.setdefault(each.model, Model(id=each.model, task=name, server_model=each.model))
    return found


def find_model(config: Config, name: str | None) -> Model:
    """The model of that name or alias; None: the only one there is. Raises ModelNotFound or InvalidCall."""
    models = models_of(config)
    if name is None:
        if len(models) == 1:
            return next(iter(models.values()))
        raise InvalidCall("model", f"model is missing; name one of {_listed(list(models))}")
    if name in models:
        return models[name]
    for model in models.values():
        if name in model.aliases:
            return model
    raise ModelNotFound(name, list(models))


def with_model_tasks(config: Config) -> Config:
    """The configuration with a task for each model that names a server; raises ConfigError if a name is taken."""
    tasks = dict(config.tasks)
    for name, table in config.models.items():
        if table.base_url:
            task = task_name(name)
            if task in tasks:
                raise ConfigError(f"models.{name}: its task {task} is there already; rename the model or that task")
            tasks[task] = Task(
                run="openai",
                queue=table.queue or "default",
                base_url=table.base_url,
                model=table.model or name,
                api_key_env=table.api_key_env,
            )
    return config if len(tasks) == len(config.tasks) else msgspec.structs.replace(config, tasks=tasks)


def task_name(model: str) -> str:
    """The name of the task that is added for a model: `model.` and what a task's name can hold of the model's."""
    return (TASK_PREFIX + re.sub(r"[^a-z0-9_.-]", "-", model.lower()))[:MAX_TASK_CHARS]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "none: add a table [models.NAME] to its configuration"
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
