"""The configuration as Structs: every option once, with its meaning, type, range and default.

The field is the only declaration. The loader derives from it the key, the name of the environment variable and the
text of an error; `extra` says whether an option may change in a running daemon (`reload`) and whether its value may
contain a password (`secret`). Rules between options are in `broken_rules`.

Every number has bounds, which catch typing errors (milliseconds for seconds, a missing decimal point); an upper bound
on a float also excludes `inf` and `nan`.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RELOAD = {"reload": True}
SECRET = {"secret": True}

#: Names of queues and tasks: they become parts of Redis keys, metric labels and variable names.
NAME_PATTERN = r"[a-z0-9_.-]{1,64}"

#: Connections that the embedded Postgres keeps beside the pool: migrations, `psql` by hand, its own reserve.
RESERVED_CONNECTIONS = 5

# Text that system calls refuse is refused here already: NUL, and surrogates, which stand for bytes that are not UTF-8.
_CHARACTER = r"[^\x00\ud800-\udfff]"
_SOLID = r"[^\s\x00\ud800-\udfff]"

Text: TypeAlias = Annotated[str, Meta(pattern=rf"\A{_CHARACTER}*\Z", description="text")]
#: Seconds of a day.
DAY_S = 86_400

Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
Instant: TypeAlias = Annotated[datetime, Meta(tz=True, description="a time with its zone, as 2026-11-01T08:00:00Z")]
TaskTimeout: TypeAlias = Annotated[float, Meta(gt=0, le=30 * DAY_S)]
ProgramPath: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A(/{_CHARACTER}+)?\Z", description="empty (the one that comes with jobd) or an absolute path")
]
HostName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,253}\Z", description="a host name, without port")
]
Origin: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"\Ahttps?://[a-z0-9_.-]+(:[0-9]{1,5})?\Z",
        description="an origin in lower case, such as http://localhost:3000, without a path",
    ),
]
QueueName: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A{NAME_PATTERN}\Z", description="a queue's name: 1 to 64 of a-z 0-9 _ . -")
]
ModuleName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", description="a module's name, such as my.tasks")
]
VariableName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of an environment variable, without value")
]
Interruptions: TypeAlias = Annotated[int, Meta(ge=0, le=1000)]
RetryBase: TypeAlias = Annotated[float, Meta(ge=0, le=DAY_S)]
RetryCap: TypeAlias = Annotated[float, Meta(ge=0, le=7 * DAY_S)]
LeaseTtl: TypeAlias = Annotated[int, Meta(ge=1, le=DAY_S)]
TaskRun: TypeAlias = Literal["python", "command", "openai", "mock", "external"]
Scope: TypeAlias = Literal["client", "worker", "admin", "read", "metrics"]

#: The path of an option: ("server", "port"), ("queues", "default", "slots").
Key: TypeAlias = tuple[str, ...]


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A table of the file. An unknown key is an error: a misspelt option would silently keep its default."""


class Server(Section, frozen=True, kw_only=True):
    #: Address that the HTTP gateway listens on.
    host: Annotated[str, Meta(pattern=rf"\A{_SOLID}+\Z", description="a host name or address")] = "127.0.0.1"
    #: TCP port of the HTTP gateway; 0: any free port.
    port: Annotated[int, Meta(ge=0, le=65_535)] = 7433
    #: A unix socket to listen on as well; empty: none.
    socket: Text = ""
    #: Certificate (with its chain) and private key, as PEM files: the address then speaks TLS only. Both or none.
    tls_cert: Text = ""
    tls_key: Text = ""
    #: Names that callers may use for this server, besides `host`, localhost and addresses.
    allowed_hosts: tuple[HostName, ...] = ()
    #: Origins of other servers whose web pages may call this one, with a token but never with a cookie; exact.
    cors_origins: tuple[Origin, ...] = ()
    #: Serve an address other than loopback although no token exists: everyone who reaches it may do everything.
    insecure: bool = False


class Postgres(Section, frozen=True, kw_only=True):
    #: Server to use; empty: jobd runs its own Postgres under `data_dir`.
    url: Annotated[
        str,
        Meta(
            pattern=rf"\A(postgres(ql)?://{_SOLID}+)?\Z",
            description="empty (embedded) or a postgres:// or postgresql:// URL",
            extra=SECRET,
        ),
    ] = ""
    #: Program that jobd runs as its own server, such as a distribution's; empty: the one that comes with jobd.
    program: ProgramPath = ""
    #: Page cache of the embedded server in MB (`shared_buffers`).
    shared_buffers_mb: Annotated[int, Meta(ge=8, le=65_536)] = 64
    #: Most connections that the embedded server accepts.
    max_connections: Annotated[int, Meta(ge=6, le=1000)] = 40
    #: Most connections that this process opens, to either kind of server. At least four: the janitor, a transaction of
    #: tickets and a slow reader may take three, and jobs need one.
    pool_size: Annotated[int, Meta(ge=4, le=500)] = 8


class Redis(Section, frozen=True, kw_only=True):
    #: Server to use; empty: jobd runs its own Valkey under `data_dir`.
    url: Annotated[
        str,
        Meta(
            pattern=rf"\A((rediss?|unix)://{_SOLID}+)?\Z",
            description="empty (embedded) or a redis://, rediss:// or unix:// URL",
            extra=SECRET,
        ),
    ] = ""
    #: Program that jobd runs as its own server, valkey-server or redis-server; empty: the one that comes with jobd.
    program: ProgramPath = ""
    #: Memory of the embedded server in MB; when full it refuses writes and evicts nothing.
    maxmemory_mb: Annotated[int, Meta(ge=16, le=65_536)] = 128


#: Scopes that a token may have that sees its own jobs only.
OWN_JOBS_SCOPES = frozenset({"client", "read"})


class Token(Section, frozen=True, kw_only=True):
    #: Name of its holder, for logs and the audit table.
    name: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9_.@-]{1,64}\Z", description="1 to 64 letters, digits or any of _ . @ -")
    ]
    #: SHA-256 of the token; the token itself is stored nowhere. Lower case, so that hashes can be compared as text.
    sha256: Annotated[
        str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="64 lower-case hexadecimal digits", extra=SECRET)
    ]
    #: Which endpoints its holder may call.
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    #: Queues whose jobs it may claim; empty: all.
    queues: tuple[QueueName, ...] = ()
    #: Whether it sees and touches only jobs that it has sent itself. For the scopes client and read.
    own_jobs: bool = False


class Auth(Section, frozen=True, kw_only=True):
    tokens: Annotated[tuple[Token, ...], Meta(extra=RELOAD)] = ()


class Leases(Section, frozen=True, kw_only=True):
    #: Seconds that a lease lasts without a heartbeat; then the job goes to another worker.
    ttl_s: Annotated[int, Meta(ge=1, le=DAY_S)] = 60
    #: Seconds between two renewals of the lease of a running job.
    heartbeat_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 20


class Retry(Section, frozen=True, kw_only=True):
    #: Attempts of a job, the first included, unless its task or the job says otherwise.
    max_attempts: Annotated[int, Meta(ge=1, le=100, extra=RELOAD)] = 3
    #: Times that a job is run again after the stop of the node (power, kill, memory) interrupted it, which costs no
    #: attempt; one more interruption makes it a dead letter. A task may say otherwise.
    max_interruptions: Annotated[int, Meta(ge=0, le=1000, extra=RELOAD)] = 10
    #: First delay of the exponential backoff in seconds; each delay is drawn at random below its bound (full jitter).
    base_s: Annotated[float, Meta(ge=0, le=DAY_S, extra=RELOAD)] = 1
    #: Longest delay of the backoff in seconds.
    cap_s: Annotated[float, Meta(ge=0, le=7 * DAY_S, extra=RELOAD)] = 300


class RelayConfig(Section, frozen=True, kw_only=True):
    #: Unclaimed messages kept in each stream. More wait in Postgres, where a late urgent job can still overtake.
    stream_window: Annotated[int, Meta(ge=1, le=100_000)] = 500
    #: Longest time in seconds by which hashes and events in Redis may lag behind Postgres under load.
    max_lag_s: Annotated[float, Meta(ge=0, le=60)] = 0.5


class Limits(Section, frozen=True, kw_only=True):
    #: Largest payload of a job.
    payload_bytes: Annotated[int, Meta(ge=1, le=16 * 1024 * 1024, extra=RELOAD)] = 204_800
    #: Largest result that a worker may report.
    result_bytes: Annotated[int, Meta(ge=1, le=64_000_000, extra=RELOAD)] = 64_000_000
    #: Largest result that is kept in the job's row; a larger one is kept in a file under `data_dir`.
    inline_result_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024, extra=RELOAD)] = 65_536
    #: Most events of a job in MB, over all its attempts; more are dropped, and one event says how many.
    job_events_mb: Annotated[int, Meta(ge=1, le=1_000_000, extra=RELOAD)] = 100
    #: Free space of `data_dir` in MB below which new jobs are refused and log lines and tokens dropped. 0: no check.
    min_free_mb: Annotated[int, Meta(ge=0, le=10_000_000, extra=RELOAD)] = 100
    #: Waiting jobs in a queue before enqueue answers 429.
    max_queued: Annotated[int, Meta(ge=1, le=10_000_000, extra=RELOAD)] = 100_000
    #: Seconds that Redis keeps the hash and events of a job after its last change, unless the job has its own `ttl_s`.
    job_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S, extra=RELOAD)] = DAY_S
    #: Most open HTTP connections; a few more are admitted for /livez and /readyz.
    max_connections: Annotated[int, Meta(ge=10, le=100_000)] = 4000
    #: Most concurrent requests of one token, event streams and waiting workers included.
    requests_per_token: Annotated[int, Meta(ge=1, le=100_000, extra=RELOAD)] = 3000


class Retention(Section, frozen=True, kw_only=True):
    #: Seconds that a job is kept after its end, with its result, attempts and events.
    jobs_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 7 * DAY_S
    #: Seconds that a ticket is kept after its last change to DONE, with all its artifacts.
    tickets_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 90 * DAY_S
    #: Seconds that the id of a deleted job or ticket is remembered, so that requests for it answer 410.
    gone_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 30 * DAY_S
    #: Seconds that the rollups of a minute are kept: what ended in it, by queue and task.
    rollups_s: Annotated[int, Meta(ge=3600, le=3650 * DAY_S, extra=RELOAD)] = 8 * DAY_S
    #: Seconds between two sweeps of the janitor.
    every_s: Annotated[float, Meta(ge=1, le=3600, extra=RELOAD)] = 60


class Queue(Section, frozen=True, kw_only=True):
    #: Most jobs of the queue that this process runs at once. 0: only HTTP and raw Redis workers serve it.
    slots: Annotated[int, Meta(ge=0, le=1024)] = 4
    #: How jobs reach their workers: `stream` by messages in Redis, `direct` from Postgres; `auto`: direct as long as
    #: the queue has slots and no raw Redis worker reads its stream.
    deliver: Literal["auto", "stream", "direct"] = "auto"
    #: Whether hashes and events of its jobs are written to Redis. Without them, no raw Redis worker can serve it.
    mirror: bool = True
    #: Most jobs of the queue with the same `limit_key` that run at once, on all nodes. 0: any number.
    key_running: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: Most jobs of the queue with the same `limit_key` that start within `key_rate_s` seconds. 0: any number.
    key_rate: Annotated[int, Meta(ge=0, le=10_000)] = 0
    #: The period of `key_rate` in seconds; it slides.
    key_rate_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 60
    #: Whether the keys of the queue take turns, so that none waits for the backlog of another. Priority then counts
    #: within a key, and jobs without a key share one.
    fair: bool = False
    #: Whether its jobs heat the board: while that is hot, half of the slots start jobs, or none; see [board].
    hot: bool = False


class Task(Section, frozen=True, kw_only=True):
    #: How a job of this task is run; `external`: by HTTP or raw Redis workers only.
    run: TaskRun
    #: Queue of its jobs, unless the job names another.
    queue: Text = "default"
    #: python: the function, as "pkg.mod:func".
    handler: Text = ""
    #: python: run in a child process that is reused, so that a crash or a held GIL does not affect the daemon.
    isolate: bool = False
    #: command: the program and its arguments; no shell reads them.
    argv: tuple[Text, ...] = ()
    #: command: environment variables passed to it besides PATH, HOME, LANG, LC_* and TZ.
    env: tuple[VariableName, ...] = ()
    #: command: its working directory; empty: a temporary directory of its own.
    cwd: Text = ""
    #: python with `isolate`: jobs after which the child process is replaced; 0: never.
    recycle_jobs: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: command: limit in MB for the address space of each of its processes. python with `isolate`: a process whose
    #: resident memory is larger after a job is replaced. 0: no limit of its own.
    memory_mb: Annotated[int, Meta(ge=0, le=16_777_216)] = 0
    #: MB of memory that a job of this task takes while it runs: slots start it only when the board has them free, and
    #: they are reserved until it ends. It limits nothing. 0: it starts whatever is free.
    needs_memory_mb: Annotated[int, Meta(ge=0, le=16_777_216)] = 0
    #: command: most processes and threads that it may add to those of jobd's user; 0: no limit of its own.
    max_processes: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: command: largest result in MB; of a longer output only the end is kept.
    max_output_mb: Annotated[float, Meta(gt=0, le=64)] = 1
    #: command: seconds between SIGTERM and SIGKILL when it has to stop.
    kill_after_s: Annotated[float, Meta(ge=0, le=600)] = 5
    #: openai: URL of the server, up to and including /v1.
    base_url: Annotated[
        str, Meta(pattern=rf"\A(https?://{_SOLID}+)?\Z", description="an http:// or https:// URL", extra=SECRET)
    ] = ""
    #: openai: the model to ask for unless the job names one; empty: the server's own choice.
    model: Text = ""
    #: openai: the environment variable that holds the server's API key; empty: none is sent. Masked like a secret, in
    #: case the key itself is written here by mistake.
    api_key_env: Annotated[
        str,
        Meta(
            pattern=r"\A([A-Z_][A-Z0-9_]*)?\Z",
            description="the name of an environment variable in capitals, not the key itself",
            extra=SECRET,
        ),
    ] = ""
    #: openai: the system message of jobs that have none.
    system: Text = ""
    #: Time limit of an attempt in seconds; one that runs longer is stopped and counts as failed.
    timeout_s: Annotated[float, Meta(gt=0, le=30 * DAY_S)] = 3600
    #: None: `retry.max_attempts`.
    max_attempts: Attempts | None = None
    #: None: `retry.max_interruptions`.
    max_interruptions: Interruptions | None = None
    #: None: `retry.base_s` and `retry.cap_s`.
    retry_base_s: RetryBase | None = None
    retry_cap_s: RetryCap | None = None
    #: Seconds that the lease of its jobs lasts without a heartbeat; None: `leases.ttl_s`. It is renewed every
    #: `leases.heartbeat_s`, or three times within this time if that is more often.
    lease_ttl_s: LeaseTtl | None = None
    #: The `limit_key` of jobs that are sent without one: a JSON Pointer into the payload, "/user". Empty: none.
    limit_key: Annotated[str, Meta(pattern=r"\A(/[^\x00]*)?\Z", description='a JSON Pointer such as "/user"')] = ""


#: Names of models: what clients send in `model`. They hold / and : (hf.co/owner/name:Q4_K_M).
MODEL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}"
ModelName: TypeAlias = Annotated[
    str, Meta(pattern=rf"\A{MODEL_PATTERN}\Z", description="a model's name: letters, digits and _ . : / @ + -")
]


class ModelConfig(Section, frozen=True, kw_only=True):
    """A model that clients of the OpenAI interface may name."""

    #: Task that answers its calls. Either this or `base_url`.
    task: Text = ""
    #: URL of the server that answers its calls, up to and including /v1; jobd makes a task for it.
    base_url: Annotated[
        str, Meta(pattern=rf"\A(https?://{_SOLID}+)?\Z", description="an http:// or https:// URL", extra=SECRET)
    ] = ""
    #: With `base_url`: the environment variable that holds the server's API key; empty: none is sent.
    api_key_env: Annotated[
        str,
        Meta(
            pattern=r"\A([A-Z_][A-Z0-9_]*)?\Z",
            description="the name of an environment variable in capitals, not the key itself",
            extra=SECRET,
        ),
    ] = ""
    #: The name that the server knows it by; empty: the `model` of its task if it has one, else the name of this table.
    model: Text = ""
    #: Other names that clients may use for it.
    aliases: tuple[ModelName, ...] = ()
    #: Fields of a call that are set when the client does not send them: temperature, max_tokens and the like.
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Queue of its calls; empty: that of the task, or `default`.
    queue: Text = ""
    #: Priority of its calls, unless the client names one; higher goes first.
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    #: With `base_url`: the program that serves it, which jobd starts and stops, and its arguments; no shell reads them.
    #: Empty: the server is somebody else's.
    argv: tuple[Text, ...] = ()
    #: With `argv`: environment variables passed to it besides PATH, HOME, LANG, LC_* and TZ.
    env: tuple[VariableName, ...] = ()
    #: With `argv`: when it is started. `demand`: with the first job that asks it; `always`: with jobd.
    start: Literal["demand", "always"] = "demand"
    #: With `argv`: path on the server that answers 200 once it can be asked; empty: `base_url` and /models.
    health_path: Annotated[
        str, Meta(pattern=rf"\A(/{_SOLID}*)?\Z", description='empty or a path such as "/health"')
    ] = ""
    #: With `argv`: seconds that it may take from its start until it can be asked.
    start_timeout_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 300
    #: With `argv`: seconds without a job after which it is stopped; 0: it goes on.
    idle_stop_s: Annotated[float, Meta(ge=0, le=30 * DAY_S)] = 0
    #: With `argv`: seconds between SIGTERM and SIGKILL when it has to stop.
    kill_after_s: Annotated[float, Meta(ge=0, le=600)] = 5
    #: With `argv`: of the servers of one group at most one runs, as one GPU has room for one model. Empty: none.
    swap_group: Text = ""


class OpenAIConfig(Section, frozen=True, kw_only=True):
    """The OpenAI interface: /v1/models, /v1/chat/completions and their like."""

    #: Seconds after its last reader has left in which a call may be taken up again before its job is canceled.
    reader_grace_s: Annotated[float, Meta(ge=0, le=3600, extra=RELOAD)] = 10
    #: Seconds of waiting after which blank bytes keep the connection of a call that is not streamed alive.
    keep_alive_s: Annotated[float, Meta(ge=0.1, le=300, extra=RELOAD)] = 10
    #: Largest file in bytes that `POST /v1/files` takes.
    max_file_bytes: Annotated[int, Meta(ge=1, le=100_000_000_000, extra=RELOAD)] = 200 * 1024 * 1024
    #: Priority of the jobs of batches. A point is worth a minute of waiting: a call with priority 0 goes before lines
    #: that wait for less than 500 minutes.
    batch_priority: Annotated[int, Meta(ge=-1000, le=1000, extra=RELOAD)] = -500
    #: Seconds that files of batches are kept, unless their `expires_after` says otherwise, and batches after their end.
    batch_keep_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 30 * DAY_S
    #: Seconds that a job may be passed over by jobs of the loaded model of its `swap_group`; 0: never.
    max_model_wait_s: Annotated[float, Meta(ge=0, le=DAY_S, extra=RELOAD)] = 30


class GateCommand(Section, frozen=True, kw_only=True):
    #: The program and its arguments; no shell reads them. It gets the output on stdin and passes it with exit code 0.
    argv: Annotated[tuple[Text, ...], Meta(min_length=1)]
    #: Time limit in seconds; a program that runs longer is killed, and the output does not pass.
    timeout_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 60


class Tickets(Section, frozen=True, kw_only=True):
    #: Whether this node runs the ticket pollers.
    enabled: bool = True
    #: Seconds between two polls for ticket work that other nodes have created or given up.
    poll_s: Annotated[float, Meta(gt=0, le=3600)] = 1
    #: Whether a ticket has to be approved, reopened and signed off by another person than its authors.
    four_eyes: Annotated[bool, Meta(extra=RELOAD)] = False
    #: Programs that a ticket may name as a gate.
    gates: dict[str, GateCommand] = msgspec.field(default_factory=dict)


class ScheduleConfig(Section, frozen=True, kw_only=True):
    #: Five fields (minute, hour, day of month, month, day of week) or a name such as @daily. Either this or `every`.
    cron: Annotated[str, Meta(max_length=200, description="a cron expression, such as 0 3 * * *", extra=RELOAD)] = ""
    #: An interval such as 90s, 15m, 6h or 1h30m, counted from `start`, or else from 1970 in UTC.
    every: Annotated[str, Meta(max_length=40, description="an interval, such as 15m", extra=RELOAD)] = ""
    #: Name of the IANA time zone database in which `cron` is read.
    timezone: Annotated[str, Meta(max_length=64, description="a time zone, such as Europe/Berlin", extra=RELOAD)] = (
        "UTC"
    )
    #: No occurrence is earlier; a time with its zone.
    start: Annotated[Instant | None, Meta(extra=RELOAD)] = None
    #: No occurrence is later.
    end: Annotated[Instant | None, Meta(extra=RELOAD)] = None
    #: Each occurrence is due up to this number of seconds later, always the same number for the same one.
    jitter_s: Annotated[float, Meta(ge=0, le=3600, extra=RELOAD)] = 0
    #: Task of its jobs.
    task: Annotated[str, Meta(pattern=rf"\A{NAME_PATTERN}\Z", description="a task's name", extra=RELOAD)]
    #: Payload of each job; `{{scheduled_at}}` in a string is replaced by the time of the occurrence.
    payload: Annotated[dict[str, Any], Meta(extra=RELOAD)] = msgspec.field(default_factory=dict)
    #: None: that of the task.
    queue: Annotated[QueueName | None, Meta(extra=RELOAD)] = None
    #: Higher goes first; a point is worth a minute of waiting.
    priority: Annotated[int, Meta(ge=-1000, le=1000, extra=RELOAD)] = 0
    #: Names and values by which the jobs can be found again.
    labels: Annotated[dict[str, str], Meta(extra=RELOAD)] = msgspec.field(default_factory=dict)
    #: Seconds that one attempt may take; None: that of the task.
    timeout_s: Annotated[TaskTimeout | None, Meta(extra=RELOAD)] = None
    #: Attempts, the first included; None: that of the task.
    max_attempts: Annotated[Attempts | None, Meta(extra=RELOAD)] = None
    #: What becomes of an occurrence while jobs of the schedule have not ended.
    overlap: Annotated[Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"], Meta(extra=RELOAD)] = (
        "skip"
    )
    #: Which late occurrences start after an outage, a sleep or a step of the clock: the latest, none, the newest 100.
    catch_up: Annotated[Literal["one", "none", "all"], Meta(extra=RELOAD)] = "one"
    #: Occurrences that are later than this number of seconds are missed.
    catch_up_window_s: Annotated[int, Meta(ge=1, le=366 * DAY_S, extra=RELOAD)] = DAY_S
    #: Jobs in a row that end in error before the schedule is paused; 0: it never is.
    pause_after_failures: Annotated[int, Meta(ge=0, le=1000, extra=RELOAD)] = 0


class Board(Section, frozen=True, kw_only=True):
    #: Whether the board is measured. Without it, nothing waits for heat, and tasks with `needs_memory_mb` do not start.
    enabled: bool = True
    #: Directory under which /sys, /proc and /etc of the board are: another one in a container that has them elsewhere.
    prefix: Annotated[str, Meta(pattern=rf"\A/{_CHARACTER}*\Z", description="an absolute path")] = "/"
    #: Seconds between two measurements.
    period_s: Annotated[float, Meta(ge=0.1, le=60)] = 2
    #: MB of memory that no job with `needs_memory_mb` is given.
    memory_floor_mb: Annotated[int, Meta(ge=0, le=16_777_216, extra=RELOAD)] = 768
    #: Temperature in degrees Celsius from which on half of the slots of hot queues start jobs. 0: five degrees below
    #: the point at which the kernel slows the board down, or 80 if there is none.
    soft_c: Annotated[float, Meta(ge=0, le=150, extra=RELOAD)] = 0
    #: Temperature in degrees Celsius from which on no slot of a hot queue starts a job. 0: the point at which the
    #: kernel slows the board down, or 90 if there is none.
    hard_c: Annotated[float, Meta(ge=0, le=150, extra=RELOAD)] = 0
    #: Degrees below a limit at which it counts as left again.
    hysteresis_c: Annotated[float, Meta(ge=0, le=50, extra=RELOAD)] = 5


class Log(Section, frozen=True, kw_only=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(extra=RELOAD)] = "info"
    #: auto: text on a terminal, JSON otherwise.
    format: Literal["auto", "text", "json"] = "auto"


BUILTIN_TASKS = ("chat", "plan", "code", "tool", "rag", "embed")


class Config(Section, frozen=True, kw_only=True):
    #: Directory of all durable data. Empty in a file: see `default_data_dir`; once loaded, an absolute path.
    data_dir: Text = ""
    #: Seconds that running jobs have to finish when jobd stops; then they are handed back.
    drain_s: Annotated[float, Meta(ge=0, le=3600, extra=RELOAD)] = 20
    #: Modules that are imported at the start; their functions with the decorator `@task` are tasks.
    tasks_from: tuple[ModuleName, ...] = ()
    server: Server = Server()
    postgres: Postgres = Postgres()
    redis: Redis = Redis()
    auth: Auth = Auth()
    leases: Leases = Leases()
    retry: Retry = Retry()
    relay: RelayConfig = RelayConfig()
    limits: Limits = Limits()
    retention: Retention = Retention()
    #: `default` is always there.
    queues: dict[str, Queue] = msgspec.field(default_factory=lambda: {"default": Queue()})
    tasks: dict[str, Task] = msgspec.field(default_factory=lambda: {name: Task(run="mock") for name in BUILTIN_TASKS})
    tickets: Tickets = Tickets()
    schedules: dict[str, ScheduleConfig] = msgspec.field(default_factory=dict)
    openai: OpenAIConfig = OpenAIConfig()
    models: dict[str, ModelConfig] = msgspec.field(default_factory=dict)
    board: Board = Board()
    log: Log = Log()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and where each value came from."""

    config: Config
    #: Dotted key -> `default`, `file PATH`, `env JOBD_…` or `flag --…`, for every option.
    origins: dict[str, str]
    #: The file that was read, if any.
    path: Path | None
    #: Remarks for the operator, one line each, that ask for no action.
    notes: list[str]


class BrokenRule(NamedTuple):
    #: The options that contradict each other.
    keys: tuple[Key, ...]
    message: str


def broken_rules(config: Config) -> Iterator[BrokenRule]:
    """Rules between options; each option alone is valid already."""
    postgres, leases, retry = config.postgres, config.leases, config.retry
    servers: dict[str, Postgres | Redis] = {"postgres": postgres, "redis": config.redis}
    for name, server in servers.items():
        if server.url and server.program:
            yield BrokenRule(
                ((name, "program"), (name, "url")),
                f"{name}.program is what jobd runs when {name}.url is empty; leave one of them empty"
                f" (got {server.program!r})",
            )
    if not postgres.url and postgres.pool_size + RESERVED_CONNECTIONS > postgres.max_connections:
        yield BrokenRule(
            (("postgres", "pool_size"), ("postgres", "max_connections")),
            f"postgres.pool_size must leave {RESERVED_CONNECTIONS} of postgres.max_connections free"
            f" (got {postgres.pool_size} and {postgres.max_connections})",
        )
    if leases.heartbeat_s * 3 > leases.ttl_s:  # two heartbeats may be lost and the third still saves the lease
        yield BrokenRule(
            (("leases", "heartbeat_s"), ("leases", "ttl_s")),
            "leases.heartbeat_s must be at most a third of leases.ttl_s"
            f" (got {leases.heartbeat_s:.9g} and {leases.ttl_s})",
        )
    for name, queue in config.queues.items():
        if queue.deliver == "stream" and not queue.mirror:
            yield BrokenRule(
                (("queues", name, "deliver"), ("queues", name, "mirror")),
                f'queues.{name}.deliver is "stream", but queues.{name}.mirror is false: workers that read the stream'
                ' need the hashes of its jobs; set mirror = true, or deliver = "auto" or "direct"',
            )
    if retry.cap_s < retry.base_s:
        yield BrokenRule(
            (("retry", "cap_s"), ("retry", "base_s")),
            f"retry.cap_s must be at least retry.base_s (got {retry.cap_s:.9g} and {retry.base_s:.9g})",
        )
    if config.board.soft_c and config.board.hard_c and config.board.hard_c <= config.board.soft_c:
        yield BrokenRule(
            (("board", "soft_c"), ("board", "hard_c")),
            "board.hard_c must be higher than board.soft_c"
            f" (got {config.board.hard_c:.9g} and {config.board.soft_c:.9g})",
        )
    if bool(config.server.tls_cert) != bool(config.server.tls_key):
        missing = "tls_key" if config.server.tls_cert else "tls_cert"
        yield BrokenRule(
            (("server", "tls_cert"), ("server", "tls_key")), f"server.{missing} is missing: TLS needs both files"
        )
    names = [token.name for token in config.auth.tokens]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield BrokenRule((("auth", "tokens"),), f"auth.tokens must have different names (got {name} more than once)")
    for token in config.auth.tokens:
        if token.own_jobs and not {*token.scopes} <= OWN_JOBS_SCOPES:
            yield BrokenRule(
                (("auth", "tokens"),),
                f"auth.tokens: own_jobs of {token.name} goes with the scopes client and read only"
                f" (got {', '.join(token.scopes)}): the other scopes show jobs of others",
            )
    for name, task in config.tasks.items():
        yield from _broken_task_rules(name, task, config.queues)
        yield from _broken_retry_rules(name, task, retry)
    if config.models:
        from jobd.config.model_rules import broken_model_rules

        yield from broken_model_rules(config)
    for name, gate in config.tickets.gates.items():
        program = gate.argv[0]
        if not program or ("/" in program and not program.startswith("/")):
            yield BrokenRule(
                (("tickets", "gates", name, "argv"),),
                f"tickets.gates.{name}.argv must begin with an absolute path, or a name to find in PATH"
                f" (got {json.dumps(program)})",
            )
    if config.schedules:
        from jobd.config.schedule_rules import broken_schedule_rules  # most have none, and zones take a while to load

        yield from broken_schedule_rules(config)


_COMMAND_SETTINGS = ("argv", "env", "cwd", "max_processes", "max_output_mb", "kill_after_s")
#: Settings that only one kind of task reads; refused for others, where they would have no effect.
_ONLY_FOR: dict[str, TaskRun] = {
    **dict.fromkeys(("handler", "isolate"), "python"),
    **dict.fromkeys(_COMMAND_SETTINGS, "command"),
    **dict.fromkeys(("base_url", "model", "api_key_env", "system"), "openai"),
}
_PLAIN_TASK = Task(run="external")
#: Variables with credentials of jobd itself; so may have all variables that begin with JOBD_.
_OWN_VARIABLES = frozenset({"DATABASE_URL", "REDIS_URL", "PGPASSWORD"})


def _broken_task_rules(name: str, task: Task, queues: Mapping[str, Queue]) -> Iterator[BrokenRule]:
    def rule(setting: str, message: str) -> BrokenRule:
        return BrokenRule((("tasks", name, setting), ("tasks", name, "run")), f"tasks.{name}.{setting} {message}")

    for setting, run in _ONLY_FOR.items():
        if getattr(task, setting) != getattr(_PLAIN_TASK, setting) and task.run != run:
            yield rule(setting, f'is only for run = "{run}" (tasks.{name}.run is "{task.run}")')
    if task.recycle_jobs and not task.isolate:
        yield rule("recycle_jobs", "is only for isolate = true")
    if task.memory_mb and not (task.run == "command" or task.isolate):
        yield rule("memory_mb", f'is only for run = "command" and isolate = true (tasks.{name}.run is "{task.run}")')
    if task.needs_memory_mb and task.run == "external":
        yield rule("needs_memory_mb", "does not go with external: only slots of jobd reserve memory")
    if task.run == "python" and not _is_handler(task.handler):
        yield rule("handler", f'must be "pkg.mod:func" when run = "python" (got {json.dumps(task.handler)})')
    if task.run == "command" and not (task.argv and task.argv[0]):
        yield rule("argv", 'must name a program when run = "command"')
    if task.run == "command":
        yield from (rule(*broken) for broken in _broken_command_rules(task))
    if task.run == "openai" and not task.base_url:
        yield rule("base_url", 'must be an http:// or https:// URL when run = "openai" (got "")')
    elif task.run == "openai" and not is_base_url(task.base_url):
        yield rule("base_url", "must have a host, a port of at most 65535 if any, and neither ? nor #")
    elif task.run == "openai" and task.api_key_env and "@" in urlsplit(task.base_url).netloc:
        yield rule("api_key_env", "does not go with a password in base_url: a request has one of them")
    if task.run == "external" and task.queue in queues and queues[task.queue].slots:
        yield BrokenRule(
            (("tasks", name, "run"), ("tasks", name, "queue"), ("queues", task.queue, "slots")),
            f'tasks.{name}.run is "external", but queues.{task.queue}.slots is {queues[task.queue].slots}: those slots'
            " would take its jobs and cannot run them; give the task a queue with slots = 0",
        )
    if task.queue not in queues:
        yield BrokenRule(
            (("tasks", name, "queue"),),
            f"tasks.{name}.queue must be one of {', '.join(queues)} (got {json.dumps(task.queue)})",
        )


def _broken_retry_rules(name: str, task: Task, retry: Retry) -> Iterator[BrokenRule]:
    """The bounds of the backoff, where each may be the task's own or that of [retry]."""
    if task.retry_base_s is None and task.retry_cap_s is None:
        return
    own = (("tasks", name, "retry_base_s"), ("tasks", name, "retry_cap_s"))
    base, base_s = (
        ("retry.base_s", retry.base_s) if task.retry_base_s is None else (".".join(own[0]), task.retry_base_s)
    )
    cap, cap_s = ("retry.cap_s", retry.cap_s) if task.retry_cap_s is None else (".".join(own[1]), task.retry_cap_s)
    if cap_s < base_s:
        yield BrokenRule(own, f"{cap} must be at least {base} (got {cap_s:.9g} and {base_s:.9g})")


def _broken_command_rules(task: Task) -> Iterator[tuple[str, str]]:
    program = task.argv[0] if task.argv else ""
    if "/" in program and not program.startswith("/"):
        yield "argv", f"must begin with an absolute path, or a name to find in PATH (got {json.dumps(program)})"
    if task.cwd and not task.cwd.startswith("/"):
        yield "cwd", f"must be an absolute path (got {json.dumps(task.cwd)})"
    for variable in task.env:
        if is_own_variable(variable):
            yield "env", f"must not pass on {variable}, which is jobd's own; give the program another of its own"


def is_own_variable(name: str) -> bool:
    """Whether the variable may hold credentials of jobd itself."""
    return name.startswith("JOBD_") or name in _OWN_VARIABLES


def is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0 and not {"?", "#"} & set(text)
    except ValueError:  # a port that is no number or too large, half of an IPv6 address
        return False


def _is_handler(text: str) -> bool:
    module, _, function = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), function))
