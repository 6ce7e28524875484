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
Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
TaskRun: TypeAlias = Literal["python", "command", "openai", "mock", "external"]
Scope: TypeAlias = Literal["client", "worker", "admin"]

DAY_S = 86_400

#: The path of an option: ("server", "port"), ("queues", "default", "slots").
Key: TypeAlias = tuple[str, ...]


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A table of the file. An unknown key is an error, since a misspelt option would silently keep its default."""


class Server(Section, frozen=True, kw_only=True):
    #: Address that the HTTP gateway listens on.
    host: Annotated[str, Meta(pattern=rf"\A{_SOLID}+\Z", description="a host name or address")] = "127.0.0.1"
    #: 0: any free port.
    port: Annotated[int, Meta(ge=0, le=65_535)] = 7433


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
    #: Connections that this process opens, to either kind of server.
    pool_size: Annotated[int, Meta(ge=1, le=500)] = 8


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
    #: Delays double from here, and are drawn at random below that.
    base_s: Annotated[float, Meta(ge=0, le=DAY_S, extra=RELOAD)] = 1
    #: No delay is longer.
    cap_s: Annotated[float, Meta(ge=0, le=7 * DAY_S, extra=RELOAD)] = 300


class Relay(Section, frozen=True, kw_only=True):
    #: Unclaimed messages kept in each stream. More wait in Postgres, where a late urgent job can still overtake.
    stream_window: Annotated[int, Meta(ge=1, le=100_000)] = 500


class Limits(Section, frozen=True, kw_only=True):
    #: Largest payload of a job.
    payload_bytes: Annotated[int, Meta(ge=1, le=16 * 1024 * 1024, extra=RELOAD)] = 204_800
    #: Waiting jobs in a queue before enqueue answers 429.
    max_queued: Annotated[int, Meta(ge=1, le=10_000_000, extra=RELOAD)] = 100_000


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
    #: openai: the server's address, up to and including /v1.
    base_url: Annotated[
        str, Meta(pattern=rf"\A(https?://{_SOLID}+)?\Z", description="an http:// or https:// URL", extra=SECRET)
    ] = ""
    #: An attempt that runs longer is stopped and counts as failed.
    timeout_s: Annotated[float, Meta(gt=0, le=30 * DAY_S)] = 3600
    #: None: `retry.max_attempts`.
    max_attempts: Attempts | None = None


class Tickets(Section, frozen=True, kw_only=True):
    #: Pause of each ticket poller between two looks.
    poll_s: Annotated[float, Meta(gt=0, le=3600)] = 1


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
    server: Server = Server()
    postgres: Postgres = Postgres()
    redis: Redis = Redis()
    auth: Auth = Auth()
    leases: Leases = Leases()
    retry: Retry = Retry()
    relay: Relay = Relay()
    limits: Limits = Limits()
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
    names = [token.name for token in config.auth.tokens]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield BrokenRule((("auth", "tokens"),), f"auth.tokens must have different names (got {name} more than once)")
    for name, task in config.tasks.items():
        yield from _broken_task_rules(name, task, config.queues)


#: Settings that only one way of running reads; elsewhere they would be believed and do nothing.
_ONLY_FOR: dict[str, TaskRun] = {"handler": "python", "isolate": "python", "argv": "command", "base_url": "openai"}


def _broken_task_rules(name: str, task: Task, queues: Mapping[str, Queue]) -> Iterator[BrokenRule]:
    def rule(setting: str, message: str) -> BrokenRule:
        return BrokenRule((("tasks", name, setting), ("tasks", name, "run")), f"tasks.{name}.{setting} {message}")

    for setting, run in _ONLY_FOR.items():
        if getattr(task, setting) and task.run != run:
            yield rule(setting, f'is only for run = "{run}" (tasks.{name}.run is "{task.run}")')
    if task.run == "python" and not _is_handler(task.handler):
        yield rule("handler", f'must be "pkg.mod:func" when run = "python" (got {json.dumps(task.handler)})')
    if task.run == "command" and not (task.argv and task.argv[0]):
        yield rule("argv", 'must name a program when run = "command"')
    if task.run == "openai" and not task.base_url:
        yield rule("base_url", 'must be an http:// or https:// URL when run = "openai" (got "")')
    if task.queue not in queues:
        yield BrokenRule(
            (("tasks", name, "queue"),),
            f"tasks.{name}.queue must be one of {', '.join(queues)} (got {json.dumps(task.queue)})",
        )


def _is_handler(text: str) -> bool:
    module, _, function = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), function))
