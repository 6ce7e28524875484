"""jobd: a durable job daemon in one file. `from jobd import Client` talks to it, `from jobd import task` adds to it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobd.client import AsyncClient, Client
    from jobd.tasks.declared import task
    from jobd.tasks.runner import Context, TaskFailed

__all__ = ["AsyncClient", "Client", "Context", "TaskFailed", "__version__", "task"]

__version__ = "0.1.0"

#: Name -> module, imported at its first use: the daemon and most commands do without the client.
_HOMES = {
    "AsyncClient": "jobd.client",
    "Client": "jobd.client",
    "Context": "jobd.tasks.runner",
    "TaskFailed": "jobd.tasks.runner",
    "task": "jobd.tasks.declared",
}

if not TYPE_CHECKING:  # or a type checker would believe that there is anything

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'jobd' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
