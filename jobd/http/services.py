"""What the routes call. They parse, call one of these, and answer; no rule lives in a route."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobd.auth.doorkeeper import Doorkeeper
    from jobd.batches.service import BatchService
    from jobd.board.ledger import MemoryLedger
    from jobd.board.service import BoardService
    from jobd.config.model import Config
    from jobd.dispatch.dispatcher import Dispatcher
    from jobd.dispatch.slots import SlotUsage
    from jobd.engine.engine import Engine
    from jobd.engine.results import Results
    from jobd.files.storage import FileStorage
    from jobd.follow.jobs import Tailer
    from jobd.follow.tickets import TicketTailer
    from jobd.http.disk import Disk
    from jobd.http.drain_rates import DrainRates
    from jobd.http.eta import Etas
    from jobd.http.heartbeat_limit import HeartbeatLimit
    from jobd.http.host_space import SpaceGauge
    from jobd.http.openai.readers import CallReaders
    from jobd.http.request_counts import RequestCounts
    from jobd.model_servers.service import ModelServers
    from jobd.schedules.service import ScheduleService
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
    etas: Etas
    mirror: KeyMirror
    tailer: Tailer
    disk: Disk
    space: SpaceGauge
    heartbeat_limit: HeartbeatLimit
    results: Results
    files: FileStorage
    batches: BatchService
    tickets: TicketService
    ticket_tailer: TicketTailer
    schedules: ScheduleService
    #: For how many seconds the oldest change waits to be written to Redis; None if this node does not do that.
    relay_lag_s: Callable[[], float | None]
    #: The runner of each task that slots of this process run.
    runners: Mapping[str, Runner]
    #: How many slots of each queue are busy in this process.
    slot_usage: Callable[[], Mapping[str, SlotUsage]]
    requests: RequestCounts
    #: Who reads the answers of calls of the OpenAI interface.
    call_readers: CallReaders
    board: BoardService
    #: Memory that slots of this process have promised to jobs.
    memory: MemoryLedger
    #: Those that this process starts itself.
    model_servers: ModelServers
