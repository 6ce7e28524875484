"""Schedules by both clients and by the command line."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from jobd.client import Conflict, NotFound, Refused
from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from jobd import Client
    from tests.support.daemon import Jobd


def new_name() -> str:
    return f"c{uuid4().hex}"


def test_schedule_is_made_read_changed_and_deleted(client: Client) -> None:
    name = new_name()
    start = datetime(2027, 1, 1, tzinfo=timezone.utc)

    made = client.create_schedule(
        name, "embed", {"at": "{{scheduled_at}}"}, cron="0 3 * * *", timezone="Europe/Berlin", start=start
    )

    assert (made.name, made.cron, made.payload, made.start) == (name, "0 3 * * *", {"at": "{{scheduled_at}}"}, start)
    assert client.schedule(name) == made
    assert repr(made) == f"<Schedule {name} 0 3 * * *>"
    edited = client.edit_schedule(name, every="1h", start=None, payload={"n": 1})
    assert (edited.cron, edited.every, edited.start, edited.payload) == ("", "1h", None, {"n": 1})
    assert client.delete_schedule(name).name == name
    with pytest.raises(NotFound):
        client.schedule(name)


def test_schedules_are_listed_page_by_page(client: Client) -> None:
    made = {client.create_schedule(new_name(), "embed", every="30d").name for _ in range(3)}

    names: list[str] = []
    after = None
    while True:
        page = client.schedules(limit=2, after=after)
        names += [schedule.name for schedule in page.schedules]
        after = page.next
        if after is None:
            break

    assert made <= {*names}


def test_pause_resume_run_backfill_and_next_times(client: Client) -> None:
    name = client.create_schedule(new_name(), "embed", cron="@daily", overlap="allow_all", paused=True).name

    assert client.schedule(name).paused
    assert not client.resume_schedule(name).paused
    assert client.pause_schedule(name).paused
    job_id = client.run_schedule(name)
    assert client.get(job_id).schedule == name
    now = datetime.now(timezone.utc)
    filled = client.backfill_schedule(name, now - timedelta(days=2), now)
    assert (len(filled.started), filled.existing) == (2, 0)
    assert {job.job_id for job in client.list(schedule=name).jobs} == {job_id, *filled.started}
    times = client.schedule_next(name, n=2)
    assert [at.local[10:] for at in times.occurrences] == ["T00:00:00+00:00"] * 2


def test_what_is_refused_says_why(client: Client) -> None:
    name = client.create_schedule(new_name(), "embed", every="30d").name

    with pytest.raises(Conflict, match=f"there is a schedule {name} already"):
        client.create_schedule(name, "embed", every="30d")
    with pytest.raises(Refused, match="Bad minute"):
        client.create_schedule(new_name(), "embed", cron="61 * * * *")
    with pytest.raises(NotFound, match="there is no schedule"):
        client.run_schedule("nobody")


def test_the_command_line_does_all_of_it(daemon: Jobd) -> None:
    url, name = daemon.addresses["JOBD_URL"], new_name()

    def call(*arguments: str) -> str:
        done = run_jobd("schedule", *arguments, "--url", url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = call(
        "create", name, "embed", "--cron", "30 2 * * *", "--timezone", "Asia/Kathmandu", "--label", "a=b", "--json"
    )
    assert json.loads(made)["labels"] == {"a": "b"}
    shown = call("show", name)
    assert "30 2 * * * Asia/Kathmandu" in shown
    assert "overlap skip, catch_up one within 24h" in shown
    assert [line for line in call("list").splitlines() if line.startswith(name)]
    assert {json.loads(line)["name"] for line in call("list", "--json").splitlines()} >= {name}
    assert [line[10:] for line in call("next", name, "-n", "2").splitlines()] == ["T02:30:00+05:45"] * 2
    assert json.loads(call("edit", name, "--every", "30d", "--json"))["every"] == "30d"
    assert json.loads(call("pause", name, "--json"))["paused"] is True
    call("resume", name)
    job_id = call("run", name).strip()
    listed = run_jobd("list", "--schedule", name, "--url", url).stdout
    assert [line.split("\t")[0] for line in listed.splitlines()] == [job_id]
    assert json.loads(call("backfill", name, "--from", "1s", "--json"))["started"] == []
    call("delete", name)

    gone = run_jobd("schedule", "show", name, "--url", url)
    assert (gone.returncode, name in gone.stderr) == (5, True)
    assert run_jobd("schedule", "edit", name, "--url", url).returncode == 2
