"""`@task`: a function says itself which task it runs, and `tasks_from` in the configuration names its module.

from jobd import Context, task

@task(timeout_s=60)
def resize(payload: dict, ctx: Context) -> dict: ...
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from jobd.config import NAME_PATTERN, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])


class Declared(NamedTuple):
    name: str
    #: The module that it stands in.
    module: str
    task: Task


#: In the order of import.
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
) -> Callable[[F], F]: ...


def task(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    timeout_s: float | None = None,
    max_attempts: int | None = None,
) -> Any:
    """Make a function of a module a task, named like it unless `name` says otherwise."""

    def declare(function: F) -> F:
        DECLARED.append(_declared(function, name, queue, timeout_s, max_attempts))
        return function

    return declare if function is None else declare(function)


def _declared(
    function: Callable[..., Any], name: str | None, queue: str, timeout_s: float | None, max_attempts: int | None
) -> Declared:
    name = function.__name__ if name is None else name
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"@task: a task's name is 1 to 64 of a-z 0-9 _ . - (got {name!r}); give one with name=")
    if "." in function.__qualname__:
        raise ValueError(f"@task: {function.__qualname__} must stand in its module, not in a class or function")
    made = Task(
        run="python",
        handler=f"{function.__module__}:{function.__name__}",
        queue=queue,
        timeout_s=Task(run="mock").timeout_s if timeout_s is None else timeout_s,
        max_attempts=max_attempts,
    )
    return Declared(name, function.__module__, made)
