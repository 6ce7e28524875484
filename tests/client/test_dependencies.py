"""Dependencies and groups through both clients and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobd.client import Refused, WaitTimeout
from tests.support.daemon import run_jobd
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from jobd import Client
    from jobd.client import BatchEntry
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

NOBODY = "00000000-0000-7000-8000-000000000000"


def test_a_job_waits_for_another(client: Client, workers: DatabaseWorkers) -> None:
    first = client.submit("embed", {}, queue="fast")
    job = client.submit("embed", {}, queue="fast", depends_on=[first.job_id])

    assert (job.depends_on[0].id, job.waiting and job.waiting.depends_on) == (first.job_id, [first.job_id])
    workers.fail(str(first.job_id))

    assert client.wait(job.job_id, 10).error["code"] == "dependency_failed"


def test_jobs_of_a_batch_wait_for_each_other(client: Client) -> None:
    first, second = client.submit_batch(
        [
            {"task": "embed", "payload": {}, "queue": "fast", "ref": "a"},
            {"task": "embed", "payload": {}, "queue": "fast", "depends_on": [{"ref": "a", "on": "any"}]},
        ]
    )

    (edge,) = client.get(second.job_id).depends_on

    assert (edge.id, edge.kind, edge.on, edge.ref) == (first.job_id, "job", "any", "a")


def test_an_unknown_dependency_is_refused(client: Client) -> None:
    with pytest.raises(Refused, match=f"job {NOBODY}, which is not there"):
        client.submit("embed", {}, depends_on=[NOBODY])


def test_the_command_line_submits_after_others(daemon: Jobd, workers: DatabaseWorkers) -> None:
    url = ("--url", daemon.addresses["JOBD_URL"])
    first = run_jobd("submit", "embed", "--queue", "fast", *url).stdout.strip()
    made = [
        run_jobd("submit", "embed", "--queue", "fast", option, first, *url).stdout.strip()
        for option in ("--after", "--after-any")
    ]

    shown = run_jobd("get", made[0], *url).stdout
    assert f"after       {first} (queued)" in shown
    assert "queued (depends)" in shown
    workers.fail(first)
    wait_until(lambda: "canceled" in run_jobd("get", made[0], *url).stdout, "it is not canceled")
    wait_until(lambda: "in_line" in run_jobd("get", made[1], *url).stdout, "it is not let go")


def test_an_id_that_is_none_is_wrong_usage(daemon: Jobd) -> None:
    refused = run_jobd("submit", "embed", "--after", "x", "--url", daemon.addresses["JOBD_URL"])

    assert (refused.returncode, "is no id" in refused.stderr) == (2, True)


# -- groups ------------------------------------------------------------------------------------------------------------


def job(**fields: Any) -> Any:
    return {"task": "embed", "payload": {}, "queue": "fast", **fields}


def test_a_chain_runs_in_its_order(client: Client, workers: DatabaseWorkers) -> None:
    first, second, third = client.chain([job(), job(payload={"x": "{{inputs.1.n}}"}), job()])

    workers.finish(str(first.job_id), '{"n": 7}')
    wait_until(lambda: waits_in_line(client, second), "it is not let go")

    assert client.get(second.job_id).payload == {"x": 7}
    assert client.get(third.job_id).depends_on[0].id == second.job_id


def test_fan_in_waits_for_all(client: Client, workers: DatabaseWorkers) -> None:
    *parts, last = client.fan_in([job(), job()], job())

    assert [edge.id for edge in client.get(last.job_id).depends_on] == [part.job_id for part in parts]
    for part in parts:
        workers.finish(str(part.job_id))
    wait_until(lambda: waits_in_line(client, last), "it is not let go")


def test_fan_out_is_a_sealed_group_with_a_callback(client: Client, workers: DatabaseWorkers) -> None:
    group = client.fan_out([job(), job()], name="two", callback=job())
    members = client.list(group=group.group_id).jobs

    assert (group.members, group.sealed, group.name, len(members)) == (2, True, "two", 2)
    with pytest.raises(WaitTimeout, match="2 members go on"):
        client.wait_group(group.group_id, 0.2)
    workers.finish(str(members[0].job_id))
    workers.fail(str(members[1].job_id))
    assert client.wait_group(group.group_id, 10).status == "error"
    assert client.retry_group(group.group_id) == 1
    assert client.cancel_group(group.group_id) == 1
    assert client.wait_group(group.group_id, 10).canceled == 1
    assert client.groups(limit=1).groups[0].group_id == client.group(group.group_id).group_id


def waits_in_line(client: Client, entry: BatchEntry) -> bool:
    waiting = client.get(entry.job_id).waiting
    return waiting is not None and waiting.reason == "in_line"


def test_the_command_line_makes_fills_and_watches_a_group(daemon: Jobd, workers: DatabaseWorkers) -> None:
    url = ("--url", daemon.addresses["JOBD_URL"])
    group = run_jobd("group", "create", "--name", "nightly", "--callback", "embed", *url).stdout.strip()
    member = run_jobd("submit", "embed", "--queue", "fast", "--group", group, *url).stdout.strip()

    assert "open for more members" in run_jobd("group", "get", group, *url).stdout
    assert "1 pending" in run_jobd("group", "seal", group, *url).stdout
    assert run_jobd("list", "--group", group, *url).stdout.split("\t")[0] == member
    assert run_jobd("group", "watch", group, "--timeout", "0.1", *url).returncode == 4
    assert group in run_jobd("group", "list", *url).stdout
    workers.fail(member)
    assert run_jobd("group", "watch", group, *url).returncode == 1
    assert run_jobd("group", "retry", group, *url).stdout == "1 members run again\n"
    assert run_jobd("group", "cancel", group, "--json", *url).stdout == '{"changed":1}\n'
    unknown = run_jobd("group", "get", NOBODY, *url)
    assert (unknown.returncode, "there is no group" in unknown.stderr) == (5, True)
