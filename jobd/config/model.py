"""The configuration as Structs: every option once, with its meaning, type, range and default.

The field is the only declaration. The loader takes from it the key, the name of the environment variable and the
words of an error; `extra` says whether an option may change in a running daemon (`reload`) and whether its value may
carry a password (`secret`). Rules between options are in `broken_rules`.

A bound on every number keeps typing slips (a minute of milliseconds, a missing comma) from becoming settings; an
upper bound on a float also keeps `inf` and `nan` out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias
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

# Text that no system call takes is refused here and not where it is used: NUL, and bytes that were not UTF-8.
_CHARACTER = r"[^\x00\ud800-\udfff]"
_SOLID = r"[^\s\x00\ud800-\udfff]"

Text: TypeAlias = Annotated[str, Meta(pattern=rf"\A{_CHARACTER}*\Z", description="text")]
#: Seconds of a day.
DAY_S = 86_400

Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
HostName: TypeAlias = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,253}\Z", description="a host name, without port")
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
RetryBase: TypeAlias = Annotated[float, Meta(ge=0, le=DAY_S)]
RetryCap: TypeAlias = Annotated[float, Meta(ge=0, le=7 * DAY_S)]
LeaseTtl: TypeAlias = Annotated[int, Meta(ge=1, le=DAY_S)]
TaskRun: TypeAlias = Literal["python", "command", "openai", "mock", "external"]
Scope: TypeAlias = Literal["client", "worker", "admin"]

#: The path of an option: ("server", "port"), ("queues", "default", "slots").
Key: TypeAlias = tuple[str, ...]


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A table of the file. An unknown key is an error, since a misspelt option would silently keep its default."""


class Server(Section, frozen=True, kw_only=True):
    #: Address that the HTTP gateway listens on.
    host: Annotated[str, Meta(pattern=rf"\A{_SOLID}+\Z", description="a host name or address")] = "127.0.0.1"
    #: 0: any free port.
    port: Annotated[int, Meta(ge=0, le=65_535)] = 7433
    #: A unix socket to listen on as well; empty: none.
    socket: Text = ""
    #: Certificate (with its chain) and private key, as PEM files: the address then speaks TLS only. Both or none.
    tls_cert: Text = ""
    tls_key: Text = ""
    #: Names that callers may use for this server, besides `host`, localhost and addresses.
    allowed_hosts: tuple[HostName, ...] = ()
    #: Serve an address that others can reach although no token exists: everyone there may do everything.
    insecure: bool = False


class Postgres(Section, frozen=True, kw_only=True):
    #: Empty: jobd runs its own Postgres under `data_dir`.
    url: Annotated[
        str,
        Meta(
            pattern=rf"\A(postgres(ql)?://{_SOLID}+)?\Z",
            description="empty (embedded) or a postgres:// or postgresql:// URL",
            extra=SECRET,
        ),
    ] = ""
    #: Memory that the embedded server keeps for pages.
    shared_buffers_mb: Annotated[int, Meta(ge=8, le=65_536)] = 64
    #: Connections that the embedded server accepts.
    max_connections: Annotated[int, Meta(ge=6, le=1000)] = 40
    #: Connections that this process opens, to either kind of server. Fewer than four and work waits for the janitor, a
    #: transaction of tickets and a slow reader.
    pool_size: Annotated[int, Meta(ge=4, le=500)] = 8


class Redis(Section, frozen=True, kw_only=True):
    #: Empty: jobd runs its own Valkey under `data_dir`.
    url: Annotated[
        str,
        Meta(
            pattern=rf"\A((rediss?|unix)://{_SOLID}+)?\Z",
            description="empty (embedded) or a redis://, rediss:// or unix:// URL",
            extra=SECRET,
        ),
    ] = ""
    #: Memory that the embedded server may use; when full it refuses writes and evicts nothing.
    maxmemory_mb: Annotated[int, Meta(ge=16, le=65_536)] = 128


class Token(Section, frozen=True, kw_only=True):
    #: Who holds it; logs and the audit table use this name.
    name: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9_.@-]{1,64}\Z", description="1 to 64 letters, digits or any of _ . @ -")
    ]
    #: SHA-256 of the token; the token itself is stored nowhere. One spelling, so that comparing is comparing text.
    sha256: Annotated[
        str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="64 lower-case hexadecimal digits", extra=SECRET)
    ]
    #: What its holder may call.
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    #: The queues that it may work on; empty: all.
    queues: tuple[QueueName, ...] = ()


class Auth(Section, frozen=True, kw_only=True):
    tokens: Annotated[tuple[Token, ...], Meta(extra=RELOAD)] = ()


class Leases(Section, frozen=True, kw_only=True):
    #: How long a worker may be silent before its job goes to another.
    ttl_s: Annotated[int, Meta(ge=1, le=DAY_S)] = 60
    #: How often the lease of a running job is renewed.
    heartbeat_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 20


class Retry(Section, frozen=True, kw_only=True):
    #: Attempts of a job, the first included, unless its task or the job says otherwise.
    max_attempts: Annotated[int, Meta(ge=1, le=100, extra=RELOAD)] = 3
    #: First delay of the exponential backoff in seconds; each delay is drawn at random below its bound (full jitter).
    base_s: Annotated[float, Meta(ge=0, le=DAY_S, extra=RELOAD)] = 1
    #: Longest delay of the backoff in seconds.
    cap_s: Annotated[float, Meta(ge=0, le=7 * DAY_S, extra=RELOAD)] = 300


class RelayConfig(Section, frozen=True, kw_only=True):
    #: Unclaimed messages kept in each stream. More wait in Postgres, where a late urgent job can still overtake.
    stream_window: Annotated[int, Meta(ge=1, le=100_000)] = 500


class Limits(Section, frozen=True, kw_only=True):
    #: Largest payload of a job.
    payload_bytes: Annotated[int, Meta(ge=1, le=16 * 1024 * 1024, extra=RELOAD)] = 204_800
    #: Largest result that a worker may report.
    result_bytes: Annotated[int, Meta(ge=1, le=64_000_000, extra=RELOAD)] = 64_000_000
    #: Larger results go to a file under `data_dir`, and the row names it.
    inline_result_bytes: Annotated[int, Meta(ge=1, le=1024 * 1024, extra=RELOAD)] = 65_536
    #: Events that a job may emit, in MB, all its attempts together; more are dropped, and one event says how many.
    job_events_mb: Annotated[int, Meta(ge=1, le=1_000_000, extra=RELOAD)] = 100
    #: Free space of `data_dir` in MB below which no new jobs are taken, nor log lines and tokens kept. 0: no check.
    min_free_mb: Annotated[int, Meta(ge=0, le=10_000_000, extra=RELOAD)] = 100
    #: Waiting jobs in a queue before enqueue answers 429.
    max_queued: Annotated[int, Meta(ge=1, le=10_000_000, extra=RELOAD)] = 100_000
    #: Seconds that Redis keeps the hash and events of a job after its last change, unless the job has its own `ttl_s`.
    job_ttl_s: Annotated[int, Meta(ge=1, le=30 * DAY_S, extra=RELOAD)] = DAY_S
    #: Open HTTP connections; some more are kept for /livez and /readyz.
    max_connections: Annotated[int, Meta(ge=10, le=100_000)] = 4000
    #: Requests of one token that may run at once, streams and waiting workers included.
    requests_per_token: Annotated[int, Meta(ge=1, le=100_000, extra=RELOAD)] = 3000


class Retention(Section, frozen=True, kw_only=True):
    #: How long a job is kept after its end, with its result, attempts and events.
    jobs_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 7 * DAY_S
    #: How long a ticket is kept after it became DONE, with all that it has left behind.
    tickets_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 90 * DAY_S
    #: How long it is then remembered that there was such a job or ticket.
    gone_s: Annotated[int, Meta(ge=1, le=3650 * DAY_S, extra=RELOAD)] = 30 * DAY_S
    #: Seconds between two sweeps of the janitor.
    every_s: Annotated[float, Meta(ge=1, le=3600, extra=RELOAD)] = 60


class Queue(Section, frozen=True, kw_only=True):
    #: Jobs that this process runs at once. 0: only HTTP and raw Redis workers serve the queue.
    slots: Annotated[int, Meta(ge=0, le=1024)] = 4


class Task(Section, frozen=True, kw_only=True):
    #: How a job of this task is run; `external`: by HTTP or raw Redis workers only.
    run: TaskRun
    #: Where its jobs wait unless the job names another queue.
    queue: Text = "default"
    #: python: the function, as "pkg.mod:func".
    handler: Text = ""
    #: python: in a child process that stays warm, so that a crash or a held GIL does not reach the daemon.
    isolate: bool = False
    #: command: the program and its arguments; no shell reads them.
    argv: tuple[Text, ...] = ()
    #: command: variables of jobd's environment that it gets besides PATH, HOME, LANG, LC_* and TZ.
    env: tuple[VariableName, ...] = ()
    #: command: where it starts; empty: in a temporary directory of its own.
    cwd: Text = ""
    #: python with `isolate`: jobs after which another process takes over; 0: however many.
    recycle_jobs: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: command: address space of each of its processes. python with `isolate`: a process that is larger after a job,
    #: as resident memory, is replaced. 0: as much as jobd may have.
    memory_mb: Annotated[int, Meta(ge=0, le=16_777_216)] = 0
    #: command: processes and threads that it may add to those of jobd's user; 0: as many as the user may have.
    max_processes: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: command: largest result; of a longer output only the end is kept.
    max_output_mb: Annotated[float, Meta(gt=0, le=64)] = 1
    #: command: time between SIGTERM and SIGKILL for what has to stop.
    kill_after_s: Annotated[float, Meta(ge=0, le=600)] = 5
    #: openai: the server's address, up to and including /v1.
    base_url: Annotated[
        str, Meta(pattern=rf"\A(https?://{_SOLID}+)?\Z", description="an http:// or https:// URL", extra=SECRET)
    ] = ""
    #: openai: the model to ask for unless the job names one; empty: the server's own choice.
    model: Text = ""
    #: openai: the variable that holds the server's API key; empty: none is sent. Hidden like a secret, since a key that
    #: is written here by mistake must not be shown.
    api_key_env: Annotated[
        str,
        Meta(
            pattern=r"\A([A-Z_][A-Z0-9_]*)?\Z",
            description="the name of an environment variable in capitals, not the key itself",
            extra=SECRET,
        ),
    ] = ""
    #: openai: the system message of jobs that bring none.
    system: Text = ""
    #: An attempt that runs longer is stopped and counts as failed.
    timeout_s: Annotated[float, Meta(gt=0, le=30 * DAY_S)] = 3600
    #: None: `retry.max_attempts`.
    max_attempts: Attempts | None = None
    #: None: `retry.base_s` and `retry.cap_s`.
    retry_base_s: RetryBase | None = None
    retry_cap_s: RetryCap | None = None
    #: How long a worker may be silent that runs one of its jobs; None: `leases.ttl_s`. The lease is renewed every
    #: `leases.heartbeat_s`, or three times in this time if that is more often.
    lease_ttl_s: LeaseTtl | None = None


class GateCommand(Section, frozen=True, kw_only=True):
    #: The program and its arguments; no shell reads them. It gets the output on stdin and passes it with exit code 0.
    argv: Annotated[tuple[Text, ...], Meta(min_length=1)]
    #: One that runs longer is ended, and the output has failed.
    timeout_s: Annotated[float, Meta(gt=0, le=DAY_S)] = 60


class Tickets(Section, frozen=True, kw_only=True):
    #: Whether this node runs the ticket pollers.
    enabled: bool = True
    #: Pause between two looks for what other nodes left to the ticket pollers.
    poll_s: Annotated[float, Meta(gt=0, le=3600)] = 1
    #: Whether the author of a ticket is refused as the one who approves it.
    four_eyes: Annotated[bool, Meta(extra=RELOAD)] = False
    #: Programs that a ticket may name as a gate.
    gates: dict[str, GateCommand] = msgspec.field(default_factory=dict)


class Log(Section, frozen=True, kw_only=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(extra=RELOAD)] = "info"
    #: auto: text on a terminal, JSON otherwise.
    format: Literal["auto", "text", "json"] = "auto"


BUILTIN_TASKS = ("chat", "plan", "code", "tool", "rag", "embed")


class Config(Section, frozen=True, kw_only=True):
    #: Where everything durable lives. Empty in a file: see `default_data_dir`; once loaded, an absolute path.
    data_dir: Text = ""
    #: How long running jobs may take to finish once a stop is asked for; then they are handed back.
    drain_s: Annotated[float, Meta(ge=0, le=3600, extra=RELOAD)] = 20
    #: Modules that are imported at the start; the functions in them that say `@task` are tasks.
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
    log: Log = Log()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and how it came to be."""

    config: Config
    #: Dotted key -> `default`, `file PATH`, `env JOBD_…` or `flag --…`, for every option.
    origins: dict[str, str]
    #: The file that was read, if any.
    path: Path | None
    #: One line each: what the operator should know and need not act on.
    notes: list[str]


class BrokenRule(NamedTuple):
    #: The options that contradict each other.
    keys: tuple[Key, ...]
    message: str


def broken_rules(config: Config) -> Iterator[BrokenRule]:
    """What no single option can know."""
    postgres, leases, retry = config.postgres, config.leases, config.retry
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
    if retry.cap_s < retry.base_s:
        yield BrokenRule(
            (("retry", "cap_s"), ("retry", "base_s")),
            f"retry.cap_s must be at least retry.base_s (got {retry.cap_s:.9g} and {retry.base_s:.9g})",
        )
    if bool(config.server.tls_cert) != bool(config.server.tls_key):
        missing = "tls_key" if config.server.tls_cert else "tls_cert"
        yield BrokenRule(
            (("server", "tls_cert"), ("server", "tls_key")), f"server.{missing} is missing: TLS needs both files"
        )
    names = [token.name for token in config.auth.tokens]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield BrokenRule((("auth", "tokens"),), f"auth.tokens must have different names (got {name} more than once)")
    for name, task in config.tasks.items():
        yield from _broken_task_rules(name, task, config.queues)
        yield from _broken_retry_rules(name, task, retry)
    for name, gate in config.tickets.gates.items():
        program = gate.argv[0]
        if not program or ("/" in program and not program.startswith("/")):
            yield BrokenRule(
                (("tickets", "gates", name, "argv"),),
                f"tickets.gates.{name}.argv must begin with an absolute path, or a name to find in PATH"
                f" (got {json.dumps(program)})",
            )


_COMMAND_SETTINGS = ("argv", "env", "cwd", "max_processes", "max_output_mb", "kill_after_s")
#: Settings that only one way of running reads; elsewhere they would be believed and do nothing.
_ONLY_FOR: dict[str, TaskRun] = {
    **dict.fromkeys(("handler", "isolate"), "python"),
    **dict.fromkeys(_COMMAND_SETTINGS, "command"),
    **dict.fromkeys(("base_url", "model", "api_key_env", "system"), "openai"),
}
_PLAIN_TASK = Task(run="external")
#: Where jobd itself connects to; every variable that begins with JOBD_ may hold the same, or a token.
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
    if task.run == "python" and not _is_handler(task.handler):
        yield rule("handler", f'must be "pkg.mod:func" when run = "python" (got {json.dumps(task.handler)})')
    if task.run == "command" and not (task.argv and task.argv[0]):
        yield rule("argv", 'must name a program when run = "command"')
    if task.run == "command":
        yield from (rule(*broken) for broken in _broken_command_rules(task))
    if task.run == "openai" and not task.base_url:
        yield rule("base_url", 'must be an http:// or https:// URL when run = "openai" (got "")')
    elif task.run == "openai" and not _is_base_url(task.base_url):
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
    """Each side may be the task's own or everybody's."""
    if task.retry_base_s is None and task.retry_cap_s is None:
        return
    own = (("tasks", name, "retry_base_s"), ("tasks", name, "retry_cap_s"))
    base_key, base_s = ("retry.base_s", retry.base_s) if task.retry_base_s is None else (_of(own[0]), task.retry_base_s)
    cap_key, cap_s = ("retry.cap_s", retry.cap_s) if task.retry_cap_s is None else (_of(own[1]), task.retry_cap_s)
    if cap_s < base_s:
        yield BrokenRule(own, f"{cap_key} must be at least {base_key} (got {cap_s:.9g} and {base_s:.9g})")


def _of(key: Key) -> str:
    return ".".join(key)


def _broken_command_rules(task: Task) -> Iterator[tuple[str, str]]:
    program = task.argv[0] if task.argv else ""
    if "/" in program and not program.startswith("/"):
        yield "argv", f"must begin with an absolute path, or a name to find in PATH (got {json.dumps(program)})"
    if task.cwd and not task.cwd.startswith("/"):
        yield "cwd", f"must be an absolute path (got {json.dumps(task.cwd)})"
    for variable in task.env:
        if variable.startswith("JOBD_") or variable in _OWN_VARIABLES:
            yield "env", f"must not pass on {variable}, which is jobd's own; give the program another of its own"


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0 and not {"?", "#"} & set(text)
    except ValueError:  # a port that is no number or too large, half of an IPv6 address
        return False


def _is_handler(text: str) -> bool:
    module, _, function = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), function))
