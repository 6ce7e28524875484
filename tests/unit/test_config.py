"""The Structs, the rules between options, and the files that document them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from jobd.config.load import load
from jobd.config.model import (
    BUILTIN_TASKS,
    Auth,
    Board,
    Config,
    Leases,
    Postgres,
    Queue,
    Retry,
    Task,
    Token,
    broken_rules,
)
from jobd.config.options import Option, expectation, is_marked, options

ROOT = Path(__file__).parents[2]
PROFILES = sorted((ROOT / "config").glob("*.toml"))
HASH = "0123456789abcdef" * 4

EVERY_OPTION = list(options(["default"], BUILTIN_TASKS).values())


def token(name: str) -> Token:
    return Token(name=name, sha256=HASH, scopes=("client",))


def with_task(task: Task) -> Config:
    return Config(tasks={"t": task})


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(postgres=Postgres(pool_size=35, max_connections=40)),
        Config(postgres=Postgres(pool_size=400, url="postgresql://db/jobd")),
        Config(leases=Leases(ttl_s=3, heartbeat_s=1)),
        Config(leases=Leases(ttl_s=1, heartbeat_s=0.1)),
        Config(retry=Retry(base_s=5, cap_s=5)),
        Config(auth=Auth(tokens=(token("a"), token("b")))),
        with_task(Task(run="python", handler="pkg.mod:func", isolate=True)),
        with_task(Task(run="python", handler="mod:func", isolate=True, recycle_jobs=9, memory_mb=512)),
        with_task(Task(run="python", handler="mod:func")),
        with_task(Task(run="command", argv=("ls",), memory_mb=64)),
        with_task(Task(run="mock", lease_ttl_s=1)),
        with_task(Task(run="mock", retry_base_s=0, retry_cap_s=0)),
        with_task(Task(run="mock", retry_base_s=300)),
        with_task(Task(run="mock", retry_cap_s=1)),
        with_task(Task(run="command", argv=("/bin/tool", ""))),
        with_task(Task(run="openai", base_url="http://127.0.0.1:8080/v1")),
        with_task(Task(run="mock")),
        Config(queues={"far": Queue(slots=0)}, tasks={"t": Task(run="external", queue="far", timeout_s=0.5)}),
        Config(queues={"default": Queue(), "gpu": Queue(slots=0)}, tasks={"t": Task(run="mock", queue="gpu")}),
    ],
)
def test_consistent_config_breaks_no_rule(config: Config) -> None:
    assert list(broken_rules(config)) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Config(postgres=Postgres(pool_size=36, max_connections=40)),
            "postgres.pool_size must leave 5 of postgres.max_connections free (got 36 and 40)",
        ),
        (
            Config(leases=Leases(ttl_s=60, heartbeat_s=30)),
            "leases.heartbeat_s must be at most a third of leases.ttl_s (got 30 and 60)",
        ),
        (
            Config(leases=Leases(ttl_s=60, heartbeat_s=20.5)),
            "leases.heartbeat_s must be at most a third of leases.ttl_s (got 20.5 and 60)",
        ),
        (
            Config(queues={"default": Queue(deliver="stream", mirror=False)}),
            'queues.default.deliver is "stream", but queues.default.mirror is false: workers that read the stream need'
            ' the hashes of its jobs; set mirror = true, or deliver = "auto" or "direct"',
        ),
        (Config(retry=Retry(base_s=10, cap_s=9)), "retry.cap_s must be at least retry.base_s (got 9 and 10)"),
        (
            Config(auth=Auth(tokens=(token("a"), token("b"), token("a")))),
            "auth.tokens must have different names (got a more than once)",
        ),
        (
            Config(auth=Auth(tokens=(Token(name="a", sha256="0" * 64, scopes=("client", "worker"), own_jobs=True),))),
            "auth.tokens: own_jobs of a goes with the scopes client and read only (got client, worker): the other"
            " scopes show jobs of others",
        ),
        (with_task(Task(run="mock", queue="gpu")), 'tasks.t.queue must be one of default (got "gpu")'),
        (
            with_task(Task(run="python", handler="f:g", argv=("ls",))),
            'tasks.t.argv is only for run = "command" (tasks.t.run is "python")',
        ),
        (
            with_task(Task(run="command", argv=("ls",), handler="f:g")),
            'tasks.t.handler is only for run = "python" (tasks.t.run is "command")',
        ),
        (
            with_task(Task(run="mock", isolate=True)),
            'tasks.t.isolate is only for run = "python" (tasks.t.run is "mock")',
        ),
        (
            with_task(Task(run="external")),
            'tasks.t.run is "external", but queues.default.slots is 4: those slots would take its jobs and cannot run'
            " them; give the task a queue with slots = 0",
        ),
        (
            with_task(Task(run="mock", base_url="http://h/v1")),
            'tasks.t.base_url is only for run = "openai" (tasks.t.run is "mock")',
        ),
        (
            with_task(Task(run="python", handler="f:g", recycle_jobs=1)),
            "tasks.t.recycle_jobs is only for isolate = true",
        ),
        (
            with_task(Task(run="python", handler="f:g", memory_mb=1)),
            'tasks.t.memory_mb is only for run = "command" and isolate = true (tasks.t.run is "python")',
        ),
        (
            Config(queues={"default": Queue(slots=0)}, tasks={"t": Task(run="external", needs_memory_mb=1)}),
            "tasks.t.needs_memory_mb does not go with external: only slots of jobd reserve memory",
        ),
        (
            Config(board=Board(soft_c=80, hard_c=80)),
            "board.hard_c must be higher than board.soft_c (got 80 and 80)",
        ),
        (
            with_task(Task(run="mock", retry_base_s=301)),
            "retry.cap_s must be at least tasks.t.retry_base_s (got 300 and 301)",
        ),
        (
            with_task(Task(run="mock", retry_cap_s=0.5)),
            "tasks.t.retry_cap_s must be at least retry.base_s (got 0.5 and 1)",
        ),
        (
            with_task(Task(run="mock", retry_base_s=3, retry_cap_s=2)),
            "tasks.t.retry_cap_s must be at least tasks.t.retry_base_s (got 2 and 3)",
        ),
        (with_task(Task(run="command")), 'tasks.t.argv must name a program when run = "command"'),
        (with_task(Task(run="command", argv=("", "x"))), 'tasks.t.argv must name a program when run = "command"'),
        (
            with_task(Task(run="openai")),
            'tasks.t.base_url must be an http:// or https:// URL when run = "openai" (got "")',
        ),
    ],
)
def test_contradiction_is_told_with_both_sides(config: Config, message: str) -> None:
    assert [rule.message for rule in broken_rules(config)] == [message]


@pytest.mark.parametrize(
    "handler", ["", "mod", "mod:", ":func", "pkg..mod:func", "pkg.mod:a.b", "a b:c", "m:f()", "m:f:g"]
)
def test_python_task_needs_a_module_and_a_function(handler: str) -> None:
    (rule,) = broken_rules(with_task(Task(run="python", handler=handler)))

    assert rule.message.startswith('tasks.t.handler must be "pkg.mod:func"')


def test_exactly_these_options_may_change_while_running() -> None:
    reloadable = {option.dotted for option in EVERY_OPTION if is_marked(option.kind, "reload")}

    assert reloadable == {
        "drain_s",
        "auth.tokens",
        "retry.max_attempts",
        "retry.max_interruptions",
        "retry.base_s",
        "retry.cap_s",
        "limits.payload_bytes",
        "limits.result_bytes",
        "limits.inline_result_bytes",
        "limits.job_events_mb",
        "limits.min_free_mb",
        "limits.max_queued",
        "limits.job_ttl_s",
        "limits.requests_per_token",
        "retention.jobs_s",
        "retention.tickets_s",
        "retention.gone_s",
        "retention.rollups_s",
        "retention.every_s",
        "tickets.four_eyes",
        "openai.batch_keep_s",
        "openai.batch_priority",
        "openai.max_file_bytes",
        "openai.reader_grace_s",
        "openai.keep_alive_s",
        "openai.max_model_wait_s",
        "board.memory_floor_mb",
        "board.soft_c",
        "board.hard_c",
        "board.hysteresis_c",
        "log.level",
    }


@pytest.mark.parametrize("option", EVERY_OPTION, ids=lambda option: option.dotted)
def test_every_option_says_what_it_expects_within_both_bounds(option: Option) -> None:
    assert "None" not in expectation(option.kind)


def test_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Config().drain_s = 1  # type: ignore[misc]


def test_reference_file_equals_the_defaults() -> None:
    reference = load(ROOT / "jobd.toml", {"HOME": "/home/u"}, {})
    defaults = load(None, {"HOME": "/home/u"}, {}, search=())

    assert reference.config == defaults.config
    assert msgspec.structs.replace(reference.config, data_dir="") == Config()


def test_reference_file_names_every_option() -> None:
    text = (ROOT / "jobd.toml").read_text()
    tables = dict(re.findall(r"^\[([\w.]+)\]\n(.*?)(?=^\[|\Z)", text, flags=re.MULTILINE | re.DOTALL))
    tables[""] = text.partition("\n[")[0]

    # One task in full is enough; the other built-in ones have the same options.
    for option in options(["default"], ["chat"]).values():
        table = tables[".".join(option.key[:-1])]
        assert re.search(rf"^(# )?{option.key[-1]} = ", table, flags=re.MULTILINE), option.dotted


def test_there_are_three_profiles() -> None:
    assert [path.stem for path in PROFILES] == ["cluster", "dev", "jetson"]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profile_loads_as_it_is(path: Path) -> None:
    loaded = load(path, {}, {})

    assert loaded.path == path
    assert loaded.config != load(None, {}, {}, search=()).config
    assert loaded.notes == []


def test_cluster_profile_takes_its_servers_from_the_environment() -> None:
    env = {"JOBD_POSTGRES_URL": "postgresql://u:p@db/jobd", "JOBD_REDIS_URL": "rediss://:p@redis/0"}

    config = load(ROOT / "config/cluster.toml", env, {}).config

    assert (config.postgres.url, config.redis.url) == (env["JOBD_POSTGRES_URL"], env["JOBD_REDIS_URL"])
