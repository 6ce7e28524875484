"""`jobd serve`: the tree as data, the signals, and what a reload may change."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.backup.keep import Keeper
from jobd.config import show as config_show
from jobd.config.model import Config
from jobd.errors import ConfigError
from jobd.host import logs
from jobd.host.data_dir import DataDir
from jobd.host.systemd import Notifier
from jobd.http.disk import Disk
from jobd.http.listen import (
    bind_listener,
    bind_unix_listener,
    checked_tls,
    close_unix_listener,
    listener_url,
)
from jobd.maintenance.incarnations import Owners
from jobd.serve.tree import Node, Sockets, addresses, embedded_servers, http_services
from jobd.store.leader import NODE_PREFIX
from jobd.supervise.signals import run_until_signal
from jobd.supervise.supervisor import Supervisor
from jobd.tasks.registry import make_runners, with_declared_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.config.model import Loaded
    from jobd.host.data_dir import Addresses
    from jobd.supervise.service import Spec
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)


class Daemon:
    """One run of `jobd serve`."""

    def __init__(
        self,
        loaded: Loaded,
        reload: Callable[[], Loaded],
        *,
        runners: Callable[[Config], dict[str, Runner]] = make_runners,
        beside: Sequence[Spec] = (),
    ) -> None:
        """`runners` makes those of all tasks; `beside` are services that run beside those of jobd."""
        self._config = with_declared_tasks(loaded.config)
        self._reload = reload
        self._make_runners = runners
        self._beside = beside
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
            self._owners = Owners(self._data_dir.path, f"{NODE_PREFIX}{socket.gethostname()}:{self._incarnation}")
            # Not before it is known that no other jobd is at work here: a runner may clear away what a dead one left.
            self._runners = self._make_runners(self._config)
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
        supervisor = Supervisor(
            notifier=Notifier(os.environ), drain_s=lambda: self._config.drain_s, on_ready=lambda: on_ready(where)
        )
        supervisor.plant(self._tree(where, listener, supervisor))
        return await run_until_signal(supervisor, self.obey_reload)

    def _current(self) -> Config:
        """The configuration now: a reload changes it."""
        return self._config

    def _tree(self, where: Addresses, listener: socket.socket, supervisor: Supervisor) -> list[Spec]:
        config, data_dir = self._config, self._data_dir
        disk = Disk(data_dir.free_bytes, self._current)
        node = Node(
            where,
            self._current,
            data_dir.path,
            incarnation=self._incarnation,
            owners=self._owners,
            runners=self._runners,
            is_disk_low=disk.is_low,
        )
        sockets = Sockets(listener, self._unix_listener, self._tls)
        tokens, gateway = http_services(node, supervisor, self._current, disk, sockets)
        servers = embedded_servers(data_dir, config)
        backup = Keeper(data_dir, config, _tell_backup).keep
        return [
            *servers,
            *node.job_services({server.name for server in servers}, before_migration=backup),
            tokens,
            *node.ticket_services(),
            gateway,
            *self._beside,
        ]

    def take_tasks(self, new: Config) -> None:
        """Take over the tasks of a configuration, whose runners are there; raises ConfigError for a new queue."""
        for name, task in new.tasks.items():
            if task.queue not in self._config.queues:
                raise ConfigError(f"tasks.{name}.queue = {task.queue!r}: restart jobd to make this queue")
        self._config = msgspec.structs.replace(self._config, tasks=new.tasks, tasks_from=new.tasks_from)

    def obey_reload(self) -> None:
        """Take over what may change in a running daemon; say what may not. A bad file changes nothing."""
        try:
            new = with_declared_tasks(self._reload().config)
        except ConfigError as error:
            log.error("reload refused, nothing changed: %s", error)
            return
        changes = config_show.changes(self._config, new)
        for change in changes:
            if change.reloadable:
                log.info("reload: %s is now %s (was %s)", change.key, change.new, change.old)
            else:
                log.warning("reload: %s stays %s; restart jobd to make it %s", change.key, change.old, change.new)
        if not changes:
            log.info("reload: nothing has changed")
        self._config = reloaded(self._config, new)
        logs.set_level(self._config.log.level)


def _tell_backup(text: str) -> None:
    """A backup may take longer than systemd waits for a start: as long as it gets on, there is another minute."""
    Notifier(os.environ).send("EXTEND_TIMEOUT_USEC=60000000", f"STATUS=backing up before a migration, {text}")


def reloaded(old: Config, new: Config) -> Config:
    """`old` with what may change in a running daemon taken from `new`: schedules, and keys like `section.key`."""
    mixed, fresh = msgspec.to_builtins(old), msgspec.to_builtins(new)
    mixed["schedules"] = fresh["schedules"]
    for change in config_show.changes(old, new):
        if change.reloadable and not change.key.startswith("schedules."):
            section, _, key = change.key.rpartition(".")
            into, out_of = (mixed[section], fresh[section]) if section else (mixed, fresh)
            into[key] = out_of[key]
    return msgspec.convert(mixed, Config)
