"""`jobd worker`: jobs of a jobd elsewhere, whatever becomes of the worker, the job or that jobd meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jobd import Client
from tests.docs.pages import read_page
from tests.support.daemon import TOP, Jobd, environment, run_jobd
from tests.support.remote import WAIT_S, RemoteWorker, remote_worker
from tests.support.wait import wait_until
from tests.support.workerless import WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Leases that a busy machine does not end, and heartbeats that tell of a cancel soon. Nothing runs where jobd is.
HERE = """
[leases]
ttl_s = 600
heartbeat_s = 0.4
[retry]
base_s = 0
cap_s = 0
[limits]
result_bytes = 200000
[queues.default]
slots = 0
[queues.other]
slots = 0
"""
EXTERNAL = "".join(
    f'[tasks.{name}]\nrun = "external"\n' for name in ("act", "thread", "shell", "gate", "told", "nobody")
)
#: Answers with its payload; without one it takes a minute.
SCRIPT = 'echo at it >&2; payload=$(cat); [ "$payload" != "{}" ] || exec sleep 60; echo "$payload"'
ELSEWHERE = f"""
[tasks.act]
run = "python"
handler = "tests.tasks.handlers:act"
[tasks.thread]
run = "python"
handler = "tests.tasks.handlers:act_in_thread"
[tasks.gate]
run = "python"
handler = "tests.support.remote:wait_for_file"
[tasks.told]
run = "python"
handler = "tests.tasks.handlers:told"
[tasks.shell]
run = "command"
argv = {json.dumps(["/bin/sh", "-c", SCRIPT])}
kill_after_s = 0.5
"""


#: What the guide says to paste: the tables where jobd is, those elsewhere, and what to type.
GUIDE = [block.text for block in read_page(TOP / "docs" / "workers.md").blocks][:3]


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(HERE + EXTERNAL + GUIDE[0]) as made:
        yield made


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of the workers."""
    file = tmp_path_factory.mktemp("worker") / "jobd.toml"
    file.write_text(ELSEWHERE)
    return file


@pytest.fixture(scope="module")
def worker(workerless: WorkerlessDaemon, tasks: Path) -> Iterator[RemoteWorker]:
    """For all tests that leave it as it was."""
    with remote_worker(tasks, workerless.daemon.addresses["JOBD_URL"], "--slots", "3") as worker:
        worker.until_it_says("connected to jobd")
        yield worker


@pytest.fixture
def other(workerless: WorkerlessDaemon, tasks: Path) -> Iterator[Callable[..., RemoteWorker]]:
    """Starts workers of the queue `other`, which a test may do anything to."""
    made: list[RemoteWorker] = []

    def start(**variables: str) -> RemoteWorker:
        arguments = ("--queue", "other", "--slots", "1")
        made.append(RemoteWorker(tasks, workerless.daemon.addresses["JOBD_URL"], *arguments, **variables))
        return made[-1]

    yield start
    for worker in made:
        worker.end()


def wait_for_status(workerless: WorkerlessDaemon, worker: RemoteWorker, job_id: str, *statuses: str) -> Any:
    return workerless.wait_for_status(job_id, *statuses, why=worker.log)


def until_there(file: Path, worker: RemoteWorker) -> None:
    wait_until(file.exists, lambda: f"no {file}\n{worker.log()}", WAIT_S)


def outcomes(workerless: WorkerlessDaemon, job_id: str) -> list[str]:
    """Of what was charged: a job that meets a claim whose time is just up is handed back before anyone has it."""
    return [outcome for _, outcome in workerless.outcomes_of(job_id) if outcome != "released"]


# -- what comes of a job -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "payload", "result"),
    [
        ("act", {"do": "return"}, {"of": 3}),
        ("thread", {"do": "return"}, {"of": 3}),
        ("shell", {"n": [1, "é"]}, {"n": [1, "é"]}),
        ("chat", {"seconds": 0, "tokens": 2}, {"mock": True}),
    ],
)
def test_job_is_run_by_each_kind_of_task(
    workerless: WorkerlessDaemon, worker: RemoteWorker, task: str, payload: dict[str, Any], result: dict[str, Any]
) -> None:
    job_id = workerless.submit(task=task, payload=payload)

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert (job["status"], job["attempt_count"]) == ("done", 1), job
    assert result.items() <= job["result"].items()


def test_events_arrive_in_order(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    job_id = workerless.submit(task="act", payload={"do": "return"})

    with Client(workerless.daemon.addresses["JOBD_URL"]) as client:
        events = list(client.events(job_id))

    types = [event.type for event in events]
    assert types[0] == "queued"
    assert types[types.index("log") - 1 :] == ["running", "log", "token", "token", "token", "progress", "done"]
    assert [event.data["text"] for event in events if event.type == "token"] == ["a", "b", "c"]


def test_many_jobs_at_once_are_each_done_once(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    jobs = [workerless.submit(task="act", payload={"do": "return"}) for _ in range(20)]

    done = [wait_for_status(workerless, worker, job_id, "done", "error") for job_id in jobs]

    assert {(job["status"], job["attempt_count"]) for job in done} == {("done", 1)}


def test_jobs_that_end_together_end_each_in_its_own_way(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    acts = ["return", "fail", "return nul", "return", "return much"] * 6
    with Client(workerless.daemon.addresses["JOBD_URL"]) as client:
        jobs = client.submit_batch(
            [{"task": "act", "payload": {"do": do, "bytes": 150_000}, "max_attempts": 1} for do in acts]
        )

    ended = [wait_for_status(workerless, worker, str(one.job_id), "done", "error") for one in jobs]

    came_of = {"return": "done", "fail": "too_bad", "return nul": "bad_result", "return much": "done"}
    assert [(job["error"] or {}).get("code", job["status"]) for job in ended] == [came_of[do] for do in acts]
    assert {job["attempt_count"] for job in ended} == {1}
    assert [outcomes(workerless, job["job_id"]) for job in ended] == [
        ["done" if came_of[do] == "done" else "failed"] for do in acts
    ]


def test_failure_is_tried_again_until_attempts_run_out(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    job_id = workerless.submit(task="act", payload={"do": "fail"}, max_attempts=2)

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert (job["status"], job["error"]["code"]) == ("error", "too_bad")
    assert outcomes(workerless, job_id) == ["failed", "failed"]


@pytest.mark.parametrize(
    ("task", "payload"), [("act", {"do": "wait"}), ("thread", {"do": "wait"}), ("shell", {})], ids=str
)
def test_attempt_that_takes_too_long_is_stopped(
    workerless: WorkerlessDaemon, worker: RemoteWorker, task: str, payload: dict[str, Any]
) -> None:
    job_id = workerless.submit(task=task, payload=payload, max_attempts=1, timeout_s=0.5)

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert (job["status"], job["error"]["code"]) == ("error", "timeout")


def test_running_job_is_canceled(workerless: WorkerlessDaemon, worker: RemoteWorker, tmp_path: Path) -> None:
    job_id = workerless.submit(task="gate", payload={"folder": str(tmp_path)})
    until_there(tmp_path / "begun", worker)

    workerless.api("POST", f"/v1/jobs/{job_id}/cancel")

    until_there(tmp_path / "stopped", worker)
    wait_for_status(workerless, worker, job_id, "canceled")
    assert outcomes(workerless, job_id) == ["canceled"]


def test_job_that_another_took_over_is_stopped_and_left_alone(
    workerless: WorkerlessDaemon, worker: RemoteWorker, tmp_path: Path
) -> None:
    job_id = workerless.submit(task="gate", payload={"folder": str(tmp_path)})
    until_there(tmp_path / "begun", worker)

    workerless.rows("UPDATE leases SET lease_token = gen_random_uuid() WHERE resource_id = $1", job_id)

    until_there(tmp_path / "stopped", worker)
    worker.until_it_says("nothing was written about an attempt: its lease is lost")
    assert workerless.read(job_id)["status"] == "running"
    assert outcomes(workerless, job_id) == []


def test_large_result_goes_to_a_file_where_jobd_is(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    job_id = workerless.submit(task="act", payload={"do": "return much", "bytes": 150_000})

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert job["result_ref"] is not None
    assert workerless.api("GET", f"/v1/jobs/{job_id}/result").json == {"text": "x" * 150_000}


@pytest.mark.parametrize("size", [200_000, 5_000_000])
def test_result_that_jobd_does_not_take_fails_the_job_at_once(
    workerless: WorkerlessDaemon, worker: RemoteWorker, size: int
) -> None:
    job_id = workerless.submit(task="act", payload={"do": "return much", "bytes": size})

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert (job["status"], job["error"]["code"], job["attempt_count"]) == ("error", "result_too_large", 1)


@pytest.mark.parametrize(
    ("task", "code", "said"),
    [("act", "bad_result", "the result cannot be stored"), ("nobody", "no_runner", "no slot here runs nobody")],
)
def test_job_that_cannot_end_well_here_fails_with_the_reason(
    workerless: WorkerlessDaemon, worker: RemoteWorker, task: str, code: str, said: str
) -> None:
    job_id = workerless.submit(task=task, payload={"do": "return nul"}, max_attempts=1)

    job = wait_for_status(workerless, worker, job_id, "done", "error")

    assert (job["status"], job["error"]["code"]) == ("error", code)
    assert said in job["error"]["message"]


def test_example_of_the_guide_prints_what_it_says(workerless: WorkerlessDaemon, folder: Path) -> None:
    (folder / "jobd.toml").write_text(GUIDE[1])
    (folder / "jobd").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jobd "$@"\n')
    (folder / "jobd").chmod(0o755)
    lines = GUIDE[2].replace("http://127.0.0.1:7433", workerless.daemon.addresses["JOBD_URL"])
    variables = environment(
        {"PATH": f"{folder}:{os.environ['PATH']}", "XDG_DATA_HOME": str(folder), "HOME": str(folder)}
    )

    typed = f"trap 'kill $!; wait $!' EXIT\n{lines}"
    done = subprocess.run(
        ["bash", "-euc", typed], cwd=folder, env=variables, capture_output=True, text=True, timeout=2 * WAIT_S
    )

    assert done.returncode == 0, done
    assert f"\n{lines.split('# -> ')[-1].strip()}\n" in done.stdout
    assert "drained: 1 done, 0 failed, 0 handed back" in done.stdout


# -- what becomes of the worker ------------------------------------------------------------------------------------


def test_job_of_a_killed_worker_is_finished_by_another(
    workerless: WorkerlessDaemon, other: Callable[..., RemoteWorker], tmp_path: Path
) -> None:
    first = other()
    job_id = workerless.submit(task="gate", queue="other", payload={"folder": str(tmp_path)})
    until_there(tmp_path / "begun", first)

    first.signal(signal.SIGKILL)
    first.wait()
    workerless.expire({"job_id": job_id})
    workerless.reap()
    second = other()
    (tmp_path / "go").touch()

    job = wait_for_status(workerless, second, job_id, "done", "error")
    assert job["status"] == "done"
    assert outcomes(workerless, job_id) == ["expired", "done"]


def test_drain_lets_a_job_finish_and_takes_no_other(
    workerless: WorkerlessDaemon, other: Callable[..., RemoteWorker], tmp_path: Path
) -> None:
    worker = other(JOBD_DRAIN_S="60")
    job_id = workerless.submit(task="gate", queue="other", payload={"folder": str(tmp_path)})
    until_there(tmp_path / "begun", worker)

    worker.signal(signal.SIGTERM)
    worker.until_it_says("SIGTERM: draining")
    late = workerless.submit(task="act", queue="other", payload={"do": "return"})
    (tmp_path / "go").touch()

    assert worker.wait() == 0, worker.log()
    assert "drained: 1 done, 0 failed, 0 handed back" in worker.log()
    assert (workerless.read(job_id)["status"], workerless.read(late)["status"]) == ("done", "queued")
    workerless.api("POST", f"/v1/jobs/{late}/cancel")


def test_drain_hands_back_what_does_not_finish_uncharged(
    workerless: WorkerlessDaemon, other: Callable[..., RemoteWorker], tmp_path: Path
) -> None:
    worker = other(JOBD_DRAIN_S="0.4")
    job_id = workerless.submit(task="gate", queue="other", payload={"folder": str(tmp_path)}, max_attempts=1)
    until_there(tmp_path / "begun", worker)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0, worker.log()
    assert "drained: 0 done, 0 failed, 1 handed back" in worker.log()
    assert (tmp_path / "stopped").exists()
    assert (workerless.outcomes_of(job_id)[-1][1], workerless.read(job_id)["status"]) == ("released", "queued")
    assert workerless.rows("SELECT attempt_count FROM jobs WHERE id = $1", job_id) == [(0,)]
    workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


def test_drain_hands_back_all_that_run_at_once(workerless: WorkerlessDaemon, tasks: Path, tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(12)]
    for folder in folders:
        folder.mkdir()
    arguments = ("--queue", "other", "--slots", "12")
    worker = RemoteWorker(tasks, workerless.daemon.addresses["JOBD_URL"], *arguments, JOBD_DRAIN_S="0.4")
    try:
        jobs = [workerless.submit(task="gate", queue="other", payload={"folder": str(folder)}) for folder in folders]
        for folder in folders:
            until_there(folder / "begun", worker)

        worker.signal(signal.SIGTERM)

        assert worker.wait() == 0, worker.log()
        assert "drained: 0 done, 0 failed, 12 handed back" in worker.log()
        assert [workerless.outcomes_of(job_id)[-1][1] for job_id in jobs] == ["released"] * 12
        assert {(job["status"], job["attempt_count"]) for job in map(workerless.read, jobs)} == {("queued", 0)}
    finally:
        worker.end()
    for job_id in jobs:
        workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


def test_second_signal_stops_at_once(
    workerless: WorkerlessDaemon, other: Callable[..., RemoteWorker], tmp_path: Path
) -> None:
    worker = other()
    job_id = workerless.submit(task="gate", queue="other", payload={"folder": str(tmp_path)})
    until_there(tmp_path / "begun", worker)

    worker.signal(signal.SIGTERM)
    worker.until_it_says("SIGTERM: draining")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 128 + signal.SIGTERM, worker.log()
    workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


# -- what becomes of jobd ------------------------------------------------------------------------------------------


def test_job_that_ends_while_jobd_restarts_is_done_once(
    jobd: Callable[..., Jobd], folder: Path, tasks: Path, tmp_path: Path
) -> None:
    config, url = folder / "jobd.toml", f"unix://{folder}/jobd.sock"
    config.write_text(f'[server]\nsocket = "{folder}/jobd.sock"\n{HERE}{EXTERNAL}')
    daemon = jobd(None, "--config", str(config))
    with remote_worker(tasks, url) as worker, Client(url, patience_s=WAIT_S) as client:
        worker.until_it_says("waiting for jobd")
        daemon.start().until_ready()
        job = client.submit("gate", {"folder": str(tmp_path)})
        until_there(tmp_path / "begun", worker)

        daemon.stop()
        worker.until_it_says("lost jobd")
        (tmp_path / "go").touch()
        daemon.start().until_ready()

        ended = client.wait(job.job_id, WAIT_S)
        assert (ended.status, ended.attempt_count) == ("done", 1), worker.log()
        assert [attempt.outcome for attempt in ended.attempts if attempt.outcome != "released"] == ["done"]
        worker.until_it_says("again, after")


def test_worker_that_shall_not_wait_ends_when_nobody_answers(folder: Path) -> None:
    ended = run_jobd("worker", "--url", f"unix://{folder}/nobody.sock", "--no-wait")

    assert ended.returncode == 69, ended
    assert f"no jobd at unix://{folder}/nobody.sock" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--slots", "0"), 2, "--slots"),
        (("--queue", "Ä"), 2, "must be 1 to 64 of"),
        (("--url", "ftp://x"), 78, "url must be like http://host:port"),
        (("--ca", "/nowhere.pem"), 2, "/nowhere.pem"),
        (("--token", "a", "--token-file", "b"), 2, "exclude each other"),
        (("--token-file", "/nowhere"), 2, "/nowhere"),
    ],
    ids=str,
)
def test_wrong_use_is_told(arguments: tuple[str, ...], code: int, said: str) -> None:
    ended = run_jobd("worker", *arguments)

    assert ended.returncode == code, ended
    assert said in ended.stderr


def test_worker_needs_no_server_and_no_client_of_one() -> None:
    program = (
        "import sys, jobd.cli.main, jobd.worker.worker\n"
        "known = ('redis', 'jobd.serve.daemon', 'hypercorn')\n"
        "print([name for name in sys.modules if 'jobd.servers' in name or name in known])"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment({}), capture_output=True, text=True, timeout=30, check=True
    )

    assert ended.stdout.strip() == "[]"


def test_inputs_reach_a_handler_elsewhere_and_the_payload(workerless: WorkerlessDaemon, worker: RemoteWorker) -> None:
    with Client(workerless.daemon.addresses["JOBD_URL"]) as client:
        first, told, filled = client.submit_batch(
            [
                {"task": "shell", "payload": {"total": 7}, "ref": "prices"},
                {"task": "told", "payload": {}, "depends_on": [{"ref": "prices"}]},
                {
                    "task": "shell",
                    "payload": {"n": "{{inputs.prices.total}}", "text": "{{inputs.prices.total}} in all"},
                    "depends_on": [{"ref": "prices"}],
                },
            ]
        )

        results = [client.wait(job.job_id, WAIT_S) for job in (first, told, filled)]

    assert [job.result for job in results] == [
        {"total": 7},
        {"prices": ["done", {"total": 7}, str(first.job_id)]},
        {"n": 7, "text": "7 in all"},
    ], worker.log()
