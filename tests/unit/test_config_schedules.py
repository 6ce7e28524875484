"""`[schedules.NAME]`: what it takes, what it refuses, and what a reload does with it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from jobd.config.load import load
from jobd.config.model import ScheduleConfig
from jobd.config.show import changes, rows
from jobd.errors import ConfigError
from jobd.serve.daemon import reloaded

if TYPE_CHECKING:
    from pathlib import Path

    from jobd.config.model import Loaded


def read(tmp_path: Path, text: str, **env: str) -> Loaded:
    path = tmp_path / "jobd.toml"
    path.write_text(text)
    return load(path, env, {})


WHOLE = """
[schedules.night]
cron = "0 3 * * *"
timezone = "Europe/Berlin"
start = 2026-11-01T00:00:00Z
end = "2027-11-01T00:00:00+01:00"
jitter_s = 30
task = "chat"
queue = "default"
priority = 5
timeout_s = 60
max_attempts = 2
overlap = "buffer_one"
catch_up = "all"
catch_up_window_s = 3600
pause_after_failures = 3
[schedules.night.payload]
text = "at {{scheduled_at}}"
[schedules.night.labels]
team = "a"
"""


def test_every_setting_is_read(tmp_path: Path) -> None:
    loaded = read(tmp_path, WHOLE)

    assert loaded.config.schedules["night"] == ScheduleConfig(
        cron="0 3 * * *",
        timezone="Europe/Berlin",
        start=datetime(2026, 11, 1, tzinfo=timezone.utc),
        end=datetime(2027, 10, 31, 23, tzinfo=timezone.utc),
        jitter_s=30,
        task="chat",
        queue="default",
        priority=5,
        timeout_s=60,
        max_attempts=2,
        overlap="buffer_one",
        catch_up="all",
        catch_up_window_s=3600,
        pause_after_failures=3,
        payload={"text": "at {{scheduled_at}}"},
        labels={"team": "a"},
    )
    assert {row.key: row.value for row in rows(loaded)}["schedules.night.task"] == '"chat"'


def test_variables_and_defaults(tmp_path: Path) -> None:
    text = '[schedules.a]\nevery = "15m"\ntask = "chat"\n'
    loaded = read(tmp_path, text, JOBD_SCHEDULES_A_PAYLOAD='{"n": 1}', JOBD_SCHEDULES_A_PRIORITY="3")

    assert loaded.config.schedules["a"] == ScheduleConfig(every="15m", task="chat", payload={"n": 1}, priority=3)


REFUSED = [
    ('every = "15m"', "schedules.a.task is missing"),
    ('task = "chat"', "schedules.a.cron a schedule has either cron or every (got neither)"),
    ('task = "chat"\nevery = "1m"\ncron = "@daily"', "either cron or every (got both)"),
    ('task = "chat"\ncron = "61 * * * *"', "schedules.a.cron Bad minute"),
    ('task = "chat"\nevery = "soon"', "schedules.a.every must be an interval"),
    ('task = "chat"\ncron = "@daily"\ntimezone = "Berlin"', "did you mean Europe/Berlin?"),
    ('task = "chat"\nevery = "1m"\nstart = "2026-11-01T00:00:00"', "schedules.a.start must be a time with its zone"),
    ('task = "chat"\nevery = "1m"\nstart = 2026-11-01', "schedules.a.start must be a time with its zone"),
    ('task = "nope"\nevery = "1m"', "schedules.a.task must be one of chat"),
    ('task = "chat"\nevery = "1m"\nqueue = "nope"', "schedules.a.queue must be one of default"),
    ('task = "chat"\nevery = "1m"\njitter_s = 3601', "schedules.a.jitter_s must be a number from 0 to 3600"),
    ('task = "chat"\nevery = "1m"\noverlap = "never"', "schedules.a.overlap must be one of"),
    ('task = "chat"\nevery = "1m"\npayload = 3', "schedules.a.payload must be a table"),
    ('task = "chat"\nevery = "1m"\npayload = { at = 2026-11-01 }', "schedules.a.payload must be what JSON can hold"),
    ('task = "chat"\nevery = "1m"\npayload = { n = nan }', "schedules.a.payload must be what JSON can hold"),
    ('task = "chat"\nevery = "1m"\nlabels = { "jobd.x" = "1" }', "that do not begin with jobd."),
    ('task = "chat"\nevery = "1m"\nlabels = { x = 1 }', "schedules.a.labels"),
    ('task = "chat"\nevery = "1m"\nevry = "1m"', "did you mean schedules.a.every?"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_be_is_refused_and_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"[schedules.a]\n{text}\n")

    assert message in str(refused.value)


def test_task_of_a_module_is_known_only_after_its_import(tmp_path: Path) -> None:
    text = 'tasks_from = ["my.tasks"]\n[schedules.a]\ntask = "later"\nevery = "1m"\n'

    assert read(tmp_path, text).config.schedules["a"].task == "later"


def test_reload_takes_over_all_schedules(tmp_path: Path) -> None:
    old = read(tmp_path, WHOLE).config
    new = read(tmp_path, '[schedules.other]\ntask = "chat"\nevery = "1m"\n').config

    assert reloaded(old, new).schedules == new.schedules
    assert {change.reloadable for change in changes(old, new)} == {True}
