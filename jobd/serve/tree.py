"""The parts of a node, wired to each other, and the services among them in the order in which they start.

    embedded_servers   Postgres and Valkey, unless the configuration names others
    Node               everything that carries jobs and tickets: for `jobd serve`, the benchmark and tests
    http_services      HTTP above a node, for `jobd serve`

Building opens no connection and starts nothing; only a service that runs does. A drain stops services by phase and,
within a phase, from the last of the list to the first.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import anyio

from jobd.auth.doorkeeper import Doorkeeper
from jobd.auth.watch import TokenWatch
from jobd.dispatch.dispatcher import Dispatcher
from jobd.dispatch.slots import Slots
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.follow.jobs import Tailer
from jobd.follow.tickets import TicketTailer
from jobd.host.data_dir import Addresses
from jobd.host.systemd import Notifier
from jobd.http.app import ENDPOINTS, build_app
from jobd.http.drain_rates import DrainRates
from jobd.http.gateway import Gateway
from jobd.http.heartbeat_limit import HeartbeatLimit
from jobd.http.listen import connections_that_fit, is_loopback
from jobd.http.request_checks import Guard
from jobd.http.services import Services
from jobd.leases.jobs import JobLeases
from jobd.leases.watchdog import LeaseWatchdog, PostgresLine
from jobd.maintenance.janitor import Janitor
from jobd.maintenance.reaper import Reaper
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from jobd.servers.connections import StoreLink, StreamLink
from jobd.store.leader import Names
from jobd.store.postgres import Database
from jobd.stream.connection import Transport
from jobd.stream.idempotency_keys import KeyMirror
from jobd.stream.raw_workers import RawWorkers
from jobd.stream.relay import Relay
from jobd.supervise.service import Phase, Spec
from jobd.supervise.supervisor import Supervisor
from jobd.supervise.wakeup import Wakeup
from jobd.tickets.pollers.claims import OwnerNames
from jobd.tickets.pollers.gate import GatePoller
from jobd.tickets.pollers.readiness import ReadinessPoller
from jobd.tickets.pollers.runner import RunnerPoller
from jobd.tickets.pollers.scheduler import SchedulerPoller
from jobd.tickets.service import TicketService
from jobd.tickets.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from socket import socket
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.host.data_dir import DataDir
    from jobd.http.disk import Disk
    from jobd.http.listen import TlsFiles
    from jobd.maintenance.incarnations import Owners
    from jobd.store.migrate import BeforeMigration
    from jobd.supervise.restart import RestartPolicy
    from jobd.tasks.runner import Runner

#: How long the services of a benchmark or test may take until all of them are ready; `initdb` is most of it.
READY_S = 60.0


def addresses(data_dir: DataDir, config: Config, jobd_url: str) -> Addresses:
    return Addresses(
        JOBD_URL=jobd_url,
        DATABASE_URL=config.postgres.url or embedded_postgres.url(data_dir),
        REDIS_URL=config.redis.url or embedded_valkey.url(data_dir),
    )


def embedded_servers(data_dir: DataDir, config: Config) -> list[Spec]:
    services = []
    if not config.postgres.url:
        postgres = embedded_postgres.EmbeddedPostgres(data_dir, config)
        services.append(Spec(name="postgres", service=postgres, phase=Phase.SERVERS))
    if not config.redis.url:
        valkey = embedded_valkey.EmbeddedValkey(data_dir, config)
        services.append(Spec(name="valkey", service=valkey, phase=Phase.SERVERS, needed=False))
    return services


class Node:
    def __init__(
        self,
        where: Addresses,
        config: Callable[[], Config],
        data_dir: Path,
        *,
        incarnation: UUID,
        owners: Owners | None = None,
        runners: Mapping[str, Runner] | None = None,
        is_disk_low: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self.data_dir = data_dir
        self.runners = runners or {}
        self.names = Names(f"node:{incarnation}") if owners is None else owners.names()
        self.wakeup, self.ticket_wakeups = Wakeup(), Wakeups()
        self.database = Database(where.DATABASE_URL, config().postgres.pool_size)
        self.transport = Transport(where.REDIS_URL)
        self.results = Results(data_dir, config)
        self.engine = Engine(
            self.database,
            config,
            self._committed,
            on_cancel_requested=self._cancel_requested,
            is_disk_low=is_disk_low,
        )
        self.leases = JobLeases(self.engine, config)
        self.dispatcher = Dispatcher(self.engine, self.database, self.transport, incarnation, config)
        self.relay = Relay(self.database, self.transport, self.wakeup, config, self.names)
        self.raw_workers = RawWorkers(self.engine, self.database, self.transport, config, self.results, self.names)
        self.reaper = Reaper(self.database, config, self._committed, owners)
        self.tailer = Tailer(self.database, self.transport)
        self.tickets = TicketService(self.database, config, self.ticket_wakeups)
        self.ticket_tailer = TicketTailer(self.tickets, self.ticket_wakeups)

    def _committed(self) -> None:
        """A commit has left rows in the outbox, or moved a job that a ticket waits for."""
        self.wakeup.set()
        self.ticket_wakeups.job_committed()

    def _cancel_requested(self, job_id: UUID) -> None:
        """The holder of the job may be in this very process."""
        self.leases.cancel(job_id)

    def job_services(
        self, embedded: Collection[str] = (), before_migration: BeforeMigration | None = None
    ) -> list[Spec]:
        """What carries jobs, on the embedded servers of these names."""
        return [*self._links(embedded, before_migration), *self._redis_side(), *self._workers(), *self._upkeep()]

    def _links(self, embedded: Collection[str], before_migration: BeforeMigration | None) -> list[Spec]:
        store = StoreLink(self.database, self._config().postgres.pool_size, before_migration)
        stream = StreamLink(self.transport)
        on_postgres = tuple(name for name in embedded if name == "postgres")
        on_valkey = tuple(name for name in embedded if name == "valkey")
        return [
            Spec(name="store", service=store, phase=Phase.FLUSH, needs=on_postgres),
            Spec(name="stream", service=stream, phase=Phase.FLUSH, needed=False, needs=on_valkey),
        ]

    def _redis_side(self) -> list[Spec]:
        return [
            Spec(name="relay", service=self.relay, phase=Phase.FLUSH, needed=False, needs=("store", "stream")),
            Spec(name="raw_workers", service=self.raw_workers, phase=Phase.FLUSH, needed=False, needs=("relay",)),
        ]

    def _workers(self) -> list[Spec]:
        """The slots need no server to be up: what runs goes on while Postgres or Redis is away."""
        watchdog = LeaseWatchdog(PostgresLine(self.database.url), self.leases, self._config)
        slots = Slots(
            engine=self.engine,
            dispatcher=self.dispatcher,
            leases=self.leases,
            config=self._config,
            runners=self.runners,
            owner_id=self.names.holder,
            results=self.results,
        )
        return [
            Spec(name="engine", service=self.engine, phase=Phase.FLUSH),
            Spec(name="leases", service=self.leases, phase=Phase.FLUSH),
            Spec(name="lease_guard", service=watchdog, phase=Phase.FLUSH, needed=False),
            Spec(name="dispatcher", service=self.dispatcher, phase=Phase.INTAKE, needs=("store",)),
            Spec(name="slots", service=slots, phase=Phase.WORK),
        ]

    def _upkeep(self) -> list[Spec]:
        janitor = Janitor(self.database, self.results, self._config)
        return [
            Spec(name="tailer", service=self.tailer, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="reaper", service=self.reaper, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="janitor", service=janitor, phase=Phase.WORK, needed=False, needs=("store",)),
        ]

    def ticket_services(self) -> list[Spec]:
        pollers = self._ticket_pollers() if self._config().tickets.enabled else ()
        return [
            *(
                Spec(name=f"ticket_{poller.name}", service=poller, phase=Phase.INTAKE, needed=False, needs=("store",))
                for poller in pollers
            ),
            Spec(name="ticket_tailer", service=self.ticket_tailer, phase=Phase.FLUSH, needed=False, needs=("store",)),
        ]

    def _ticket_pollers(self) -> tuple[ReadinessPoller, SchedulerPoller, RunnerPoller, GatePoller]:
        common = self.database, self._config, self.ticket_wakeups
        owners = OwnerNames(*self.names)
        return (
            ReadinessPoller(*common),
            SchedulerPoller(*common, owners),
            RunnerPoller(*common, owners, self.engine, self.results),
            GatePoller(*common, owners, self.data_dir),
        )


class Sockets(NamedTuple):
    """Where HTTP is served."""

    listener: socket
    unix_listener: socket | None
    tls: TlsFiles | None


def http_services(
    node: Node, supervisor: Supervisor, config: Callable[[], Config], disk: Disk, sockets: Sockets
) -> tuple[Spec, Spec]:
    """HTTP above a node: the tokens that it admits, and the server with its routes."""
    local = is_loopback(sockets.listener)
    doorkeeper = Doorkeeper(config, is_loopback=local)
    tokens = TokenWatch(node.database, doorkeeper, config, is_loopback=local)
    services = Services(
        supervisor=supervisor,
        config=config,
        database=node.database,
        transport=node.transport,
        engine=node.engine,
        dispatcher=node.dispatcher,
        drain=DrainRates(node.database),
        mirror=KeyMirror(node.transport),
        doorkeeper=doorkeeper,
        tailer=node.tailer,
        disk=disk,
        heartbeat_limit=HeartbeatLimit(),
        results=node.results,
        tickets=node.tickets,
        ticket_tailer=node.ticket_tailer,
        runners=node.runners,
    )
    return (
        Spec(name="tokens", service=tokens, phase=Phase.FLUSH, needs=("store",)),
        Spec(name="gateway", service=_gateway(services, sockets), phase=Phase.EDGE),
    )


def _gateway(services: Services, sockets: Sockets) -> Gateway:
    public = [endpoint.path for endpoint in ENDPOINTS if endpoint.scope == "public"]
    listeners = 1 if sockets.unix_listener is None else 2
    return Gateway(
        build_app(services),
        sockets.listener,
        guard=lambda app: Guard(app, services.doorkeeper, services.config, public),
        still_admits=services.doorkeeper.still_admits,
        unix_listener=sockets.unix_listener,
        tls=sockets.tls,
        max_connections=connections_that_fit(services.config().limits.max_connections, listeners),
    )


@contextlib.asynccontextmanager
async def running(
    services: Sequence[Spec], *, drain_s: float, policy: RestartPolicy | None = None
) -> AsyncIterator[Supervisor]:
    """For a benchmark or a test: these services in the background, from when all are ready; drained at the end."""
    ready = anyio.Event()
    supervisor = Supervisor(services, notifier=Notifier({}), drain_s=lambda: drain_s, policy=policy, on_ready=ready.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(READY_S):
            await ready.wait()
        yield supervisor
        supervisor.stop()
