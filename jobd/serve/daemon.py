"""`jobd serve`: the tree as data, the signals, and what a reload may change."""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.auth.doorkeeper import Doorkeeper
from jobd.auth.watch import TokenWatch
from jobd.backup.keep import Keeper
from jobd.config import show as config_show
from jobd.config.model import Config
from jobd.dispatch.dispatcher import Dispatcher
from jobd.dispatch.slots import Slots
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.errors import ConfigError
from jobd.follow.jobs import Tailer
from jobd.follow.tickets import TicketTailer
from jobd.host import logs
from jobd.host.data_dir import Addresses, DataDir
from jobd.host.systemd import Notifier
from jobd.http.app import ENDPOINTS, build_app
from jobd.http.disk import Disk
from jobd.http.drain_rates import DrainRates
from jobd.http.gateway import Gateway
from jobd.http.heartbeat_limit import Storm
from jobd.http.listen import (
    bind_listener,
    bind_unix_listener,
    checked_tls,
    close_unix_listener,
    connections_that_fit,
    is_loopback,
    listener_url,
)
from jobd.http.request_checks import Guard
from jobd.http.services import Services
from jobd.leases.keeper import LeaseKeeper
from jobd.leases.watchdog import LeaseGuard, PostgresLine
from jobd.maintenance.incarnations import Owners
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
from jobd.supervise.supervisor import FLUSH_S, SERVER_STOP_S, Supervisor, exit_in_any_case
from jobd.supervise.wakeup import Wakeup
from jobd.tasks.registry import make_runners, with_declared_tasks
from jobd.tickets.pollers.claims import OwnerNames
from jobd.tickets.pollers.gate import Gate
from jobd.tickets.pollers.poller import Readiness, Scheduler
from jobd.tickets.pollers.runner import Runner
from jobd.tickets.service import Desk, Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Loaded

log = logging.getLogger(__name__)


def addresses(data_dir: DataDir, config: Config, jobd_url: str) -> Addresses:
    return Addresses(
        JOBD_URL=jobd_url,
        DATABASE_URL=config.postgres.url or embedded_postgres.url(data_dir),
        REDIS_URL=config.redis.url or embedded_valkey.url(data_dir),
    )


class Daemon:
    """One run of `jobd serve`."""

    def __init__(self, loaded: Loaded, reload: Callable[[], Loaded]) -> None:
        self._config = with_declared_tasks(loaded.config)
        self._reload = reload
        self._data_dir = DataDir.to_start(Path(loaded.config.data_dir))
        #: New at every start, so that what a dead jobd owned can never pass for this one's.
        self._incarnation = uuid.uuid4()

    async def run(self, on_ready: Callable[[Addresses], None]) -> int | None:
        """Serve until a signal; the signal's number if it had to be sent twice."""
        os.umask(0o077)
        server = self._config.server
        self._tls = checked_tls(server.tls_cert, server.tls_key)
        self._data_dir.check()
        listener = bind_listener(server.host, server.port)
        self._unix_listener: socket.socket | None = None
        try:
            self._data_dir.open()
            self._owners = Owners(self._data_dir.path, f"{socket.gethostname()}:{self._incarnation}")
            # Not before it is known that no other jobd is at work here: a runner may clear away what a dead one left.
            self._runners = make_runners(self._config)
            if server.socket:
                self._unix_listener = bind_unix_listener(Path(server.socket))
            return await self._supervise(listener, on_ready)
        finally:
            listener.close()
            if self._unix_listener is not None:
                close_unix_listener(self._unix_listener, Path(server.socket))
            self._data_dir.close()

    async def _supervise(self, listener: socket.socket, on_ready: Callable[[Addresses], None]) -> int | None:
        where = addresses(self._data_dir, self._config, listener_url(listener, self._tls))
        self._data_dir.write_addresses(where)
        self._supervisor = Supervisor(
            notifier=Notifier(os.environ), drain_s=lambda: self._config.drain_s, on_ready=lambda: on_ready(where)
        )
        self._supervisor.plant(self._tree(where, listener))
        async with anyio.create_task_group() as tasks:
            signalled = await tasks.start(self._obey_signals)
            await self._supervisor.run()
            tasks.cancel_scope.cancel()
        return signalled[-1] if self._supervisor.hurried else None

    def _tree(self, where: Addresses, listener: socket.socket) -> list[Spec]:
        config, data_dir = self._config, self._data_dir
        tree = []
        if not config.postgres.url:
            server = embedded_postgres.EmbeddedPostgres(data_dir, config)
            tree.append(Spec(name="postgres", service=server, phase=Phase.SERVERS))
        if not config.redis.url:
            valkey = embedded_valkey.EmbeddedValkey(data_dir, config)
            tree.append(Spec(name="valkey", service=valkey, phase=Phase.SERVERS, needed=False))
        embedded = {spec.name for spec in tree}
        database, transport = Database(where.DATABASE_URL, config.postgres.pool_size), Transport(where.REDIS_URL)
        wakeup = Wakeup()
        wakeups = Wakeups()

        def on_commit() -> None:
            wakeup.set()
            wakeups.job_committed()

        engine = Engine(database, lambda: self._config, on_commit)
        leases = LeaseKeeper(engine, lambda: self._config)
        engine.on_cancel_requested = leases.cancel
        disk = Disk(data_dir.free_bytes, lambda: self._config)
        engine.is_disk_low = disk.is_low
        reaper = Reaper(database, lambda: self._config, on_commit, self._owners)
        dispatcher = Dispatcher(engine, database, transport, self._incarnation, lambda: self._config)
        doorkeeper = Doorkeeper(lambda: self._config, is_loopback=is_loopback(listener))
        tailer = Tailer(database, transport)
        results = Results(data_dir.path, lambda: self._config)
        desk = Desk(database, lambda: self._config, wakeups)
        ticket_tailer = TicketTailer(desk, wakeups)
        names = Names(self._owners.owner_id, tuple(self._owners.dead()))
        services = Services(
            supervisor=self._supervisor,
            config=lambda: self._config,
            database=database,
            transport=transport,
            engine=engine,
            dispatcher=dispatcher,
            drain=DrainRates(database),
            mirror=KeyMirror(transport),
            doorkeeper=doorkeeper,
            tailer=tailer,
            disk=disk,
            storm=Storm(),
            results=results,
            tickets=desk,
            ticket_tailer=ticket_tailer,
            runners=self._runners,
        )
        return [
            *tree,
            Spec(
                name="store",
                service=StoreLink(database, config.postgres.pool_size, Keeper(data_dir, config, _tell_backup).keep),
                phase=Phase.FLUSH,
                needs=tuple(embedded & {"postgres"}),
            ),
            Spec(
                name="stream",
                service=StreamLink(transport),
                phase=Phase.FLUSH,
                needed=False,
                needs=tuple(embedded & {"valkey"}),
            ),
            Spec(
                name="relay",
                service=Relay(database, transport, wakeup, lambda: self._config, names),
                phase=Phase.FLUSH,
                needed=False,
                needs=("store", "stream"),
            ),
            Spec(
                name="raw_workers",
                service=RawWorkers(engine, database, transport, lambda: self._config, results, names),
                phase=Phase.FLUSH,
                needed=False,
                needs=("relay",),
            ),
            Spec(name="engine", service=engine, phase=Phase.FLUSH),
            Spec(name="leases", service=leases, phase=Phase.FLUSH),
            Spec(
                name="lease_guard",
                service=LeaseGuard(PostgresLine(where.DATABASE_URL), leases, lambda: self._config),
                phase=Phase.FLUSH,
                needed=False,
            ),
            Spec(name="dispatcher", service=dispatcher, phase=Phase.INTAKE, needs=("store",)),
            Spec(name="slots", service=self._slots(engine, dispatcher, leases, results), phase=Phase.WORK),
            Spec(name="tailer", service=tailer, phase=Phase.FLUSH, needs=("store",)),
            Spec(name="reaper", service=reaper, phase=Phase.FLUSH, needs=("store",)),
            Spec(
                name="janitor",
                service=Janitor(database, results, lambda: self._config),
                phase=Phase.WORK,
                needed=False,
                needs=("store",),
            ),
            Spec(
                name="tokens",
                service=TokenWatch(database, doorkeeper, lambda: self._config, is_loopback=is_loopback(listener)),
                phase=Phase.FLUSH,
                needs=("store",),
            ),
            *self._ticket_pollers(database, engine, results, wakeups),
            Spec(name="ticket_tailer", service=ticket_tailer, phase=Phase.FLUSH, needed=False, needs=("store",)),
            Spec(name="gateway", service=self._gateway(services, listener), phase=Phase.EDGE),
        ]

    def _slots(self, engine: Engine, dispatcher: Dispatcher, leases: LeaseKeeper, results: Results) -> Slots:
        """It needs no server to be up: what runs goes on while Postgres or Redis is away."""
        return Slots(
            engine=engine,
            dispatcher=dispatcher,
            leases=leases,
            config=lambda: self._config,
            runners=self._runners,
            owner_id=self._owners.owner_id,
            results=results,
        )

    def _ticket_pollers(self, database: Database, engine: Engine, results: Results, wakeups: Wakeups) -> list[Spec]:
        if not self._config.tickets.enabled:
            return []
        common = database, lambda: self._config, wakeups
        owners = OwnerNames(self._owners.owner_id, tuple(self._owners.dead()))
        pollers = (
            Readiness(*common),
            Scheduler(*common, owners),
            Runner(*common, owners, engine, results),
            Gate(*common, owners, self._data_dir.path),
        )
        return [
            Spec(name=f"ticket_{poller.name}", service=poller, phase=Phase.INTAKE, needed=False, needs=("store",))
            for poller in pollers
        ]

    def _gateway(self, services: Services, listener: socket.socket) -> Gateway:
        public = [endpoint.path for endpoint in ENDPOINTS if endpoint.scope == "public"]
        return Gateway(
            build_app(services),
            listener,
            guard=lambda app: Guard(app, services.doorkeeper, lambda: self._config, public),
            still_admits=services.doorkeeper.still_admits,
            unix_listener=self._unix_listener,
            tls=self._tls,
            max_connections=connections_that_fit(
                self._config.limits.max_connections, 1 if self._unix_listener is None else 2
            ),
        )

    async def _obey_signals(self, task_status: anyio.abc.TaskStatus[list[int]]) -> None:
        signalled: list[int] = []
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started(signalled)
            async for number in received:
                if number == signal.SIGHUP:
                    self._obey_reload()
                    continue
                if not signalled:
                    log.info("%s: draining for up to %g s", number.name, self._config.drain_s)
                    exit_in_any_case(self._config.drain_s + FLUSH_S + SERVER_STOP_S + 0.5)
                signalled.append(number)
                self._supervisor.stop()

    def _obey_reload(self) -> None:
        """Take over what may change in a running daemon; say what may not. A bad file changes nothing."""
        try:
            new = with_declared_tasks(self._reload().config)
        except ConfigError as error:
            log.error("reload refused, nothing changed: %s", error)
            return
        found = config_show.changes(self._config, new)
        for change in found:
            if change.reloadable:
                log.info("reload: %s is now %s (was %s)", change.key, change.new, change.old)
            else:
                log.warning("reload: %s stays %s; restart jobd to make it %s", change.key, change.old, change.new)
        if not found:
            log.info("reload: nothing has changed")
        self._config = reloaded(self._config, new)
        logs.set_level(self._config.log.level)


def _tell_backup(text: str) -> None:
    """A backup may take longer than systemd waits for a start: as long as it gets on, there is another minute."""
    Notifier(os.environ).send("EXTEND_TIMEOUT_USEC=60000000", f"STATUS=backing up before a migration, {text}")


def reloaded(old: Config, new: Config) -> Config:
    """`old` with what may change in a running daemon taken from `new`; those keys are all `key` or `section.key`."""
    mixed, fresh = msgspec.to_builtins(old), msgspec.to_builtins(new)
    for change in config_show.changes(old, new):
        if change.reloadable:
            section, _, key = change.key.rpartition(".")
            into, out_of = (mixed[section], fresh[section]) if section else (mixed, fresh)
            into[key] = out_of[key]
    return msgspec.convert(mixed, Config)
