"""The fixtures for pytest, found by their entry point. Where no test uses them, nothing else of jobd is imported.

jobd_context    the context of a job that is only played, see `FakeContext`
jobd_server     a jobd for all tests of the session, with the tasks of the project's jobd.toml
jobd_start      starts more of them, for one test each
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from jobd.testing.context import FakeContext
    from jobd.testing.server import JobdServer

#: Fixtures that need a whole jobd.
SERVERS = ("jobd_server", "jobd_start")
#: Characters at the end of a log that are shown with a test that failed.
LOG_CHARS = 4000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "jobd_config", "configuration of jobd_server, from the root directory (default: jobd.toml, if it is there)"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the imports of a jobd that will be needed go on beside the first tests."""
    if not session.config.option.collectonly and any(
        name in getattr(item, "fixturenames", ()) for item in session.items for name in SERVERS
    ):
        from jobd.testing.server import shared_forkserver

        shared_forkserver()


@pytest.fixture
def jobd_context() -> FakeContext:
    """The context of a job: give it to a handler, then look what it emitted."""
    from jobd.testing.context import FakeContext

    return FakeContext()


@pytest.fixture(scope="session")
def jobd_server(pytestconfig: pytest.Config) -> Iterator[JobdServer]:
    """A whole jobd, started once for the session: `url`, `client`, `run(task, payload)`."""
    from jobd.testing.server import start_server

    with start_server(_config_file(pytestconfig), root=pytestconfig.rootpath) as server:
        yield server


@pytest.fixture
def jobd_start(pytestconfig: pytest.Config) -> Iterator[Callable[..., JobdServer]]:
    """Starts a jobd for one test, with the arguments of `start_server`; all are stopped at its end."""
    from jobd.testing.server import start_server

    started: list[JobdServer] = []

    def start(config: Path | str | None = None, **options: object) -> JobdServer:
        options.setdefault("root", pytestconfig.rootpath)
        started.append(start_server(config or _config_file(pytestconfig), **options))  # type: ignore[arg-type]  # passed on
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the log of its jobd with a test that failed."""
    report = yield
    server = getattr(item, "funcargs", {}).get("jobd_server")
    if report.failed and server is not None:
        report.sections.append(("jobd log", server.log()[-LOG_CHARS:]))
    return report


def _config_file(pytestconfig: pytest.Config) -> Path | None:
    named = pytestconfig.getini("jobd_config")
    file = pytestconfig.rootpath / (named or "jobd.toml")
    return file if named or file.exists() else None
