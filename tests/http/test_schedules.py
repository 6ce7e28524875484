"""`/v1/schedules`: the whole of it over HTTP, and the catalogue of what it refuses."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import asyncpg
import pytest

from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

FAR = "0 0 1 1 *"


def new_name() -> str:
    return f"s{uuid4().hex}"


def body(**fields: Any) -> dict[str, Any]:
    timing = {} if "cron" in fields or "every" in fields else {"cron": FAR}
    return {"name": new_name(), **timing, "task": "embed", **fields}


def make(api: Api, **fields: Any) -> Any:
    answer = api("POST", "/v1/schedules", body(**fields))
    assert answer.status == 201, answer
    assert answer.headers["location"] == f"/v1/schedules/{answer.json['name']}"
    return answer.json


def read(api: Api, name: str) -> Any:
    return api("GET", f"/v1/schedules/{name}").json


def test_schedule_comes_back_with_its_settings_and_next_times(api: Api) -> None:
    settings = {
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "jitter_s": 60.0,
        "payload": {"at": "{{scheduled_at}}"},
        "queue": "fast",
        "priority": 3,
        "labels": {"team": "a"},
        "timeout_s": 9.0,
        "max_attempts": 2,
        "overlap": "buffer_all",
        "catch_up": "all",
        "catch_up_window_s": 600,
        "pause_after_failures": 4,
    }

    made = make(api, **settings)

    found = read(api, made["name"])
    assert {name: found[name] for name in settings} == settings
    assert (found["origin"], found["paused"], found["events"]) == ("api", False, [])
    assert (found["started_count"], found["skipped_count"], found["missed_count"]) == (0, 0, 0)
    assert found["next_ts"] == found["upcoming_ts"][0] <= found["due_ts"] < found["next_ts"] + 60_000
    assert len(found["upcoming_ts"]) == 5
    assert made == {name: value for name, value in found.items() if name != "events"}


def test_next_times_are_named_in_the_zone_of_the_schedule(api: Api) -> None:
    made = make(api, cron="30 2 * * *", timezone="Asia/Kathmandu")

    answer = api("GET", f"/v1/schedules/{made['name']}/next?n=3").json

    assert answer["timezone"] == "Asia/Kathmandu"
    assert [at["local"][10:] for at in answer["occurrences"]] == ["T02:30:00+05:45"] * 3
    assert [at["at_ts"] for at in answer["occurrences"]] == made["upcoming_ts"][:3]
    assert len(api("GET", f"/v1/schedules/{made['name']}/next").json["occurrences"]) == 5


def test_list_goes_page_by_page_and_has_each_once(api: Api) -> None:
    made = {make(api)["name"] for _ in range(5)}

    names: list[str] = []
    after = ""
    while True:
        page = api("GET", f"/v1/schedules?limit=2{after}").json
        names += [schedule["name"] for schedule in page["schedules"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"

    assert names == sorted({*names})
    assert made <= {*names}


def test_edit_changes_what_is_sent_and_plans_again(api: Api) -> None:
    made = make(api, queue="fast", timeout_s=5)

    edited = api("PATCH", f"/v1/schedules/{made['name']}", {"every": "30d", "queue": None, "priority": 1}).json

    assert (edited["cron"], edited["every"], edited["queue"], edited["priority"]) == ("", "30d", None, 1)
    assert (edited["timeout_s"], edited["task"]) == (5, "embed")
    assert edited["next_ts"] != made["next_ts"]


def test_pause_and_resume(api: Api) -> None:
    name = make(api)["name"]

    assert api("POST", f"/v1/schedules/{name}/pause").json["paused"] is True
    assert read(api, name)["paused"] is True
    assert api("POST", f"/v1/schedules/{name}/resume").json["paused"] is False
    assert make(api, paused=True)["paused"] is True


def test_run_makes_a_job_of_the_schedule_and_once_with_a_key(api: Api) -> None:
    made = make(api, payload={"at": "{{scheduled_at}}"}, labels={"team": "a"})
    path, key = f"/v1/schedules/{made['name']}/run", {"Idempotency-Key": new_name()}

    first, again = (api("POST", path, headers=key) for _ in range(2))
    other = api("POST", path)

    assert first.status == 202
    assert first.json == again.json != other.json
    job = api("GET", first.headers["location"]).json
    assert (job["schedule"], job["task"], job["labels"]["team"]) == (made["name"], "embed", "a")
    at = datetime.fromisoformat(job["payload"]["at"])
    assert at.timestamp() == job["scheduled_for_ts"] // 1000
    listed = api("GET", f"/v1/jobs?schedule={made['name']}").json["jobs"]
    assert {entry["job_id"] for entry in listed} == {first.json["job_id"], other.json["job_id"]}
    assert {entry["schedule"] for entry in listed} == {made["name"]}
    assert api("POST", "/v1/jobs/count", {"schedule": made["name"]}).json["count"] == 2
    assert read(api, made["name"])["started_count"] == 2


def ts(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def test_backfill_makes_jobs_of_occurrences_that_have_none(api: Api) -> None:
    midnight = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    made = make(api, cron="@daily", overlap="allow_all")
    span = {"from_ts": ts(midnight - timedelta(days=3)), "to_ts": ts(midnight - timedelta(days=1))}

    first = api("POST", f"/v1/schedules/{made['name']}/backfill", span)
    wider = {**span, "to_ts": ts(midnight + timedelta(days=9))}
    again = api("POST", f"/v1/schedules/{made['name']}/backfill", wider).json

    assert (first.status, len(first.json["started"]), first.json["existing"]) == (202, 3, 0)
    assert (len(again["started"]), again["existing"], again["buffered"]) == (1, 3, 0)
    jobs = api("GET", f"/v1/jobs?schedule={made['name']}").json["jobs"]
    days = sorted(job["scheduled_for_ts"] for job in jobs)
    assert days == [ts(midnight - timedelta(days=n)) for n in (3, 2, 1, 0)]


def test_backfill_with_another_overlap_makes_one_after_the_other(api: Api, workers: DatabaseWorkers) -> None:
    made = make(api, cron="@daily", queue="told")
    now = datetime.now(timezone.utc)

    answer = api(
        "POST", f"/v1/schedules/{made['name']}/backfill", {"from_ts": ts(now - timedelta(days=3)), "to_ts": ts(now)}
    ).json

    assert (answer["started"], answer["buffered"]) == ([], 3)
    wait_until(lambda: len(api("GET", f"/v1/jobs?schedule={made['name']}").json["jobs"]) == 1)
    assert len(read(api, made["name"])["buffered_ts"]) == 2
    (job,) = api("GET", f"/v1/jobs?schedule={made['name']}").json["jobs"]
    assert api("POST", f"/v1/jobs/{job['job_id']}/cancel").status == 200
    wait_until(lambda: len(read(api, made["name"])["buffered_ts"]) == 1)


def test_delete_leaves_nothing_but_the_jobs(api: Api) -> None:
    name = make(api)["name"]
    job_id = api("POST", f"/v1/schedules/{name}/run").json["job_id"]

    assert api("DELETE", f"/v1/schedules/{name}").json == {"name": name}

    assert api("GET", f"/v1/schedules/{name}").code == "unknown_schedule"
    assert api("GET", f"/v1/jobs/{job_id}").json["schedule"] == name


def test_a_schedule_fires_while_jobd_runs(api: Api) -> None:
    name = make(api, every="1s", overlap="allow_all")["name"]

    wait_until(lambda: read(api, name)["started_count"] >= 3)
    lines = api("GET", "/metrics").body.decode().splitlines()
    (line,) = [line for line in lines if line.startswith('jobd_schedule_occurrences_total{outcome="started"}')]
    assert float(line.split()[1]) >= 3

    api("DELETE", f"/v1/schedules/{name}")


def test_every_change_is_in_the_audit_table(api: Api) -> None:
    name = make(api)["name"]
    api("PATCH", f"/v1/schedules/{name}", {"priority": 1})
    for verb in ("pause", "resume", "run"):
        api("POST", f"/v1/schedules/{name}/{verb}")
    api("POST", f"/v1/schedules/{name}/backfill", {"from_ts": 0, "to_ts": 1})
    api("DELETE", f"/v1/schedules/{name}")

    entries = api("GET", "/v1/audit?limit=50").json["entries"]

    verbs = [entry["action"] for entry in reversed(entries) if entry["subject"].startswith(name)]
    assert verbs == [f"schedule.{verb}" for verb in ("create", "edit", "pause", "resume", "run", "backfill", "delete")]


# -- what is refused --

OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "jitter_s": (-1, 3601),
    "priority": (1001, -1001, 1.5),
    "timeout_s": (0, -1, 30 * 86_400 + 1),
    "max_attempts": (0, 101, 1.5),
    "catch_up_window_s": (0, 366 * 86_400 + 1, 1.5),
    "pause_after_failures": (-1, 1001, 1.5),
}
NO_INSTANTS: tuple[Any, ...] = ("2026-01-01T00:00:00", "soon", 0, True, [], "2026-02-30T00:00:00Z")
NO_OBJECTS: tuple[Any, ...] = (None, [], "{}", 1)
#: Fields, status and code; these are refused in a new schedule and in a change of one.
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("five fields", {"cron": "* * * *"}, 422, "invalid"),
    ("minute 60", {"cron": "60 * * * *"}, 422, "invalid"),
    ("never", {"cron": "0 0 30 2 *"}, 422, "invalid"),
    ("unknown name", {"cron": "@reboot"}, 422, "invalid"),
    ("long", {"cron": "*" * 201}, 422, "invalid"),
    ("a long list", {"cron": ",".join(["1"] * 90) + " * * * *"}, 201, ""),
    ("both", {"cron": FAR, "every": "1h"}, 422, "invalid"),
    ("every 0", {"cron": "", "every": "0s"}, 422, "invalid"),
    ("every nonsense", {"cron": "", "every": "soon"}, 422, "invalid"),
    ("every far", {"cron": "", "every": "367d"}, 422, "invalid"),
    ("neither", {"cron": "", "every": ""}, 422, "invalid"),
    *[
        (f"zone {zone[:20]!r}", {"timezone": zone}, 422, "invalid")
        for zone in ("Berlin", "", "../../etc/passwd", "/etc/localtime", "Europe/Berlin ", "UTC\n", "x" * 100)
    ],
    *[(f"{field} = {value!r}", {field: value}, 422, "invalid") for field in ("start", "end") for value in NO_INSTANTS],
    ("end before start", {"start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, 422, "invalid"),
    ("unknown task", {"task": "fly"}, 422, "unknown_task"),
    ("unknown queue", {"queue": "nowhere"}, 422, "unknown_queue"),
    ("queue ''", {"queue": ""}, 422, "invalid"),
    *[(f"payload {value!r}", {"payload": value}, 422, "invalid") for value in NO_OBJECTS],
    ("large payload", {"payload": {"a": "x" * 204_800}}, 413, "too_large"),
    ("payload that grows", {"payload": {"a": "{{scheduled_at}}" * 12_700}}, 413, "too_large"),
    ("label of jobd", {"labels": {"jobd.schedule": "x"}}, 422, "invalid"),
    ("many labels", {"labels": {f"l{n}": "" for n in range(15)}}, 422, "invalid"),
    ("label of 65", {"labels": {"l" * 65: ""}}, 422, "invalid"),
    *[
        (f"{field} = {value!r}", {field: value}, 422, "invalid")
        for field, values in OUT_OF_RANGE.items()
        for value in (*values, 2**63, "5", True, [], {})
    ],
    *[(f"overlap {value!r}", {"overlap": value}, 422, "invalid") for value in ("never", "", None, 1)],
    *[(f"catch_up {value!r}", {"catch_up": value}, 422, "invalid") for value in ("some", "", None, True)],
    ("unknown field", {"crn": FAR}, 422, "invalid"),
]
CASES = [pytest.param(*row[1:], id=row[0]) for row in BAD if row[2] != 201]


def traces(daemon: Jobd) -> str:
    """Everything that is stored about schedules."""

    async def fetched() -> list[str]:
        connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
        try:
            names = ("name", "origin", "definition", "is_paused", "created_at", "updated_at")
            query = f"SELECT {', '.join(names)} FROM jobd.schedules ORDER BY name"
            return [str(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    return "\n".join(anyio.run(fetched))


@pytest.mark.parametrize(("fields", "status", "code"), CASES)
def test_bad_schedule_is_refused_without_a_trace(
    api: Api, daemon: Jobd, fields: dict[str, Any], status: int, code: str
) -> None:
    before = traces(daemon)

    answer = api("POST", "/v1/schedules", {**body(), **fields})

    assert (answer.status, answer.code) == (status, code), answer.body
    assert traces(daemon) == before


@pytest.mark.parametrize(("fields", "status", "code"), CASES)
def test_bad_change_is_refused_without_a_trace(
    api: Api, daemon: Jobd, fields: dict[str, Any], status: int, code: str
) -> None:
    name = make(api)["name"]
    before = traces(daemon)

    answer = api("PATCH", f"/v1/schedules/{name}", fields)

    assert (answer.status, answer.code) == (status, code), answer.body
    assert traces(daemon) == before


BAD_NAMES = ["", "A", "a b", "a/b", "é", "x" * 65, "a\n", None, 1]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_name_is_refused(api: Api, name: object) -> None:
    assert api("POST", "/v1/schedules", body(name=name)).code == "invalid"


@pytest.mark.parametrize("missing", ["name", "task", "cron"])
def test_missing_field_is_named(api: Api, missing: str) -> None:
    fields = {name: value for name, value in body().items() if name != missing}

    answer = api("POST", "/v1/schedules", fields)

    assert (answer.status, answer.code) == (422, "invalid")
    assert missing in answer.json["detail"]


def test_name_that_is_taken_is_refused(api: Api) -> None:
    name = make(api)["name"]

    assert api("POST", "/v1/schedules", body(name=name)).code == "schedule_exists"


CALLS = [
    ("GET", "", None),
    ("PATCH", "", {"priority": 1}),
    ("DELETE", "", None),
    ("POST", "/pause", None),
    ("POST", "/resume", None),
    ("POST", "/run", None),
    ("POST", "/backfill", {"from_ts": 0, "to_ts": 1}),
    ("GET", "/next", None),
]


@pytest.mark.parametrize(("method", "path", "sent"), CALLS)
@pytest.mark.parametrize("name", ["nobody", "a%20b", "A", "%C3%A9", "x" * 300])
def test_schedule_that_is_not_there_is_404(api: Api, name: str, method: str, path: str, sent: Any) -> None:
    answer = api(method, f"/v1/schedules/{name}{path}", sent)

    assert (answer.status, answer.code) == (404, "unknown_schedule")


QUERIES = ["?limit=0", "?limit=201", "?limit=x", "?after=A", "?after=", "?nope=1"]


@pytest.mark.parametrize("query", QUERIES)
def test_bad_query_is_refused(api: Api, query: str) -> None:
    assert api("GET", f"/v1/schedules{query}").code == "invalid"


@pytest.mark.parametrize("query", ["?n=0", "?n=101", "?n=-1", "?n=x", "?m=1"])
def test_bad_number_of_times_is_refused(api: Api, query: str) -> None:
    name = make(api)["name"]

    assert api("GET", f"/v1/schedules/{name}/next{query}").code == "invalid"


BACKFILLS = [
    ({}, "invalid"),
    ({"from_ts": 0}, "invalid"),
    ({"from_ts": 2, "to_ts": 1}, "invalid"),
    ({"from_ts": -1, "to_ts": 1}, "invalid"),
    ({"from_ts": 0, "to_ts": 253_402_300_800_000}, "invalid"),
    ({"from_ts": "0", "to_ts": 1}, "invalid"),
    ({"from_ts": 0, "to_ts": 1, "x": 1}, "invalid"),
    ({"from_ts": 0, "to_ts": 253_402_300_799_999}, "backfill_too_large"),
]


@pytest.mark.parametrize(("sent", "code"), BACKFILLS)
def test_bad_backfill_is_refused_and_makes_nothing(api: Api, sent: dict[str, Any], code: str) -> None:
    name = make(api, cron="@daily")["name"]

    assert api("POST", f"/v1/schedules/{name}/backfill", sent).code == code
    assert api("GET", f"/v1/jobs?schedule={name}").json["jobs"] == []
    assert read(api, name)["buffered_ts"] == []


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"{", b'{"name":"a","name":"b"}', b'"x"'])
def test_body_that_is_no_object_is_refused(api: Api, content: bytes) -> None:
    assert api("POST", "/v1/schedules", content).status in (400, 422)


def test_submit_with_a_label_of_jobds_own_is_refused(api: Api) -> None:
    sent = {"task": "embed", "payload": {}, "labels": {"jobd.schedule": "nightly"}}

    assert api("POST", "/v1/jobs", sent).code == "invalid"


CONFIGURED = """
[queues.default]
slots = 0
[schedules.nightly]
cron = "0 3 * * *"
task = "embed"
"""


def test_schedule_of_the_configuration_is_changed_there_only(jobd: Callable[..., Jobd], tmp_path: Path) -> None:
    (tmp_path / "jobd.toml").write_text(CONFIGURED)
    daemon = jobd(None, "--config", str(tmp_path / "jobd.toml")).start().until_ready()
    api = Api(daemon.address)
    wait_until(lambda: api("GET", "/v1/schedules/nightly").status == 200)

    assert api("GET", "/v1/schedules/nightly").json["origin"] == "config"
    assert api("PATCH", "/v1/schedules/nightly", {"priority": 1}).code == "schedule_configured"
    assert api("DELETE", "/v1/schedules/nightly").code == "schedule_configured"
    assert api("POST", "/v1/schedules/nightly/pause").json["paused"] is True
    assert api("POST", "/v1/schedules/nightly/run").status == 202

    (tmp_path / "jobd.toml").write_text(CONFIGURED.replace("0 3", "0 4"))
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: api("GET", "/v1/schedules/nightly").json["cron"] == "0 4 * * *")
    assert api("GET", "/v1/schedules/nightly").json["paused"] is True
    assert api("GET", "/v1/config").json["config"]["schedules"]["nightly"]["cron"] == "0 4 * * *"
