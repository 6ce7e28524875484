"""`jobd worker`: slots on any machine, for a jobd that is reached over outbound HTTP alone.

The tree is that of `jobd serve` without its servers, and it stops in the same order: nothing more is claimed, what runs
may finish within `drain_s`, the rest is handed back uncharged, and leases are kept until the last report.

A jobd that is away costs nothing but time: running jobs go on, and their reports wait, for as long as their leases
last by this machine's clock. Then they are stopped, and nothing is written about them.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jobd.config.model import Queue
from jobd.dispatch.slots import Slots
from jobd.errors import ConfigError
from jobd.host.systemd import Notifier
from jobd.leases.jobs import JobLeases
from jobd.leases.watchdog import LeaseWatchdog
from jobd.supervise.service import Phase, Spec
from jobd.supervise.signals import run_until_signal
from jobd.supervise.supervisor import Supervisor
from jobd.tasks.registry import make_runners, with_declared_tasks
from jobd.worker.claims import RemoteClaims
from jobd.worker.engine import RemoteEngine, SentResults
from jobd.worker.folder import own_folder
from jobd.worker.renewal_line import HttpLine
from jobd.worker.session import WorkerSession

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from jobd.config.model import Config
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)


class WorkerTarget(NamedTuple):
    """Which jobd to work for."""

    #: Without it: JOBD_URL, else the usual address on this machine.
    url: str | None
    #: Without it: JOBD_TOKEN, else none.
    token: str | None
    verify: ssl.SSLContext | bool = True
    #: Give up if it does not answer at the start.
    must_answer: bool = False


class Outcome(NamedTuple):
    done: int
    failed: int
    handed_back: int
    #: The signal's number, if a second signal stopped the worker at once.
    signalled: int | None


class RemoteWorker:
    """One run of `jobd worker`."""

    def __init__(self, config: Config, target: WorkerTarget) -> None:
        self._config = with_declared_tasks(config)
        self._target = target
        #: New at every start: what a dead worker held can never pass for this one's.
        self.worker_id = f"{socket.gethostname()[:64]}:worker:{uuid.uuid4()}"
        self.session = self._open_session()

    def _open_session(self) -> WorkerSession:
        return WorkerSession(self._target.url, self._target.token, self._target.verify)

    async def run(self, on_start: Callable[[], None]) -> Outcome:
        """Work until a signal; raises what makes it pointless to go on."""
        os.umask(0o077)
        engine = RemoteEngine(self.session, self.worker_id)
        with own_folder(self._config) as folder:
            runners = make_runners(msgspec.structs.replace(self._config, data_dir=str(folder)))
            supervisor = Supervisor(
                self._tree(engine, runners),
                notifier=Notifier(os.environ),
                drain_s=lambda: self._config.drain_s,
                on_ready=on_start,
            )
            async with self.session:
                signalled = await run_until_signal(supervisor)
        return Outcome(engine.completed, engine.failed, engine.released, signalled)

    def _tree(self, engine: RemoteEngine, runners: Mapping[str, Runner]) -> list[Spec]:
        served = {name: queue.slots for name, queue in self._config.queues.items() if queue.slots}
        claims = RemoteClaims(
            self.session,
            self.worker_id,
            served,
            slots=served,
            release=engine.release,
            must_answer=self._target.must_answer,
        )

        known = self._config

        def config() -> Config:
            """With the leases that jobd grants, once it has granted one."""
            nonlocal known
            if claims.leases is not None and known.leases is not claims.leases:
                known = msgspec.structs.replace(self._config, leases=claims.leases)
            return known

        leases = JobLeases(engine, config)
        guard = LeaseWatchdog(HttpLine(self._open_session, self.worker_id), leases, config)
        slots = Slots(
            engine=engine,
            dispatcher=claims,
            leases=leases,
            config=config,
            runners=runners,
            owner_id=self.worker_id,
            results=SentResults(),
        )
        return [
            Spec(name="leases", service=leases, phase=Phase.FLUSH),
            Spec(name="lease_guard", service=guard, phase=Phase.FLUSH, needed=False),
            Spec(name="slots", service=slots, phase=Phase.WORK),
            Spec(name="claims", service=claims, phase=Phase.INTAKE),
        ]


def with_queues(config: Config, names: Sequence[str], slots: int | None) -> Config:
    """The configuration with these queues served and no others (none named: its own), each with `slots` slots."""
    wanted = names or [name for name, queue in config.queues.items() if queue.slots]
    if not wanted:
        raise ConfigError("no queue has slots, so there is nothing to work on: name one with --queue")
    usual = {name: queue.slots or Queue().slots for name, queue in config.queues.items()}
    served = {name: Queue(slots=slots or usual.get(name, Queue().slots)) for name in wanted}
    unserved = {name: Queue(slots=0) for name in config.queues}
    return msgspec.structs.replace(config, queues={**unserved, **served})
