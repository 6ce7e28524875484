"""For tests of tasks: a handler run inline, or a whole jobd with its servers in a folder of its own.

context       the context of a job that is only played: it records what a handler emits
inline        runs a handler as a slot would, without any server
template      data directories with the schema in them, made once for a machine and copied
settings      the configuration of a project, made fit for tests
requests      what the process of a test and the fork server say to each other
forkserver    the process that has imported jobd once and forks a daemon for each start
server        a jobd that a test starts, calls and stops
plugin        the fixtures for pytest, found by their entry point
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobd.testing.context import FakeContext, RecordedEvent
    from jobd.testing.inline import HandlerRun, run_handler, run_handler_async
    from jobd.testing.server import JobdServer, start_server

__all__ = [
    "FakeContext",
    "HandlerRun",
    "JobdServer",
    "RecordedEvent",
    "run_handler",
    "run_handler_async",
    "start_server",
]

#: Name -> module, imported at its first use: every pytest that finds the plugin imports this package.
_HOMES = {
    "FakeContext": "jobd.testing.context",
    "HandlerRun": "jobd.testing.inline",
    "JobdServer": "jobd.testing.server",
    "RecordedEvent": "jobd.testing.context",
    "run_handler": "jobd.testing.inline",
    "run_handler_async": "jobd.testing.inline",
    "start_server": "jobd.testing.server",
}

if not TYPE_CHECKING:  # or a type checker would believe that there is anything

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'jobd.testing' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
