from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobd.config import Config
from tests.support import servers
from tests.support.daemon import Jobd
from tests.support.http import Api
from tests.support.node import Node, new_database
from tests.support.stage import Stage, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

#: No slots: nothing takes a job away from the test that sent it. Who claims by queue uses `told` and leaves it empty.
#: Nobody works on tickets either, so they stay where they are put.
NOBODY_WORKS = """
[queues.default]
slots = 0
[queues.fast]
slots = 0
[queues.told]
slots = 0
[tickets]
enabled = false
"""


#: What these show does not depend on the version of Python.
ONCE = (
    "lifecycle/",
    "tickets/",
    "packaging/",
    "services/test_degraded.py",
    "services/test_dispatcher",
    "services/test_redis_chaos.py",
    "services/test_relay.py",
    "contract/test_redis_keys.py",
    "contract/test_ticket_protocol.py",
    "api/test_bad_",
    "api/test_dead_letters.py",
    "api/test_fuzz.py",
    "api/test_guard.py",
    "api/test_idempotency.py",
    "api/test_jobs_list.py",
    "api/test_load_refused.py",
    "api/test_openapi.py",
    "api/test_queues.py",
    "api/test_results.py",
    "api/test_scopes.py",
    "api/test_secrets.py",
    "api/test_tasks.py",
    "api/test_tickets.py",
    "api/test_tokens.py",
    "api/test_wait.py",
    "api/test_worker_",
    "daemon/test_backup.py",
    "daemon/test_bench.py",
    "daemon/test_event_cuts.py",
    "daemon/test_kill.py",
    "daemon/test_many_streams.py",
    "daemon/test_ticket_chaos.py",
    "daemon/test_upgrade.py",
)


#: Few tests of which each takes long. They come first, or one process would be at them when the other has nothing left.
LONG = ("packaging/", "daemon/", "services/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _place(item).startswith(ONCE):
            item.add_marker("once")
    items.sort(key=lambda item: [not _place(item).startswith(folder) for folder in LONG])


def _place(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What `jobd serve` runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[str]:
    """The URL of a Postgres that tests may add databases to."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    with servers.postgres(folder) as url:
        yield url
    shutil.rmtree(folder)


@pytest.fixture
async def node(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A running node with a database and a Valkey of its own."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config()).running() as node:
            yield node


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path that every user can enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="jt-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def jobd(folder: Path) -> Iterator[Callable[..., Jobd]]:
    """Makes `jobd serve` processes, and ends whatever is left of them."""
    made: list[Jobd] = []

    def make(data_dir: Path | None = None, *arguments: str, **variables: str) -> Jobd:
        daemon = Jobd(data_dir or folder / "data", *arguments, **variables)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.clean_up()


@pytest.fixture(scope="session")
def daemon() -> Iterator[Jobd]:
    """One `jobd serve` for all tests that only talk to it."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(NOBODY_WORKS)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml")).start().until_ready()
    yield daemon
    daemon.clean_up()
    shutil.rmtree(folder)


@pytest.fixture
def api(daemon: Jobd) -> Api:
    return Api(daemon.address)


@pytest.fixture(scope="session")
def workers(daemon: Jobd) -> Iterator[Stage]:
    """Plays the part of the workers, since nobody else takes jobs here."""
    with stage(daemon.addresses["DATABASE_URL"]) as played:
        yield played


@pytest.fixture(autouse=True)
def no_jobd_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("JOBD_"):
            monkeypatch.delenv(name)
