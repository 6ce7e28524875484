"""A node to measure: servers of its own that are thrown away, and all that carries a job, but no HTTP."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from jobd.bench.server import temporary_data_dir
from jobd.config.model import Config, Limits, Queue, RelayConfig
from jobd.config.model import Redis as RedisConfig
from jobd.serve.tree import Node, addresses, embedded_servers, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobd.host.data_dir import DataDir

#: The services that carry a job of the benchmark. Without the others, which poll, figures stay comparable.
MEASURED = {"store", "stream", "relay", "engine", "dispatcher"}
#: How long the services may take to stop after a measurement.
DRAIN_S = 30.0


@contextlib.asynccontextmanager
async def throw_away_node() -> AsyncIterator[Node]:
    with temporary_data_dir() as data_dir:
        data_dir.open()
        try:
            async with _running(data_dir) as node:
                yield node
        finally:
            data_dir.close()


@contextlib.asynccontextmanager
async def _running(data_dir: DataDir) -> AsyncIterator[Node]:
    config = Config(
        data_dir=str(data_dir.path),
        limits=Limits(max_queued=10_000_000),
        queues={"default": Queue(slots=0)},
        redis=RedisConfig(maxmemory_mb=512),
        relay=RelayConfig(stream_window=2000),
    )
    node = Node(addresses(data_dir, config, jobd_url=""), lambda: config, data_dir.path, incarnation=uuid.uuid4())
    servers = embedded_servers(data_dir, config)
    services = node.job_services({server.name for server in servers})
    async with running([*servers, *(spec for spec in services if spec.name in MEASURED)], drain_s=DRAIN_S):
        yield node
