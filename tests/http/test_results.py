"""Results over HTTP: small ones in the job, large ones from their files, and a clear word when there is none."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from jobd.lifecycle.prune import LEADER_KEY
from tests.support.database_workers import database_workers
from tests.support.http import Api
from tests.support.wait import wait_until
from tests.support.workerless import CONFIG, KEPT, InBackground, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = {"text": "é" * 60_000, "numbers": list(range(1000))}
NO_SUCH = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon() as made:
        yield made


@pytest.fixture(scope="module")
def forgetful() -> Iterator[WorkerlessDaemon]:
    """Deletes jobs a second after their end."""
    with workerless_daemon(CONFIG + "[retention]\njobs_s = 1\nevery_s = 1\n") as made:
        yield made


def files_of(workerless: WorkerlessDaemon, job_id: str) -> list[Path]:
    return list(workerless.daemon.data_dir.glob(f"results/??/*{job_id}*"))


def done(workerless: WorkerlessDaemon, result: object, **fields: Any) -> str:
    held = workerless.running(**fields)
    assert workerless.complete(held, result) == {"ok": True, "ack": True}
    job_id: str = held["job_id"]
    return job_id


def result_of(workerless: WorkerlessDaemon, job_id: str) -> Any:
    answer = workerless.api("GET", f"/v1/jobs/{job_id}/result")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), answer
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


# What there is


@pytest.mark.parametrize("result", [None, 0, "é\n", [], {"a": {"b": [1.5, None]}}, "x" * 65_534], ids=repr)
def test_small_result_is_in_the_job_and_is_read_alone(workerless: WorkerlessDaemon, result: object) -> None:
    job_id = done(workerless, result)

    assert result_of(workerless, job_id) == result
    assert (workerless.read(job_id)["result"], workerless.read(job_id)["result_ref"]) == (result, None)
    assert files_of(workerless, job_id) == []


@pytest.mark.parametrize("result", ["x" * 65_535, LARGE], ids=["one byte too many", "object"])
def test_large_result_is_a_file_that_the_job_names(workerless: WorkerlessDaemon, result: object) -> None:
    job_id = done(workerless, result)

    assert result_of(workerless, job_id) == result
    job = workerless.read(job_id)
    (file,) = files_of(workerless, job_id)
    assert (job["status"], job["result"]) == ("done", None)
    assert workerless.daemon.data_dir / job["result_ref"] == file
    assert json.loads(file.read_bytes()) == result
    assert workerless.rows("SELECT result, result_ref FROM jobs WHERE id = $1", job_id) == [(None, job["result_ref"])]


def test_file_of_a_deleted_job_goes_with_it(workerless: WorkerlessDaemon) -> None:
    job_id, other = done(workerless, LARGE, labels={"run": "7"}), done(workerless, LARGE)

    deleted = workerless.api("POST", "/v1/jobs/delete", {"labels": {"run": "7"}})

    assert deleted.json["changed"] == 1
    assert workerless.api("GET", f"/v1/jobs/{job_id}/result").code == "gone_job"
    assert files_of(workerless, job_id) == []
    assert result_of(workerless, other) == LARGE


def test_file_of_a_job_that_is_deleted_during_a_backup_stays(workerless: WorkerlessDaemon) -> None:
    """The backup names it; the janitor sweeps it afterwards."""
    job_id = done(workerless, LARGE, labels={"run": "8"})

    with (
        database_workers(workerless.daemon.addresses["DATABASE_URL"]) as backup,
        backup.transaction("SELECT pg_advisory_xact_lock($1)", LEADER_KEY),
    ):
        workerless.api("POST", "/v1/jobs/delete", {"labels": {"run": "8"}})

    assert workerless.api("GET", f"/v1/jobs/{job_id}").code == "gone_job"
    assert len(files_of(workerless, job_id)) == 1


def test_redis_has_the_name_of_a_large_result_and_not_the_result(workerless: WorkerlessDaemon) -> None:
    job_id = done(workerless, LARGE)
    client = redis.Redis.from_url(workerless.daemon.addresses["REDIS_URL"], decode_responses=True)

    with client:
        wait_until(lambda: client.hget(f"job:{job_id}", "status") == "done", workerless.daemon.log, 10)
        fields: Any = client.hgetall(f"job:{job_id}")

    assert (fields["result"], fields["result_ref"]) == ("", workerless.read(job_id)["result_ref"])


def test_result_of_10_mb_goes_through_whole(workerless: WorkerlessDaemon) -> None:
    result = {"rows": [["row", n, "é" * 45] for n in range(100_000)]}

    job_id = done(workerless, result)

    assert files_of(workerless, job_id)[0].stat().st_size > 10_000_000
    assert result_of(workerless, job_id) == result
    assert len(workerless.api("GET", f"/v1/jobs/{job_id}").body) < 2_000


def test_head_tells_the_length_without_the_result(workerless: WorkerlessDaemon) -> None:
    job_id = done(workerless, LARGE)

    answer = workerless.api("HEAD", f"/v1/jobs/{job_id}/result")

    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) == files_of(workerless, job_id)[0].stat().st_size


def test_reader_who_leaves_early_leaves_nothing_open(workerless: WorkerlessDaemon) -> None:
    job_id = done(workerless, "x" * 20_000_000)
    connection = http.client.HTTPConnection(workerless.daemon.address, timeout=10)
    connection.request("GET", f"/v1/jobs/{job_id}/result")
    assert connection.getresponse().read(10) == b'"xxxxxxxxx'
    assert open_results(workerless)

    connection.close()

    wait_until(lambda: not open_results(workerless), lambda: f"still open: {open_results(workerless)}", 10)


def open_results(workerless: WorkerlessDaemon) -> list[str]:
    links = []
    for fd in Path(f"/proc/{workerless.daemon.pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    return [link for link in links if "/results/" in link]


# What there is not


def test_job_without_a_result_says_where_it_stands(workerless: WorkerlessDaemon) -> None:
    queued = workerless.submit(queue="gpu")
    running = workerless.running()
    failed = workerless.running(queue="slow")
    workerless.fail(failed, retryable=False)
    canceled = workerless.submit(queue="gpu")
    workerless.api("POST", f"/v1/jobs/{canceled}/cancel")
    ids = {"queued": queued, "running": running["job_id"], "error": failed["job_id"], "canceled": canceled}

    answers = {status: workerless.api("GET", f"/v1/jobs/{job_id}/result") for status, job_id in ids.items()}

    for status, answer in answers.items():
        assert (answer.status, answer.code) == (404, "no_result")
        assert f"is {status} and has no result" in answer.json["detail"]
    workerless.complete(running)
    workerless.api("POST", f"/v1/jobs/{queued}/cancel")


@pytest.mark.parametrize("job_id", [NO_SUCH, "x", "..%2F..%2Fsecrets", "%00"])
def test_result_of_no_job_is_not_found(workerless: WorkerlessDaemon, job_id: str) -> None:
    assert workerless.api("GET", f"/v1/jobs/{job_id}/result").status in (400, 404)


def test_unknown_parameter_is_refused(workerless: WorkerlessDaemon) -> None:
    assert workerless.api("GET", f"/v1/jobs/{NO_SUCH}/result?wait_s=1").code == "invalid"


def test_file_that_was_deleted_by_hand_is_lost_and_no_fault(workerless: WorkerlessDaemon) -> None:
    job_id = done(workerless, LARGE)
    files_of(workerless, job_id)[0].unlink()

    answer = workerless.api("GET", f"/v1/jobs/{job_id}/result")

    assert (answer.status, answer.code) == (410, "result_lost")
    assert workerless.read(job_id)["result_ref"] in answer.json["detail"]
    assert workerless.read(job_id)["status"] == "done"


@pytest.mark.parametrize(
    "ref",
    [
        *(
            "secrets/valkey",
            "/etc/passwd",
            "results/../secrets/valkey",
            "results/ab/../../secrets/valkey",
            "",
            "env.json",
        ),
        *(f"results/../{NO_SUCH}-{'0' * 32}.json", "results/installation"),
    ],
)
def test_ref_that_leads_elsewhere_is_not_followed(workerless: WorkerlessDaemon, ref: str) -> None:
    job_id = workerless.submit(queue="gpu")
    workerless.rows("UPDATE jobs SET result_ref = $2 WHERE id = $1", job_id, ref)

    answer = workerless.api("GET", f"/v1/jobs/{job_id}/result")

    assert (answer.status, answer.code) == (410, "result_lost")
    workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


def test_link_in_the_place_of_a_result_is_not_followed(workerless: WorkerlessDaemon) -> None:
    job_id = done(workerless, LARGE)
    (file,) = files_of(workerless, job_id)
    file.unlink()
    file.symlink_to(workerless.daemon.data_dir / "env.json")

    answer = workerless.api("GET", f"/v1/jobs/{job_id}/result")

    assert (answer.status, answer.code) == (410, "result_lost")


# Reports that are refused or come again


def test_same_report_again_is_a_replay_and_the_file_stays(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.complete(held, LARGE)

    assert workerless.complete(held, LARGE) == {"ok": True, "ack": True, "replay": True}

    assert len(files_of(workerless, held["job_id"])) == 1
    assert result_of(workerless, held["job_id"]) == LARGE


ACCEPTED = {**LARGE, "mine": 1}


@pytest.mark.parametrize("result", [ACCEPTED, LARGE], ids=["the same result", "another result"])
@pytest.mark.parametrize(
    "forged",
    [{"attempt_id": NO_SUCH}, {"lease_token": NO_SUCH}, {"lease_token": "x"}, {"job_id": NO_SUCH}],
    ids=["attempt_id", "lease_token", "no token", "job_id"],
)
def test_refused_report_does_not_touch_the_result_that_was_accepted(
    workerless: WorkerlessDaemon, forged: dict[str, str], result: object
) -> None:
    held = workerless.running()
    workerless.complete(held, ACCEPTED)

    answer = workerless.complete({**held, **forged}, result)

    reason = "unknown_job" if "job_id" in forged else "superseded"
    assert answer == {"ok": False, "ack": True, "reason": reason}
    assert result_of(workerless, held["job_id"]) == ACCEPTED


def test_conflicting_report_does_not_touch_the_result_that_was_accepted(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.complete(held, ACCEPTED)

    answer = workerless.complete(held, LARGE)

    assert answer == {"ok": False, "ack": True, "reason": "conflicting_outcome"}
    assert result_of(workerless, held["job_id"]) == ACCEPTED


# Retention


def test_result_goes_with_its_job_and_both_are_gone(forgetful: WorkerlessDaemon) -> None:
    job_id = done(forgetful, LARGE)
    address = f"/v1/jobs/{job_id}/result"

    wait_until(lambda: forgetful.api("GET", address).code == "gone_job", forgetful.daemon.log, 12)

    assert forgetful.api("GET", address).status == 410
    wait_until(lambda: files_of(forgetful, job_id) == [], lambda: f"{files_of(forgetful, job_id)} stays", 20)


# The worst


def test_crash_between_file_and_commit_leaves_a_job_that_runs_again() -> None:
    with workerless_daemon(CONFIG + "[leases]\nttl_s = 3\nheartbeat_s = 0.3\n") as workerless:
        held = workerless.running()
        job_id = held["job_id"]
        with workerless.locked("leases"):
            InBackground(_ignoring_errors, workerless.complete, held, LARGE)
            workerless.until_someone_waits_for_a_lock()
            wait_until(lambda: files_of(workerless, job_id), "no file is written", 10)
            workerless.daemon.signal(signal.SIGKILL)
            workerless.daemon.wait()
        workerless.daemon.start().until_ready()
        workerless.api = Api(workerless.daemon.address)

        wait_until(lambda: workerless.read(job_id)["status"] == "queued", workerless.daemon.log, 15)
        claimed = workerless.claim()
        assert claimed["job_id"] == job_id
        workerless.complete({"worker_id": "w-2", **{name: claimed[name] for name in KEPT}}, LARGE)

        assert result_of(workerless, job_id) == LARGE
        assert len(files_of(workerless, job_id)) == 2  # the janitor takes the first when it is a day old


def _ignoring_errors(call: Any, *arguments: Any) -> object:
    try:
        return call(*arguments)
    except (OSError, http.client.HTTPException) as error:
        return error


@pytest.fixture
def small_disk(workerless: WorkerlessDaemon) -> Iterator[Path]:
    """A disk of 200 KB in the place of the results."""
    done(workerless, LARGE)
    path = workerless.daemon.data_dir / "results"
    options = "size=200k,mode=0700"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "jobd-test", path], capture_output=True)
    if made.returncode:
        pytest.skip("no disk can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)  # the janitor may just be reading it


def test_full_disk_costs_neither_the_job_nor_the_result(workerless: WorkerlessDaemon, small_disk: Path) -> None:
    held = workerless.running()
    too_much = "x" * 300_000

    refused = workerless.post("complete", {**held, "result": too_much})

    assert (refused.status, refused.code) == (503, "result_not_kept")
    assert int(refused.headers["retry-after"]) > 0
    assert files_of(workerless, held["job_id"]) == []
    assert re.search(rf"result of job {held['job_id']}, 300002 bytes so far, .*No space left", workerless.daemon.log())
    assert workerless.read(held["job_id"])["status"] == "running"
    subprocess.run(["mount", "-o", "remount,size=2m", small_disk], check=True)
    assert workerless.complete(held, too_much) == {"ok": True, "ack": True}
    assert result_of(workerless, held["job_id"]) == too_much
