"""The parts of a node, wired to each other, and the services among them in the order in which they start.

    embedded_servers   Postgres and Valkey, unless the configuration names others
    Node               everything that carries jobs and tickets: for `jobd serve`, the benchmark and tests
    http_services      HTTP above a node, for `jobd serve`

Building opens no connection and starts nothing; only a service that runs does. A drain stops services by phase and,
within a phase, from the last of the list to the first.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from jobd.auth.doorkeeper import Doorkeeper
from jobd.auth.open_sessions import OpenSessions
from jobd.auth.sessions import read_sessions
from jobd.auth.watch import TokenWatch
from jobd.batches.service import BatchService
from jobd.board.ledger import MemoryLedger
from jobd.board.service import BoardService, MemoryProbe, resident_bytes
from jobd.dispatch.dispatcher import Dispatcher
from jobd.dispatch.slots import Slots
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.files.storage import FileStorage
from jobd.follow.jobs import Tailer
from jobd.follow.tickets import TicketTailer
from jobd.host.data_dir import Addresses
from jobd.host.systemd import Notifier
from jobd.http.app import ENDPOINTS, build_app
from jobd.http.board import BoardReasons
from jobd.http.drain_rates import DrainRates
from jobd.http.eta import Etas
from jobd.http.gateway import Gateway
from jobd.http.heartbeat_limit import HeartbeatLimit
from jobd.http.host_space import SpaceGauge
from jobd.http.listen import connections_that_fit, is_loopback
from jobd.http.openai.readers import CallReaders
from jobd.http.request_checks import Guard
from jobd.http.request_counts import RequestCounts
from jobd.http.services import Services
from jobd.leases.jobs import JobLeases
from jobd.leases.watchdog import LeaseWatchdog, PostgresLine
from jobd.maintenance.files import FileSweep
from jobd.maintenance.janitor import Janitor
from jobd.maintenance.reaper import Reaper
from jobd.maintenance.resolver import Resolver
from jobd.maintenance.rollups import RollUp
from jobd.model_servers.service import ModelServers
from jobd.schedules.service import ScheduleService
from jobd.servers import postgres as embedded_postgres
from jobd.servers import valkey as embedded_valkey
from jobd.servers.connections import StoreLink, StreamLink
from jobd.store.leader import NODE_PREFIX, OwnerNames
from jobd.store.postgres import Database
from jobd.stream.connection import Transport
from jobd.stream.idempotency_keys import KeyMirror
from jobd.stream.raw_workers import RawWorkers
from jobd.stream.relay import Relay
from jobd.supervise.service import Phase, Spec
from jobd.supervise.supervisor import Supervisor
from jobd.supervise.wakeup import Wakeup
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
    from jobd.lifecycle.notices import Changes
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
        self.runners = {} if runners is None else runners  # an empty mapping may be filled later
        self.names = OwnerNames(f"{NODE_PREFIX}node:{incarnation}") if owners is None else owners.names()
        self.wakeup, self.ticket_wakeups = Wakeup(), Wakeups()
        self.database = Database(where.DATABASE_URL, config().postgres.pool_size)
        self.transport = Transport(where.REDIS_URL)
        self.results = Results(data_dir, config)
        self.files = FileStorage(data_dir)
        self.engine = Engine(
            self.database,
            config,
            self._committed,
            on_changes=self._changed,
            on_cancel_requested=self._cancel_requested,
            is_disk_low=is_disk_low,
        )
        self.leases = JobLeases(self.engine, config)
        self.memory = MemoryLedger(config, MemoryProbe(config()), self._warm)
        self.board = BoardService(
            config,
            self.memory,
            on_heat=lambda level: self.slots.pace(level),
            on_sample=lambda: self.dispatcher.direct.note_memory(),
            processes=lambda: self.slots.processes(),
        )
        self.model_servers = ModelServers(config, data_dir)
        self.dispatcher = Dispatcher(
            self.engine,
            self.database,
            self.transport,
            incarnation,
            config,
            self.names.owner_id,
            self.leases.tokens,
            self.memory,
            self.model_servers,
        )
        self.slots = Slots(
            engine=self.engine,
            dispatcher=self.dispatcher,
            leases=self.leases,
            config=config,
            runners=self.runners,
            owner_id=self.names.owner_id,
            results=self.results,
            read_inputs=self.engine.inputs,
            memory=self.memory,
            throttled=self.board.throttled,
            model_servers=self.model_servers if self.model_servers.is_used else None,
        )
        self.relay = Relay(
            self.database,
            self.transport,
            self.wakeup,
            config,
            self.names,
            on_modes=self.dispatcher.direct.set_modes,
            on_work=self.dispatcher.direct.note_work,
        )
        self.raw_workers = RawWorkers(self.engine, self.database, self.transport, config, self.results, self.names)
        self.reaper = Reaper(self.database, config, self._reaped, owners, self._changed, self.engine.tally)
        self.resolver = Resolver(self.database, self.engine, config)
        self.tailer = Tailer(self.database, self.transport)
        self.schedules = ScheduleService(self.database, self.engine, config)
        self.batches = BatchService(self.engine, self.files, self.results, config, self.runners)
        self.tickets = TicketService(self.database, config, self.ticket_wakeups)
        self.ticket_tailer = TicketTailer(self.tickets, self.ticket_wakeups)

    def _warm(self, task: str) -> list[int]:
        """Bytes that the idle processes of a task have."""
        runner = self.runners.get(task)
        return [] if runner is None else [resident_bytes(pid) for pid in runner.warm_pids()]

    def _committed(self) -> None:
        """A commit has left rows in the outbox."""
        self.wakeup.set()

    def _reaped(self) -> None:
        """Jobs wait again whose lease had expired."""
        self._committed()
        self.dispatcher.direct.note_work()

    def _changed(self, changes: Changes) -> None:
        """A commit of this node has changed jobs, for which somebody in it may wait."""
        self.resolver.committed(changes)
        self.tailer.committed(changes)
        self.ticket_wakeups.jobs_changed(changes)
        self.schedules.jobs_changed(changes)

    def _cancel_requested(self, job_id: UUID) -> None:
        """The holder of the job may be in this very process."""
        self.leases.cancel(job_id)

    def job_services(
        self, embedded: Collection[str] = (), before_migration: BeforeMigration | None = None
    ) -> list[Spec]:
        """What carries jobs, on the embedded servers of these names."""
        return [
            *self._links(embedded, before_migration),
            *self._redis_side(),
            *self._model_servers(),
            *self._workers(),
            *self._upkeep(),
        ]

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

    def _model_servers(self) -> list[Spec]:
        """They stop after the slots whose jobs ask them."""
        if not self.model_servers.is_used:
            return []
        return [Spec(name="model_servers", service=self.model_servers, phase=Phase.FLUSH, needed=False)]

    def _workers(self) -> list[Spec]:
        """The slots need no server to be up: what runs goes on while Postgres or Redis is away."""
        watchdog = LeaseWatchdog(PostgresLine(self.database.url), self.leases, self._config)
        return [
            Spec(name="engine", service=self.engine, phase=Phase.FLUSH),
            Spec(name="leases", service=self.leases, phase=Phase.FLUSH),
            Spec(name="lease_guard", service=watchdog, phase=Phase.FLUSH, needed=False),
            Spec(name="dispatcher", service=self.dispatcher, phase=Phase.INTAKE, needs=("store",)),
            Spec(name="slots", service=self.slots, phase=Phase.WORK),
            Spec(name="board", service=self.board, phase=Phase.WORK, needed=False),
        ]

    def _upkeep(self) -> list[Spec]:
        janitor = Janitor(
            self.database, self.results, self._config, files=FileSweep(self.database, self.files, self._config)
        )
        rollups = RollUp(self.database)
        return [
            Spec(name="tailer", service=self.tailer, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="reaper", service=self.reaper, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="resolver", service=self.resolver, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="rollups", service=rollups, phase=Phase.FLUSH, needed=False, needs=("store",)),
            Spec(name="janitor", service=janitor, phase=Phase.WORK, needed=False, needs=("store",)),
            Spec(name="batches", service=self.batches, phase=Phase.INTAKE, needed=False, needs=("store",)),
            Spec(name="schedules", service=self.schedules, phase=Phase.INTAKE, needed=False, needs=("store",)),
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
        owners = self.names
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
    doorkeeper = Doorkeeper(config, OpenSessions(partial(read_sessions, node.database)), is_loopback=local)
    tokens = TokenWatch(node.database, doorkeeper, config, is_loopback=local)
    drain = DrainRates(node.database)
    reasons = BoardReasons(config, node.memory, lambda: node.board.heat, node.slots.usage, node.model_servers)
    services = Services(
        supervisor=supervisor,
        config=config,
        database=node.database,
        transport=node.transport,
        engine=node.engine,
        dispatcher=node.dispatcher,
        drain=drain,
        etas=Etas(node.database, config, drain, reasons),
        mirror=KeyMirror(node.transport),
        doorkeeper=doorkeeper,
        tailer=node.tailer,
        disk=disk,
        space=SpaceGauge(node.data_dir),
        heartbeat_limit=HeartbeatLimit(),
        results=node.results,
        files=node.files,
        batches=node.batches,
        tickets=node.tickets,
        ticket_tailer=node.ticket_tailer,
        schedules=node.schedules,
        relay_lag_s=node.relay.lag_s,
        runners=node.runners,
        slot_usage=node.slots.usage,
        requests=RequestCounts(),
        call_readers=CallReaders(node.engine.cancel, lambda: config().openai.reader_grace_s),
        board=node.board,
        memory=node.memory,
        model_servers=node.model_servers,
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
        guard=lambda app: Guard(app, services.doorkeeper, services.config, public, services.requests),
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
