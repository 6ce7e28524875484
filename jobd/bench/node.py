"""A node to measure: servers of its own that are thrown away, and all that carries a job, but no HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from jobd.config.model import Config, Limits, Queue
from jobd.config.model import Redis as RedisConfig
from jobd.config.model import Relay as RelayConfig
from jobd.dispatch.dispatcher import Dispatcher
from jobd.engine.engine import Engine
from jobd.host.data_dir import DataDir
from jobd.host.systemd import Notifier
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from jobd.servers.connections import StoreLink, StreamLink
from jobd.store.postgres import Database
from jobd.stream.connection import Transport
from jobd.stream.relay import Relay
from jobd.supervise.service import Phase, Spec
from jobd.supervise.supervisor import Supervisor
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POOL = 8
READY_S = 60.0


class Node(NamedTuple):
    engine: Engine
    dispatcher: Dispatcher
    database: Database
    transport: Transport


@contextlib.asynccontextmanager
async def throw_away_node() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory(prefix="jobd-bench-") as folder:
        os.chmod(folder, 0o755)  # the servers may run as another user
        data_dir = DataDir.to_start(Path(folder, "data"))
        data_dir.check()
        data_dir.open()
        try:
            async with _running(data_dir) as node:
                yield node
        finally:
            data_dir.close()
            shutil.rmtree(data_dir.run, ignore_errors=True)  # it may be elsewhere, see DataDir


@contextlib.asynccontextmanager
async def _running(data_dir: DataDir) -> AsyncIterator[Node]:
    config = Config(
        data_dir=str(data_dir.path),
        limits=Limits(max_queued=10_000_000),
        queues={"default": Queue(slots=0)},
        redis=RedisConfig(maxmemory_mb=512),
        relay=RelayConfig(stream_window=2000),
    )
    wakeup, ready = Wakeup(), anyio.Event()
    database, transport = Database(embedded_postgres.url(data_dir), POOL), Transport(embedded_valkey.url(data_dir))
    engine = Engine(database, lambda: config, wakeup.set)
    dispatcher = Dispatcher(engine, database, transport, uuid.uuid4(), lambda: config)
    relay = Relay(database, transport, wakeup, lambda: config)
    postgres = embedded_postgres.EmbeddedPostgres(data_dir, config)
    valkey = embedded_valkey.EmbeddedValkey(data_dir, config)
    supervisor = Supervisor(
        [
            Spec(name="postgres", service=postgres, phase=Phase.SERVERS),
            Spec(name="valkey", service=valkey, phase=Phase.SERVERS),
            Spec(name="store", service=StoreLink(database, POOL), phase=Phase.FLUSH, needs=("postgres",)),
            Spec(name="stream", service=StreamLink(transport), phase=Phase.FLUSH, needs=("valkey",)),
            Spec(name="relay", service=relay, phase=Phase.FLUSH, needs=("store", "stream")),
            Spec(name="engine", service=engine, phase=Phase.FLUSH),
            Spec(name="dispatcher", service=dispatcher, phase=Phase.INTAKE, needs=("store", "relay")),
        ],
        notifier=Notifier({}),
        drain_s=lambda: 30.0,
        on_ready=ready.set,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(READY_S):
            await ready.wait()
        yield Node(engine, dispatcher, database, transport)
        supervisor.stop()
