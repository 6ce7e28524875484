from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from jobd.config.model import Config
from tests.support import servers
from tests.support.daemon import Jobd
from tests.support.database_workers import DatabaseWorkers, database_workers
from tests.support.http import Api
from tests.support.node import Node, new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

#: A file system in memory, where every fsync is free. Only if there is room for all that a run keeps at a time (up to
#: 2 GB of files beside 5 GB of processes), and as much again for what else the machine does.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 14 << 30
#: Each run keeps its files in one folder there, named for its process: what a killed run left is found by that name.
#: Short, since the path of a socket has at most 107 characters.
RUN_PREFIX = "jt-"


def _has_room(folder: Path) -> bool:
    """Room on it, memory behind it, and programs may be run there."""
    if not (folder.is_mount() and os.access(folder, os.W_OK | os.X_OK)):
        return False
    info = os.statvfs(folder)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory = int(meminfo["MemAvailable"].split()[0]) << 10
    return min(info.f_bavail * info.f_frsize, memory) >= ROOM_BYTES and not info.f_flag & os.ST_NOEXEC


def _remove_folders_of_killed_runs() -> None:
    """Files in memory outlive the run that was killed; a few such runs, and the next one has no memory to run in."""
    for left in MEMORY.glob(f"{RUN_PREFIX}*"):
        process = left.name.removeprefix(RUN_PREFIX)
        if process.isdigit() and not Path("/proc", process).exists() and left.lstat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)


#: The folder that this process made for its run; None in the processes of pytest-xdist, which inherit it.
RUN_FOLDER: Path | None = None

if "TMPDIR" not in os.environ:
    _remove_folders_of_killed_runs()
    if _has_room(MEMORY):
        RUN_FOLDER = MEMORY / f"{RUN_PREFIX}{os.getpid()}"
        RUN_FOLDER.mkdir()
        RUN_FOLDER.chmod(0o1777)  # the servers run as another user
        os.environ["TMPDIR"] = tempfile.tempdir = str(RUN_FOLDER)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    if RUN_FOLDER is not None and exitstatus == 0:  # after a failure its files stay to be read, until the next run
        shutil.rmtree(RUN_FOLDER, ignore_errors=True)


# On a busy machine an example takes as long as it takes; what counts is what it finds.
hypothesis.settings.register_profile(
    "jobd", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("jobd")

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
[models.talker]
task = "chat"
"""


#: What depends on the version of Python: the event loop, signals, threads, child processes, imports, run-time typing.
#: All else shows SQL, Redis, the wire or other programs at work and runs on the oldest Python only. Single tests say so
#: by the marker.
EVERY_PYTHON = (
    "unit/",
    "client/test_async_client.py",
    "client/test_client.py",
    "client/test_client_events.py",
    "client/test_completion.py",
    "daemon/test_first_job.py",
    "dev/test_modules.py",
    "daemon/test_signals.py",
    "services/test_gateway.py",
    "services/test_listen.py",
    "tasks/test_command.py",
    "tasks/test_isolated.py",
    "tasks/test_python.py",
    "testing/test_inline.py",
)


#: Few tests of which each takes long. They come first, or one process would be at them when the others are done.
LONG = ("packaging/", "daemon/", "services/")


#: No limit that ends a test is shorter: it is for what hangs, and a busy machine may take ten times as long.
HANGS_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _place(item).startswith(EVERY_PYTHON):
            item.add_marker("every_python")
        limit = item.get_closest_marker("timeout")
        if limit and limit.args[0] < HANGS_S:
            item.add_marker(pytest.mark.timeout(HANGS_S), append=False)
    items.sort(key=lambda item: [not _place(item).startswith(folder) for folder in LONG])


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end: without this every collection of garbage walks through them."""
    gc.collect()
    gc.freeze()


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
    with servers.postgres(folder, "autovacuum=off") as url:  # else plans would depend on when it came by
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
def workers(daemon: Jobd) -> Iterator[DatabaseWorkers]:
    """Plays the part of the workers, since nobody else takes jobs here."""
    with database_workers(daemon.addresses["DATABASE_URL"]) as played:
        yield played


@pytest.fixture(autouse=True)
def no_jobd_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("JOBD_"):
            monkeypatch.delenv(name)
