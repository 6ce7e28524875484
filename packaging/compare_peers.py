"""The peers' part of compare.py: pgqueuer and BullMQ, on the Postgres and the Valkey of a jobd that is idle."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import asyncpg
import compare_probe as probe
import redis
from compare_jobd import ROOM

from jobd.bench.http import jobd_server
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.servers import postgres as embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
PGQUEUER = "1.6.0"
BULLMQ = "6.7.0"
#: The Redis client that BullMQ is used with.
IOREDIS = "5.9.2"
#: The database of pgqueuer beside that of jobd.
DATABASE = "pgqueuer"
#: Seconds that a worker may take to stop.
STOP_S = 30.0


class Peer(NamedTuple):
    name: str
    version: str
    #: Its program, which takes the commands that are listed in compare_pgqueuer.py.
    program: list[str]


def install(folder: Path) -> list[Peer]:
    """The peers in `folder`; BullMQ only where there is node."""
    peers = [pgqueuer_in(folder / "pgqueuer")]
    if shutil.which("npm") and shutil.which("node"):
        peers.append(bullmq_in(folder / "bullmq"))
    else:
        print("BullMQ is left out: there is no node or npm here (Debian: apt install nodejs npm)", file=sys.stderr)
    return peers


def pgqueuer_in(folder: Path) -> Peer:
    """With the Python and the versions of asyncpg and uvloop that jobd has here."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    wanted = [f"pgqueuer=={PGQUEUER}", *(f"{name}=={version(name)}" for name in ("asyncpg", "uvloop"))]
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
    return Peer("pgqueuer", PGQUEUER, [python, str(HERE / "compare_pgqueuer.py")])


def bullmq_in(folder: Path) -> Peer:
    folder.mkdir()
    program = str(shutil.copy(HERE / "compare_bullmq.mjs", folder))  # node looks for packages beside the program
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    run(["npm", "install", "--silent", *options, f"bullmq@{BULLMQ}", f"ioredis@{IOREDIS}"])
    return Peer("BullMQ", BULLMQ, ["node", program])


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed (exit code {done.returncode}): {done.stderr.strip()[-2000:]}")
    return done.stdout


async def measure(
    peers: list[Peer], jobs: int, singles: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    with jobd_server(ROOM) as served:
        data_dir, owner = DataDir(served.data_dir, server_account()), embedded_postgres.OWNER
        connection = await asyncpg.connect(embedded_postgres.url(data_dir, owner, "postgres"))
        await connection.execute(f"CREATE DATABASE {DATABASE}")
        await connection.close()
        addresses: dict[str, str] = json.loads((served.data_dir / "env.json").read_text())
        variables = {
            "DATABASE_URL": embedded_postgres.url(data_dir, owner, DATABASE),
            "REDIS_URL": addresses["REDIS_URL"],
        }
        return {peer.name: await PeerRun(peer, variables, say).measure(jobs, singles) for peer in peers}


class PeerRun:
    """One round of one peer."""

    def __init__(self, peer: Peer, variables: dict[str, str], say: Callable[[str], None]) -> None:
        self._peer = peer
        self._variables = variables
        self._say = say

    async def measure(self, jobs: int, singles: int) -> dict[str, float]:
        self._say(f"{self._peer.name}, submits")
        figures: dict[str, float] = self._call("submits", jobs)
        with self._worker():  # the warm-up
            await self._until_empty()
        self._say(f"{self._peer.name}, drain")
        self._call("fill", jobs)
        await anyio.sleep(1)  # as before the drain of jobd
        probe.clear()
        with self._worker():
            probe.wait_for(jobs)
            await self._until_empty()
            ended = time.monotonic_ns()
            figures["drain"] = jobs / (ended - probe.first_start(jobs)) * 1e9
            self._say(f"{self._peer.name}, single jobs")
            probe.clear()
            figures["start_ms"] = self._call("singles", singles)
        probe.first_start(singles)
        return figures

    def _call(self, command: str, jobs: int) -> Any:
        return json.loads(run([*self._peer.program, command, str(jobs)], self._variables))

    @contextlib.contextmanager
    def _worker(self) -> Iterator[None]:
        environment = {**os.environ, **self._variables}
        with subprocess.Popen([*self._peer.program, "work"], env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    async def _until_empty(self) -> None:
        """Until the table or the lists of the peer hold no job that waits or runs."""
        connection = await asyncpg.connect(self._variables["DATABASE_URL"])
        valkey = redis.Redis.from_url(self._variables["REDIS_URL"])
        until = time.monotonic() + probe.PATIENCE_S
        while await self._left(connection, valkey):
            if time.monotonic() > until:
                raise TimeoutError(f"the queue of {self._peer.name} is not empty after {probe.PATIENCE_S:.0f} s")
            await anyio.sleep(probe.POLL_S)
        await connection.close()
        valkey.close()

    async def _left(self, connection: asyncpg.Connection[asyncpg.Record], valkey: redis.Redis) -> int:
        if self._peer.name == "pgqueuer":
            return int(await connection.fetchval("SELECT count(*) FROM pgqueuer"))
        return valkey.llen("bull:noop:wait") + valkey.llen("bull:noop:active")
