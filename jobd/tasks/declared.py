"""`@task`: a function says itself which task it runs, and `tasks_from` in the configuration names its module.

from jobd import Context, task

@task(timeout_s=60)
def resize(payload: dict, ctx: Context) -> dict: ...
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from jobd.config.model import NAME_PATTERN, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])


class Declared(NamedTuple):
    name: str
    #: Module that declares it.
    module: str
    task: Task


#: All declared tasks, in the order of import.
DECLARED: list[Declared] = []


@overload
def task(function: F, /) -> F: ...
@overload
def task(
    *,
    name: str | None = None,
    queue: str = "default",
    timeout_s: float | None = None,
    max_attempts: int | None = None,
    max_interruptions: int | None = None,
    retry_base_s: float | None = None,
    retry_cap_s: float | None = None,
    lease_ttl_s: int | None = None,
    isolate: bool = False,
    recycle_jobs: int = 0,
    memory_mb: int = 0,
    needs_memory_mb: int = 0,
) -> Callable[[F], F]: ...


def task(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    timeout_s: float | None = None,
    max_attempts: int | None = None,
    max_interruptions: int | None = None,
    retry_base_s: float | None = None,
    retry_cap_s: float | None = None,
    lease_ttl_s: int | None = None,
    isolate: bool = False,
    recycle_jobs: int = 0,
    memory_mb: int = 0,
    needs_memory_mb: int = 0,
) -> Any:
    """Make a function of a module a task, named like it unless `name` says otherwise.

    The settings are those of a table [tasks.NAME]. An isolated one runs in a process of its own; but the module that
    declares it is imported in jobd too, so heavy imports belong into the function then.
    """

    def declare(function: F) -> F:
        settings = Task(
            run="python",
            handler=f"{function.__module__}:{function.__name__}",
            queue=queue,
            timeout_s=Task(run="mock").timeout_s if timeout_s is None else timeout_s,
            max_attempts=max_attempts,
            max_interruptions=max_interruptions,
            retry_base_s=retry_base_s,
            retry_cap_s=retry_cap_s,
            lease_ttl_s=lease_ttl_s,
            isolate=isolate,
            recycle_jobs=recycle_jobs,
            memory_mb=memory_mb,
            needs_memory_mb=needs_memory_mb,
        )
        DECLARED.append(_declared(function, name, settings))
        return function

    return declare if function is None else declare(function)


def _declared(function: Callable[..., Any], name: str | None, settings: Task) -> Declared:
    name = function.__name__ if name is None else name
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"@task: a task's name is 1 to 64 of a-z 0-9 _ . - (got {name!r}); give one with name=")
    if "." in function.__qualname__:
        raise ValueError(f"@task: {function.__qualname__} must stand in its module, not in a class or function")
    return Declared(name, function.__module__, settings)
