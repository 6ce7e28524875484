"""What is shown of a configuration, and what a reload would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from jobd.config.load import load
from jobd.config.model import Auth, Config, Limits, Log, Postgres, Queue, Redis, Server, Task, Token
from jobd.config.options import options
from jobd.config.show import OptionChange, changes, public, rows
from jobd.host.masking import masked_url

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "s3cr3t-canary"
HASH = "0123456789abcdef" * 4
TOKEN = Token(name="ci", sha256=HASH, scopes=("client",))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("postgresql://jobd@db/jobd", "postgresql://jobd@db/jobd"),
        ("postgresql://db:5432/jobd", "postgresql://db:5432/jobd"),
        ("postgresql://a:5432,b:5433/jobd?sslmode=require", "postgresql://a:5432,b:5433/jobd?sslmode=require"),
        ("postgresql://user:pw@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:p@w:/x?y#z@host/db", "postgresql://user:***@host/db"),
        ("postgresql://us@er:pw@host/db", "postgresql://us@er:***@host/db"),
        ("postgresql://us/er:pw@host/db", "postgresql://us/er:***@host/db"),
        (
            "postgresql://host/db?user=u&password=pw&sslmode=require",
            "postgresql://host/db?user=u&password=***&sslmode=require",
        ),
        ("postgresql://host/db?sslpassword=pw", "postgresql://host/db?sslpassword=***"),
        ("postgresql://user:pw/db", "postgresql://user:***"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://host?PASSWORD=pw", "redis://host?PASSWORD=***"),
        ("unix://u:pw@/run/v.sock?db=1", "unix://u:***@/run/v.sock?db=1"),
    ],
)
def test_password_of_a_url_is_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert masked_url(url) == shown


def test_rows_list_every_option_in_order_with_value_and_origin(tmp_path: Path) -> None:
    path = tmp_path / "jobd.toml"
    path.write_text("drain_s = 2.5\n[queues.gpu]\nslots = 1")
    env = {"JOBD_POSTGRES_URL": f"postgresql://user:{CANARY}@host/db", "HOME": "/home/u"}

    shown = rows(load(path, env, {"server.port": 0}, uid=1000))

    assert [row.key for row in shown] == [
        option.dotted for option in options(["default", "gpu"], Config().tasks).values()
    ]
    assert shown[0] == ("data_dir", '"/home/u/.local/share/jobd"', "default")
    by_key = {key: (value, origin) for key, value, origin in shown}
    assert by_key["drain_s"] == ("2.5", f"file {path}")
    assert by_key["server.port"] == ("0", "flag --port")
    assert by_key["postgres.url"] == ('"postgresql://user:***@host/db"', "env JOBD_POSTGRES_URL")
    assert by_key["leases.heartbeat_s"] == ("20", "default")
    assert by_key["queues.gpu.slots"] == ("1", f"file {path}")
    assert by_key["tasks.chat.isolate"] == ("false", "default")
    assert by_key["tasks.chat.max_attempts"] == ("unset", "default")


SECRETIVE = Config(
    postgres=Postgres(url=f"postgresql://u:{CANARY}@h/d"),
    redis=Redis(url=f"redis://:{CANARY}@h"),
    auth=Auth(tokens=(TOKEN,)),
    tasks={
        "a": Task(run="openai", base_url=f"http://u:{CANARY}@h/v1"),
        "b": Task(run="command", argv=("psql", f"postgresql://u:{CANARY}@h", f"--password={CANARY}")),
    },
)


def test_public_form_is_json_without_secrets() -> None:
    text = msgspec.json.encode(public(SECRETIVE)).decode()

    assert CANARY not in text
    assert HASH not in text
    shown = {"name": "ci", "sha256": "***", "scopes": ["client"], "queues": [], "own_jobs": False}
    assert public(SECRETIVE)["auth"] == {"tokens": [shown]}
    assert public(SECRETIVE)["tasks"]["b"]["argv"] == ["psql", "postgresql://u:***@h", "--password=***"]


def test_public_form_without_secrets_reads_back_as_the_same_config() -> None:
    assert msgspec.convert(public(Config()), Config) == Config()


def test_same_config_has_no_changes() -> None:
    assert changes(Config(), Config()) == []


def test_changes_come_in_order_and_say_whether_a_reload_takes_them() -> None:
    new = Config(
        drain_s=30,
        server=Server(port=1),
        limits=Limits(max_queued=5),
        queues={"default": Queue(slots=1), "gpu": Queue()},
        log=Log(level="debug", format="json"),
    )

    assert changes(Config(), new) == [
        OptionChange("drain_s", "20", "30", True),
        OptionChange("server.port", "7433", "1", False),
        OptionChange("limits.max_queued", "100000", "5", True),
        OptionChange("queues.default.slots", "4", "1", False),
        OptionChange("queues.gpu.slots", "unset", "4", False),
        OptionChange("queues.gpu.deliver", "unset", '"auto"', False),
        OptionChange("queues.gpu.mirror", "unset", "true", False),
        OptionChange("queues.gpu.key_running", "unset", "0", False),
        OptionChange("queues.gpu.key_rate", "unset", "0", False),
        OptionChange("queues.gpu.key_rate_s", "unset", "60", False),
        OptionChange("queues.gpu.fair", "unset", "false", False),
        OptionChange("queues.gpu.hot", "unset", "false", False),
        OptionChange("log.level", '"info"', '"debug"', True),
        OptionChange("log.format", '"auto"', '"json"', False),
    ]


def test_removed_task_is_a_change_of_each_of_its_options() -> None:
    found = changes(Config(), Config(tasks={"chat": Task(run="mock")}))

    assert found[0] == OptionChange("tasks.plan.run", '"mock"', "unset", False)
    assert {change.new for change in found} == {"unset"}


def test_changed_secret_is_a_change_that_shows_no_secret() -> None:
    (change,) = changes(
        Config(auth=Auth(tokens=(TOKEN,))),
        Config(auth=Auth(tokens=(msgspec.structs.replace(TOKEN, sha256="f" * 64),))),
    )

    assert change.reloadable
    shown = '[{"name": "ci", "sha256": "***", "scopes": ["client"], "queues": [], "own_jobs": false}]'
    assert change.old == change.new == shown


def test_unprintable_text_is_shown_escaped() -> None:
    loaded = load(None, {}, {"data_dir": "/a\x1b[31m\u2028b\x9b"}, search=())

    assert rows(loaded)[0].value == '"/a\\u001b[31m\\u2028b\\u009b"'
