"""What the routes call. They parse, call one of these, and answer; no rule lives in a route."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobd.auth.doorkeeper import Doorkeeper
    from jobd.config.model import Config
    from jobd.dispatch.dispatcher import Dispatcher
    from jobd.engine.engine import Engine
    from jobd.engine.results import Results
    from jobd.follow.jobs import Tailer
    from jobd.follow.tickets import TicketTailer
    from jobd.http.disk import Disk
    from jobd.http.drain_rates import DrainRates
    from jobd.http.heartbeat_limit import HeartbeatLimit
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.stream.idempotency_keys import KeyMirror
    from jobd.supervise.supervisor import Supervisor
    from jobd.tasks.runner import Runner
    from jobd.tickets.service import TicketService


class Services(NamedTuple):
    supervisor: Supervisor
    config: Callable[[], Config]
    database: Database
    transport: Transport
    engine: Engine
    dispatcher: Dispatcher
    doorkeeper: Doorkeeper
    drain: DrainRates
    mirror: KeyMirror
    tailer: Tailer
    disk: Disk
    heartbeat_limit: HeartbeatLimit
    results: Results
    tickets: TicketService
    ticket_tailer: TicketTailer
    #: The runner of each task that slots of this process run.
    runners: Mapping[str, Runner]
