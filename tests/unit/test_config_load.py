"""The configuration file: which one is read, and what is said when a key, a value or a rule is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jobd.config.load import MAX_FILE_BYTES, load, variable_name
from jobd.config.model import BUILTIN_TASKS, Config, Queue, Task
from jobd.config.options import options
from jobd.errors import ConfigError
from tests.unit.config_files import config_of, error_of, file_error

HASH = "0123456789abcdef" * 4
CANARY = "s3cr3t-canary"
TOKEN = {"name": "ci", "sha256": HASH, "scopes": ["client", "worker"]}

KEYS = [option.dotted for option in options(["default"], BUILTIN_TASKS).values()]
VARIABLES = [variable_name(key) for key in options(["default"], BUILTIN_TASKS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobd.toml"


# --- where the file is


def test_without_any_file_the_defaults_hold() -> None:
    loaded = load(None, {"HOME": "/home/u"}, {}, search=(), uid=1000)

    assert loaded.path is None
    assert loaded.config == Config(data_dir="/home/u/.local/share/jobd")
    assert set(loaded.origins.values()) == {"default"}
    assert list(loaded.origins) == KEYS


def test_first_existing_file_of_the_search_is_read(tmp_path: Path) -> None:
    here, system = tmp_path / "here.toml", tmp_path / "system.toml"
    system.write_text("drain_s = 2")

    assert load(None, {}, {}, search=(here, system)).path == system
    here.write_text("drain_s = 1")
    assert load(None, {}, {}, search=(here, system)).path == here


def test_named_file_wins_over_variable_and_variable_over_search(tmp_path: Path) -> None:
    named, variable, searched = (tmp_path / name for name in ("named", "variable", "searched"))
    for number, file in enumerate((named, variable, searched)):
        file.write_text(f"drain_s = {number}")
    env = {"JOBD_CONFIG": str(variable)}

    assert load(named, env, {}, search=(searched,)).config.drain_s == 0
    assert load(None, env, {}, search=(searched,)).config.drain_s == 1
    assert load(None, {}, {}, search=(searched,)).config.drain_s == 2


def test_file_named_by_variable_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"

    assert error_of(None, {"JOBD_CONFIG": str(missing)}) == (
        f"{missing}: cannot read the configuration: No such file or directory"
    )


def test_searched_file_that_is_there_but_broken_is_not_passed_over(tmp_path: Path) -> None:
    dangling = tmp_path / "jobd.toml"
    dangling.symlink_to(tmp_path / "nowhere")

    with pytest.raises(ConfigError, match="No such file"):
        load(None, {}, {}, search=(dangling,))


# --- files that are none


def test_empty_file_is_fine(path: Path) -> None:
    path.touch()

    assert load(path, {}, {}, uid=0).config == Config(data_dir="/var/lib/jobd")


def test_file_may_begin_with_a_byte_order_mark(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfdrain_s = 7\r\n")

    assert load(path, {}, {}).config.drain_s == 7


def test_directory_is_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path) == "cannot read the configuration: Is a directory"


def test_path_with_nul_is_refused() -> None:
    assert "cannot read the configuration" in error_of(Path("a\0b"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_refused(path: Path) -> None:
    path.touch(mode=0)

    assert error_of(path) == "cannot read the configuration: Permission denied"


def test_binary_file_is_refused(path: Path) -> None:
    path.write_bytes(b"a = 1\n\xff\xfe\x00")

    assert error_of(path) == "not a text file: byte 7 is not UTF-8"


def test_huge_file_is_refused_without_reading_all_of_it(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * MAX_FILE_BYTES)

    assert error_of(path) == "over 1000000 bytes, which no configuration is"


def test_toml_error_keeps_its_line_and_column(path: Path) -> None:
    message = file_error(path, "drain_s = 1\n[server\n")

    assert message.startswith("not valid TOML: ")
    assert "(at line 2, column 8)" in message


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, "a = " + "{a=" * 50_000, "drain_s = " + "9" * 5000, "drain_s = 0x" + "f" * 9000]
)
def test_text_that_strains_the_parser_is_a_plain_error(path: Path, text: str) -> None:
    assert len(file_error(path, text)) < 300


# --- unknown keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", "unknown key server.prot; did you mean server.port?"),
        ("[sever]\nport = 1", "unknown key sever; did you mean server?"),
        ("drain = 1", "unknown key drain; did you mean drain_s?"),
        ("port = 1", "unknown key port; did you mean server.port?"),
        ("prot = 1", "unknown key prot; did you mean server.port?"),
        ("[server]\npool_sice = 1", "unknown key server.pool_sice; did you mean postgres.pool_size?"),
        ("[server]\nttl_s = 1", "unknown key server.ttl_s; did you mean leases.ttl_s?"),
        ("[queues.default]\nslot = 1", "unknown key queues.default.slot; did you mean queues.default.slots?"),
        ("[queues.gpu]\nslot = 1", "unknown key queues.gpu.slot; did you mean queues.gpu.slots?"),
        ('[tasks.x]\nrun = "mock"\nzzzzzz = 1', "unknown key tasks.x.zzzzzz"),
        ('"a\\nb\\u001b" = 1', "unknown key a\\nb\\x1b"),
        ("server = 1", "server must be a table, as in [server]"),
        ("queues = []", "queues must be a table, as in [queues]"),
        ("queues.gpu = 4", "queues.gpu must be a table, as in [queues.gpu]"),
        ("[[tasks]]", "tasks must be a table, as in [tasks]"),
        ("[queues.GPU]", "queues.GPU: a name is 1 to 64 of a-z 0-9 _ . -"),
        ('[queues.""]', "queues.: a name is 1 to 64 of a-z 0-9 _ . -"),
        ('[tasks."a b"]', "tasks.a b: a name is 1 to 64 of a-z 0-9 _ . -"),
        ('[queues."a\\n"]', "queues.a\\n: a name is 1 to 64 of a-z 0-9 _ . -"),
    ],
)
def test_unknown_key_is_named_with_the_nearest_known(path: Path, text: str, message: str) -> None:
    assert file_error(path, text) == message


def test_very_long_key_is_cut(path: Path) -> None:
    assert len(file_error(path, "k" * 500_000 + " = 1")) < 200


# --- values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("drain_s", 0),
        ("drain_s", 0.5),
        ("drain_s", 3600),
        ("server.host", "::1"),
        ("server.port", 0),
        ("server.port", 65535),
        ("postgres.url", "postgres://h/db"),
        ("postgres.url", "postgresql://u@h1,h2:5433/db?sslmode=verify-full"),
        ("postgres.shared_buffers_mb", 128),
        ("postgres.max_connections", 100),
        ("postgres.pool_size", 4),
        ("redis.url", "redis://h:6379/0"),
        ("redis.url", "rediss://h"),
        ("redis.url", "unix:///run/valkey.sock"),
        ("redis.maxmemory_mb", 1024),
        ("leases.ttl_s", 86400),
        ("leases.heartbeat_s", 0.5),
        ("retry.max_attempts", 100),
        ("retry.base_s", 0),
        ("retry.cap_s", 1),
        ("relay.stream_window", 1),
        ("limits.payload_bytes", 1),
        ("limits.max_queued", 10_000_000),
        ("queues.default.slots", 0),
        ("queues.default.slots", 1024),
        ("tasks.chat.timeout_s", 0.5),
        ("tasks.chat.max_attempts", 1),
        ("tasks.chat.lease_ttl_s", 1),
        ("tasks.chat.retry_base_s", 0),
        ("tasks.chat.retry_cap_s", 604800),
        ("tickets.poll_s", 0.1),
        ("queues.default.hot", True),
        ("tasks.chat.needs_memory_mb", 4096),
        ("board.enabled", False),
        ("board.prefix", "/host"),
        ("board.period_s", 0.1),
        ("board.memory_floor_mb", 0),
        ("board.soft_c", 70),
        ("board.hard_c", 95.5),
        ("board.hysteresis_c", 0),
        ("log.level", "debug"),
        ("log.level", "warning"),
        ("log.level", "error"),
        ("log.format", "text"),
        ("log.format", "json"),
    ],
)
def test_value_within_range_is_taken_from_file_variable_and_flag(path: Path, key: str, value: object) -> None:
    table, _, name = key.rpartition(".")
    run = '\nrun = "mock"' if table == "tasks.chat" and name != "run" else ""
    path.write_text((f"[{table}]\n" if table else "") + f"{name} = {json.dumps(value)}{run}")
    variable = "JOBD_" + key.replace(".", "_").upper()
    text = value if isinstance(value, str) else json.dumps(value)

    from_file = load(path, {}, {}).config
    from_variable = load(None, {variable: text}, {}, search=()).config
    from_flag = load(None, {}, {key: value}, search=()).config
    from_flag_text = load(None, {}, {key: text}, search=()).config

    assert from_file == from_variable == from_flag == from_flag_text
    assert from_file != load(None, {}, {}, search=()).config


WRONG = [
    ("drain_s", -1, "a number from 0 to 3600 (got -1)"),
    ("drain_s", "20s", 'a number from 0 to 3600 (got "20s")'),
    ("drain_s", True, "a number from 0 to 3600 (got true)"),
    ("server.host", "", 'a host name or address (got "")'),
    ("server.host", "a b", 'a host name or address (got "a b")'),
    ("server.host", 1, "a host name or address (got 1)"),
    ("server.port", -1, "a whole number from 0 to 65535 (got -1)"),
    ("server.port", 65536, "a whole number from 0 to 65535 (got 65536)"),
    ("server.port", 1.5, "a whole number from 0 to 65535 (got 1.5)"),
    ("server.port", True, "a whole number from 0 to 65535 (got true)"),
    ("server.port", [], "a whole number from 0 to 65535 (got an empty list)"),
    ("server.port", {"a": 1}, "a whole number from 0 to 65535 (got a table of a)"),
    ("postgres.url", "mysql://h/db", 'empty (embedded) or a postgres:// or postgresql:// URL (got "mysql://h/db")'),
    ("postgres.url", "host=h dbname=d", 'empty (embedded) or a postgres:// or postgresql:// URL (got "***")'),
    ("postgres.url", "postgres://", 'empty (embedded) or a postgres:// or postgresql:// URL (got "postgres://")'),
    ("postgres.shared_buffers_mb", 0, "a whole number from 8 to 65536 (got 0)"),
    (
        "postgres.program",
        "bin/postgres",
        'empty (the one that comes with jobd) or an absolute path (got "bin/postgres")',
    ),
    ("redis.program", "redis-server", 'empty (the one that comes with jobd) or an absolute path (got "redis-server")'),
    ("postgres.max_connections", 10**9, "a whole number from 6 to 1000 (got 1000000000)"),
    ("postgres.pool_size", 3, "a whole number from 4 to 500 (got 3)"),
    ("board.prefix", "host", 'an absolute path (got "host")'),
    ("board.period_s", 0, "a number from 0.1 to 60 (got 0)"),
    ("board.memory_floor_mb", -1, "a whole number from 0 to 16777216 (got -1)"),
    ("board.hard_c", 373, "a number from 0 to 150 (got 373)"),
    ("redis.url", "http://h", 'empty (embedded) or a redis://, rediss:// or unix:// URL (got "http://h")'),
    ("redis.maxmemory_mb", 10**9, "a whole number from 16 to 65536 (got 1000000000)"),
    ("auth.tokens", "all", "a list"),
    ("leases.ttl_s", 0, "a whole number from 1 to 86400 (got 0)"),
    ("leases.ttl_s", -1, "a whole number from 1 to 86400 (got -1)"),
    ("leases.ttl_s", 10**9, "a whole number from 1 to 86400 (got 1000000000)"),
    ("leases.ttl_s", 10**90, "a whole number from 1 to 86400 (got a huge number)"),
    ("leases.ttl_s", "60s", 'a whole number from 1 to 86400 (got "60s")'),
    ("leases.ttl_s", 1.5, "a whole number from 1 to 86400 (got 1.5)"),
    ("leases.heartbeat_s", 0, "a number above 0, at most 86400 (got 0)"),
    ("retry.max_attempts", 0, "a whole number from 1 to 100 (got 0)"),
    ("retry.base_s", -0.1, "a number from 0 to 86400 (got -0.1)"),
    ("retry.cap_s", 10**9, "a number from 0 to 604800 (got 1000000000)"),
    ("relay.stream_window", 0, "a whole number from 1 to 100000 (got 0)"),
    ("limits.payload_bytes", 10**9, "a whole number from 1 to 16777216 (got 1000000000)"),
    ("limits.max_queued", 10**9, "a whole number from 1 to 10000000 (got 1000000000)"),
    ("queues.default.slots", -1, "a whole number from 0 to 1024 (got -1)"),
    ("queues.default.slots", 1025, "a whole number from 0 to 1024 (got 1025)"),
    ("tasks.chat.run", "magic", 'one of command, external, mock, openai, python (got "magic")'),
    ("tasks.chat.queue", 1, "text (got 1)"),
    ("tasks.chat.handler", "a\0:b", 'text (got "a\\u0000:b")'),
    ("tasks.chat.isolate", "maybe", 'true or false (got "maybe")'),
    ("tasks.chat.base_url", "ftp://h", 'an http:// or https:// URL (got "ftp://h")'),
    ("tasks.chat.timeout_s", 0, "a number above 0, at most 2592000 (got 0)"),
    ("tasks.chat.max_attempts", 0, "a whole number from 1 to 100 (got 0)"),
    ("tasks.chat.lease_ttl_s", 0, "a whole number from 1 to 86400 (got 0)"),
    ("tasks.chat.lease_ttl_s", 1.5, "a whole number from 1 to 86400 (got 1.5)"),
    ("tasks.chat.retry_base_s", -1, "a number from 0 to 86400 (got -1)"),
    ("tasks.chat.retry_cap_s", 10**9, "a number from 0 to 604800 (got 1000000000)"),
    ("tasks.chat.recycle_jobs", -1, "a whole number from 0 to 1000000 (got -1)"),
    ("tickets.poll_s", 0, "a number above 0, at most 3600 (got 0)"),
    ("log.level", "loud", 'one of debug, error, info, warning (got "loud")'),
    ("log.level", "x - at `$[0]`", 'one of debug, error, info, warning (got "x - at `$[0]`")'),
    ("log.format", "xml", 'one of auto, json, text (got "xml")'),
    ("log.format", "x" * 200, "one of auto, json, text (got " + '"' + "x" * 79 + "…)"),
]


def toml_value(value: object) -> str:
    return "{a = 1}" if isinstance(value, dict) else json.dumps(value)


@pytest.mark.parametrize(("key", "value", "expected"), WRONG, ids=[f"{key}={value!r:.20}" for key, value, _ in WRONG])
def test_wrong_value_in_file_names_key_value_and_expectation(
    path: Path, key: str, value: object, expected: str
) -> None:
    table, _, name = key.rpartition(".")
    text = (f"[{table}]\n" if table else "") + f"{name} = {toml_value(value)}"

    message = file_error(path, text)

    assert message.startswith(f"{key} must be {expected}")


@pytest.mark.parametrize(("key", "value", "expected"), WRONG, ids=[f"{key}={value!r:.20}" for key, value, _ in WRONG])
def test_wrong_value_in_flag_names_the_flag(key: str, value: object, expected: str) -> None:
    flag = "--" + key.rpartition(".")[2].replace("_", "-")

    assert error_of(None, flags={key: value}).startswith(f"{flag}: {key} must be {expected}")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(
    "key", ["drain_s", "retry.cap_s", "leases.heartbeat_s", "tasks.chat.timeout_s", "tickets.poll_s"]
)
def test_number_that_is_none_is_refused_everywhere(path: Path, key: str, number: str) -> None:
    table, _, name = key.rpartition(".")
    in_toml = number.replace("1e400", "1.0e400")

    assert file_error(path, (f"[{table}]\n" if table else "") + f"{name} = {in_toml}").startswith(f"{key} must be")
    assert f"{key} must be" in error_of(None, {"JOBD_" + key.replace(".", "_").upper(): number})


@pytest.mark.parametrize("value", ["1979-05-27", "1979-05-27T07:32:00Z", "07:32:00"])
def test_date_is_no_value_of_ours(path: Path, value: str) -> None:
    assert file_error(path, f"data_dir = {value}").startswith("data_dir must be text (got ")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([{**TOKEN, "sha256": "abc"}], 'auth.tokens[0].sha256 must be 64 lower-case hexadecimal digits (got "***")'),
        (
            [{**TOKEN, "sha256": HASH.upper()}],
            'auth.tokens[0].sha256 must be 64 lower-case hexadecimal digits (got "***")',
        ),
        (
            [TOKEN, {**TOKEN, "scopes": []}],
            "auth.tokens[1].scopes must be a list with at least one entry (got an empty list)",
        ),
        (
            [{**TOKEN, "scopes": ["root"]}],
            'auth.tokens[0].scopes[0] must be one of admin, client, metrics, read, worker (got "root")',
        ),
        ([{**TOKEN, "name": ""}], 'auth.tokens[0].name must be 1 to 64 letters, digits or any of _ . @ - (got "")'),
        (
            [{"name": "ci"}],
            "auth.tokens[0] must be a table of name, sha256, scopes, queues, own_jobs (got a table of name)",
        ),
        (
            [{**TOKEN, "token": CANARY}],
            "auth.tokens[0] must be a table of name, sha256, scopes, queues, own_jobs"
            " (got a table of name, sha256, scopes, token)",
        ),
        ([HASH], "auth.tokens[0] must be a table of name, sha256, scopes, queues, own_jobs (got text)"),
        ([TOKEN, TOKEN], "auth.tokens must have different names (got ci more than once)"),
    ],
)
def test_wrong_token_is_told_by_its_place_and_never_shown(tokens: list[Any], message: str) -> None:
    from_variable = error_of(None, {"JOBD_AUTH_TOKENS": json.dumps(tokens)})
    from_flag = error_of(None, flags={"auth.tokens": tokens})

    assert from_variable == f"JOBD_AUTH_TOKENS: {message}"
    assert from_flag == f"--tokens: {message}"
    assert HASH not in from_variable


def test_tokens_are_read_from_file_and_variable(path: Path) -> None:
    text = f'[[auth.tokens]]\nname = "ci"\nsha256 = "{HASH}"\nscopes = ["client", "worker"]'

    from_file = config_of(path, text)
    from_variable = config_of(path, "", {"JOBD_AUTH_TOKENS": json.dumps([TOKEN])})

    assert from_file == from_variable
    assert from_file.auth.tokens[0].scopes == ("client", "worker")


# --- rules between options


def test_broken_rule_names_every_place_that_took_part(path: Path) -> None:
    path.write_text("[leases]\nheartbeat_s = 10")

    message = error_of(path, {"JOBD_LEASES_TTL_S": "20"})

    assert message == (
        f"{path} and JOBD_LEASES_TTL_S: leases.heartbeat_s must be at most a third of leases.ttl_s (got 10 and 20)"
    )


def test_broken_rule_leaves_out_defaults() -> None:
    assert error_of(None, {"JOBD_LEASES_TTL_S": "30"}) == (
        "JOBD_LEASES_TTL_S: leases.heartbeat_s must be at most a third of leases.ttl_s (got 20 and 30)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tasks.x]", "tasks.x.run is missing; it must be one of command, external, mock, openai, python"),
        (
            "[tasks.chat]\ntimeout_s = 5",
            "tasks.chat.run is missing; it must be one of command, external, mock, openai, python",
        ),
        ('[tasks.x]\nrun = "mock"\nqueue = "gpu"', 'tasks.x.queue must be one of default (got "gpu")'),
        (
            '[tasks.x]\nrun = "python"\nhandler = "a:b"\nargv = ["ls"]',
            'tasks.x.argv is only for run = "command" (tasks.x.run is "python")',
        ),
        ('[tasks.x]\nrun = "command"\nargv = "ls -l"', "tasks.x.argv must be a list (got text)"),
        ('[tasks.x]\nrun = "command"\nargv = ["ls", 1]', "tasks.x.argv[1] must be text (got 1)"),
        (
            "[postgres]\nmax_connections = 12",
            "postgres.pool_size must leave 5 of postgres.max_connections free (got 8 and 12)",
        ),
    ],
)
def test_contradiction_in_file_is_refused(path: Path, text: str, message: str) -> None:
    assert file_error(path, text) == message


# --- queues and tasks


def test_default_queue_is_there_even_when_others_are_listed(path: Path) -> None:
    config = config_of(path, '[queues.gpu]\nslots = 1\n[queues."a.b-c_1"]')

    assert config.queues == {"default": Queue(), "gpu": Queue(slots=1), "a.b-c_1": Queue()}


def test_tasks_of_the_file_are_added_and_replace_by_name(path: Path) -> None:
    config = config_of(
        path,
        '[queues.far]\nslots = 0\n[tasks.chat]\nrun = "external"\nqueue = "far"\n'
        '[tasks.resize]\nrun = "command"\nargv = ["resize"]',
    )

    assert list(config.tasks) == [*BUILTIN_TASKS, "resize"]
    assert config.tasks["chat"] == Task(run="external", queue="far")
    assert config.tasks["plan"] == Task(run="mock")
    assert config.tasks["resize"] == Task(run="command", argv=("resize",))


def test_variable_reaches_queues_and_tasks_of_the_file(path: Path) -> None:
    env = {
        "JOBD_QUEUES_DEFAULT_SLOTS": "1",
        "JOBD_QUEUES_GPU_0_FAST_SLOTS": "2",
        "JOBD_TASKS_RE_SIZE_ARGV": '["b", "c"]',
        "JOBD_TASKS_RE_SIZE_MAX_ATTEMPTS": "7",
        "JOBD_TASKS_CHAT_QUEUE": "gpu.0-fast",
    }

    config = config_of(path, '[queues."gpu.0-fast"]\n[tasks.re-size]\nrun = "command"\nargv = ["a"]', env)

    assert config.queues == {"default": Queue(slots=1), "gpu.0-fast": Queue(slots=2)}
    assert config.tasks["re-size"] == Task(run="command", argv=("b", "c"), max_attempts=7)
    assert config.tasks["chat"] == Task(run="mock", queue="gpu.0-fast")


def test_variable_that_stands_for_two_queues_is_refused(path: Path) -> None:
    path.write_text("[queues.a-b]\n[queues.a_b]")

    assert error_of(path, {"JOBD_QUEUES_A_B_SLOTS": "1"}) == (
        "JOBD_QUEUES_A_B_SLOTS: stands for queues.a-b.slots and queues.a_b.slots; set them in the file"
    )
