"""Which runner each task has, made before anything starts: a wrong handler is a refused start, not a failed job.

    python      tasks/python.py     (isolate: tasks/isolated/)
    command     tasks/command/
    openai      tasks/openai/
    mock        tasks/mock.py
    external    none: only HTTP and raw Redis workers run it

Tasks that functions declare with `@task` in the modules of `tasks_from` are added to the configuration first, so that
they are submitted and run like any other. A table `[tasks.NAME]` in the configuration wins over a declaration; a
built-in mock does not.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.config.model import BUILTIN_TASKS, Config, Task, broken_rules
from jobd.errors import ConfigError
from jobd.openai.models import with_model_tasks
from jobd.tasks.command.workdir import ATTEMPTS, clear_leftovers
from jobd.tasks.declared import DECLARED
from jobd.tasks.mock import MockRunner
from jobd.tasks.python import import_module, python_runner
from jobd.tasks.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.tasks.declared import Declared
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)


def with_declared_tasks(config: Config) -> Config:
    """The configuration with the tasks that its models need and that the modules of `tasks_from` declare."""
    config = with_model_tasks(config)
    if not config.tasks_from:
        return config
    for module in config.tasks_from:
        import_module(module, "tasks_from")
    by_name: dict[str, Declared] = {}
    for declared in _declared_in(config.tasks_from):
        first = by_name.setdefault(declared.name, declared)
        if first.task.handler != declared.task.handler:
            raise ConfigError(
                f"tasks_from: {first.task.handler} and {declared.task.handler} both declare task {declared.name};"
                " rename one of them"
            )
    wanted = {name: declared.task for name, declared in by_name.items() if not _is_configured(config, name)}
    merged = msgspec.structs.replace(config, tasks={**config.tasks, **wanted})
    try:
        merged = msgspec.convert(msgspec.to_builtins(merged), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"tasks_from: a task declares what cannot be: {error}") from None
    for rule in broken_rules(msgspec.structs.replace(merged, tasks_from=())):  # all of their tasks are known now
        raise ConfigError(f"tasks_from: {rule.message}")
    return merged


def _declared_in(modules: tuple[str, ...]) -> Iterator[Declared]:
    """Also those that such a module imports from its own package."""
    for declared in DECLARED:
        if any(declared.module == module or declared.module.startswith(f"{module}.") for module in modules):
            yield declared


def _is_configured(config: Config, name: str) -> bool:
    there = config.tasks.get(name)
    return there is not None and not (name in BUILTIN_TASKS and there == Task(run="mock"))


def make_runners(config: Config, *, is_start: bool = True) -> dict[str, Runner]:
    """The runner of every task that slots of this process may meet; raises ConfigError for one that cannot be made.

    Not `is_start`: jobs of this process run already, with other runners.
    """
    # Of a killed jobd with another configuration, too: this one may run no commands any more, or have no slots.
    if is_start and (ended := clear_leftovers(Path(config.data_dir) / ATTEMPTS)):
        log.warning("ended %d processes that a killed jobd had left running", ended)
    if not any(queue.slots for queue in config.queues.values()):
        return {}
    watchdog = Watchdog()
    return {
        name: _runner(name, task, config, watchdog) for name, task in config.tasks.items() if task.run != "external"
    }


def _runner(name: str, task: Task, config: Config, watchdog: Watchdog) -> Runner:
    if task.run == "mock":
        return MockRunner()
    if task.run == "python" and not task.isolate:
        return python_runner(name, task.handler)
    # Imported only where it is configured: most installations need few of them.
    if task.run == "python":
        from jobd.tasks.isolated.runner import IsolatedRunner

        return IsolatedRunner(name, task, Path(config.data_dir), watchdog, clear=False)
    if task.run == "command":
        from jobd.tasks.command.runner import CommandRunner

        return CommandRunner(task, Path(config.data_dir), watchdog)
    from jobd.tasks.openai.runner import OpenAIRunner

    return OpenAIRunner(task)
