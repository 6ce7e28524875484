"""The commands for people: what they print to a pipe and on a terminal, and their exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jobd.cli.main import main
from tests.support.daemon import environment
from tests.support.proxy import proxy
from tests.support.terminal import CTRL_C, ENTER, LEAVE, terminal
from tests.support.wait import wait_until
from tests.support.workerless import WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[..., tuple[int, list[str], str]]

#: Commands are processes of their own here, and the machine may be busy.
pytestmark = pytest.mark.timeout(180)

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon() as made:
        yield made


@pytest.fixture
def url(workerless: WorkerlessDaemon) -> str:
    return workerless.daemon.addresses["JOBD_URL"]


@pytest.fixture
def call(url: str, capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs a command in this process; exit code, lines of standard output, and standard error."""

    def run(*arguments: str) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as end:
            main([*arguments, *([] if "--url" in arguments else ["--url", url])])
        out, err = capfd.readouterr()
        return int(end.value.code or 0), out.splitlines(), err

    return run


def dead(workerless: WorkerlessDaemon, **fields: Any) -> str:
    held = workerless.running(**fields)
    workerless.fail(held, retryable=False)
    job_id: str = held["job_id"]
    return job_id


def emit_events(workerless: WorkerlessDaemon, held: dict[str, Any], *events: dict[str, Any]) -> None:
    proof = {name: held[name] for name in ("worker_id", "job_id", "lease_token")}
    assert workerless.post("events", {**proof, "events": list(events)}).status == 200


# -- list ---------------------------------------------------------------------------------------------------------


def test_list_goes_through_pages_newest_first(workerless: WorkerlessDaemon, call: Call) -> None:
    batch = [{"task": "plan", "payload": {"n": n}, "queue": "slow"} for n in range(120)]
    ids = [job["job_id"] for job in workerless.api("POST", "/v1/jobs/batch", batch).json["jobs"]]

    code, lines, err = call("list", "--task", "plan", "--limit", "110")
    _, of_json, _ = call("list", "--task", "plan", "--queue", "slow", "--status", "queued", "--limit", "500", "--json")

    assert (code, err) == (0, "")
    assert [line.split("\t")[:4] for line in lines] == [[job_id, "queued", "plan", "slow"] for job_id in ids[:9:-1]]
    assert [json.loads(line)["job_id"] for line in of_json] == ids[::-1]


def test_list_of_nothing_is_nothing(call: Call) -> None:
    assert call("list", "--task", "nobody-has-this") == (0, [], "")


def test_list_on_a_terminal_is_a_table_with_colours_unless_they_are_unwanted(
    workerless: WorkerlessDaemon, url: str
) -> None:
    job_id = workerless.submit(task="rag", queue="slow")

    with terminal("list", "--task", "rag", "--url", url) as shown:
        code = shown.end()
        shown.wait_for("JOB ", "STATUS", "AGE", job_id)
    with terminal("list", "--task", "rag", "--url", url, NO_COLOR="1") as plain:
        plain.end()
        plain.wait_for(job_id)

    assert code == 0
    assert "\x1b[" in shown.raw
    assert "\x1b[" not in plain.raw


# -- watch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "text"), [("start", "one two"), ("1-1", " two"), ("now", ""), ("1-3", "")], ids=lambda one: one
)
def test_watch_begins_where_it_is_told_to(workerless: WorkerlessDaemon, call: Call, since: str, text: str) -> None:
    held = workerless.running()
    emit_events(
        workerless, held, {"type": "token", "data": {"text": "one"}}, {"type": "token", "data": {"text": " two"}}
    )
    workerless.complete(held, {"n": 1})

    code, lines, _ = call("watch", held["job_id"], "--from", since)

    assert (code, lines) == (0, [text] if text else ['{"n":1}'])


def test_watch_ends_with_the_outcome_of_the_job(workerless: WorkerlessDaemon, call: Call) -> None:
    canceled = workerless.submit(queue="slow")
    workerless.api("POST", f"/v1/jobs/{canceled}/cancel")

    assert call("watch", dead(workerless))[0] == 1
    assert call("watch", canceled)[0] == 3
    assert call("watch", NOBODY)[0] == 5
    assert call("watch", canceled, "--from", "7-7")[0] == 5


def test_watch_goes_on_after_a_cut_line(workerless: WorkerlessDaemon, call: Call) -> None:
    held = workerless.running()
    emit_events(workerless, held, *({"type": "token", "data": {"text": f"{n} "}} for n in range(50)))
    workerless.complete(held)

    with proxy(lambda: workerless.daemon.address, 700, 900, 1100) as line:
        code, lines, _ = call("watch", held["job_id"], "--url", line.url)

        assert line.cuts >= 2
    assert (code, lines) == (0, ["".join(f"{n} " for n in range(50))])


def test_progress_on_a_terminal_is_a_bar_and_ctrl_c_says_how_to_go_on(workerless: WorkerlessDaemon, url: str) -> None:
    held = workerless.running()
    emit_events(workerless, held, {"type": "progress", "step": "half\x1b[2J way", "data": {"progress": 0.5}})

    with terminal("watch", held["job_id"], "--url", url) as shown:
        shown.wait_for("██████░░░░░░", "50%  half[2J way")
        shown.press(CTRL_C)
        code = shown.end()
        shown.wait_for("goes on", f"jobd watch {held['job_id']} --from 1-1", f"jobd cancel {held['job_id']}")

    assert code == 130
    assert workerless.read(held["job_id"])["status"] == "running"
    workerless.complete(held)


# -- Ctrl-C that cancels ------------------------------------------------------------------------------------------


def test_ctrl_c_cancels_when_asked_to_and_says_so(workerless: WorkerlessDaemon, url: str) -> None:
    arguments = ("submit", "code", "--queue", "slow", "--follow", "--cancel-on-interrupt", "--url", url)

    with terminal(*arguments) as shown:
        shown.wait_for("queued")
        shown.press(CTRL_C)
        code = shown.end()
        shown.wait_for("canceling job ", " was canceled")

    assert code == 130
    assert workerless.api("GET", "/v1/jobs?task=code&limit=1").json["jobs"][0]["status"] == "canceled"


def test_cancel_waits_for_the_worker_and_a_second_ctrl_c_does_not(workerless: WorkerlessDaemon, url: str) -> None:
    held = workerless.running()
    arguments = ("watch", held["job_id"], "--cancel-on-interrupt", "--url", url)

    with terminal(*arguments) as shown:
        shown.wait_for("running, attempt 1")
        shown.press(CTRL_C)
        wait_until(lambda: workerless.read(held["job_id"])["cancel_requested"], lambda: shown.text, 15.0)
        shown.press(CTRL_C)
        code = shown.end()
        shown.wait_for("was told to stop, but has not said yet that it did")

    assert code == 130
    workerless.fail(held)


# -- retry and dead letters ---------------------------------------------------------------------------------------


def test_retry_runs_what_it_can_and_says_what_it_cannot(workerless: WorkerlessDaemon, call: Call) -> None:
    first, waiting, second = (
        dead(workerless, queue="gpu"),
        workerless.submit(queue="slow"),
        dead(workerless, queue="gpu"),
    )

    code, lines, err = call("retry", first, waiting, second)

    assert code == 5
    assert f"retry of job {waiting}: job {waiting} is queued" in err
    assert [workerless.read(new)["redriven_from"] for new in lines] == [first, second]
    for new in lines:
        workerless.complete({"worker_id": "w-1", **_claimed(workerless, new)})


def _claimed(workerless: WorkerlessDaemon, job_id: str) -> dict[str, Any]:
    held = workerless.claim("jobs:stream:gpu")
    assert held["job_id"] == job_id
    return {name: held[name] for name in ("job_id", "attempt_id", "lease_token")}


def test_dead_letters_are_listed_and_run_again_once(workerless: WorkerlessDaemon, call: Call) -> None:
    letter, other = dead(workerless, task="tool", queue="gpu"), dead(workerless, task="tool")

    _, listed, _ = call("dlq", "list", "--task", "tool", "--queue", "gpu")
    _, groups, _ = call("dlq", "groups", "--json")
    code, retried, _ = call("dlq", "retry", letter)
    again, nothing, err = call("dlq", "retry", letter)
    _, rest, _ = call("dlq", "retry", "--all", "--task", "tool", "--json")
    _, after, _ = call("dlq", "list", "--task", "tool", "--json")

    assert [line.split("\t")[0] for line in listed] == [letter]
    assert {json.loads(line)["task"]: json.loads(line)["open"] for line in groups}["tool"] == 2
    assert (code, retried[0].split("\t")[0], len(retried)) == (0, letter, 1)
    assert (again, nothing, f"runs again already: {letter}" in err) == (1, [], True)
    assert [json.loads(line)["from"] for line in rest] == [other]
    assert {(one := json.loads(line))["job_id"]: one["redriven_to"] for line in after} == {
        letter: retried[0].split("\t")[1],
        other: json.loads(rest[0])["to"],
    }
    for new in (retried[0].split("\t")[1], json.loads(rest[0])["to"]):
        workerless.api("POST", f"/v1/jobs/{new}/cancel")


@pytest.mark.parametrize(
    ("answer", "code", "word"), [("y\n", 0, "1 jobs run again"), ("n\n", 1, "nothing was done")], ids=["yes", "no"]
)
def test_running_all_again_asks_first_on_a_terminal(
    workerless: WorkerlessDaemon, url: str, answer: str, code: int, word: str
) -> None:
    letter = dead(workerless, task="embed", queue="gpu")

    with terminal("dlq", "retry", "--all", "--task", "embed", "--url", url) as shown:
        shown.wait_for("Run 1 dead letters of task embed again?")
        shown.press(answer)
        ended = shown.end()
        shown.wait_for(word)

    assert ended == code
    to = workerless.api("GET", "/v1/dlq?task=embed").json["letters"][0]["redriven_to"]
    assert (to is not None) == (code == 0)
    workerless.api("POST", "/v1/dlq/retry", {"ids": [letter]})
    for job in workerless.api("GET", "/v1/jobs?task=embed&status=queued").json["jobs"]:
        workerless.api("POST", f"/v1/jobs/{job['job_id']}/cancel")


# -- queues and workers -------------------------------------------------------------------------------------------


def test_queues_tell_their_state_and_are_paused_and_resumed(workerless: WorkerlessDaemon, call: Call) -> None:
    paused = call("pause", "gpu")
    _, lines, _ = call("queues")
    resumed = call("resume", "gpu")
    _, of_json, _ = call("queues", "--json")

    assert (paused, resumed) == ((0, ["queue gpu is paused"], ""), (0, ["queue gpu goes on"], ""))
    assert {line.split("\t")[0]: line.split("\t")[1] for line in lines}["gpu"] == "paused"
    assert {queue["name"]: queue["paused"] for queue in map(json.loads, of_json)} == dict.fromkeys(
        ("default", "gpu", "slow"), False
    )
    assert call("pause", "nowhere")[0] == 5


def test_workers_are_those_that_hold_jobs(workerless: WorkerlessDaemon, call: Call) -> None:
    before = call("workers")
    held = workerless.running()
    _, while_held, _ = call("workers")
    _, of_json, _ = call("workers", "--json")
    workerless.complete(held)

    (line,) = (line for line in while_held if line.endswith("\tw-1"))
    assert (before[0], line.split("\t")[:2]) == (0, ["http", "1"])
    assert any(json.loads(line)["worker_id"] == "w-1" for line in of_json)


# -- top ----------------------------------------------------------------------------------------------------------


def test_one_frame_of_top_shows_everything(workerless: WorkerlessDaemon, call: Call) -> None:
    letter, held = dead(workerless), workerless.running()
    emit_events(workerless, held, {"type": "progress", "data": {"percent": 75}})

    code, lines, err = call("top", "--once")

    text = "\n".join(lines)
    assert (code, err) == (0, "")
    assert all(word in text for word in ("default", "gpu", "slow", held["job_id"], "75%", "w-1", letter)), text
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in text
    workerless.complete(held)


def test_top_needs_a_terminal_or_once_and_someone_to_look_at(call: Call) -> None:
    assert call("top")[0] == 2
    assert call("top", "--once", "--url", "http://127.0.0.1:1")[0] == 69


@pytest.mark.parametrize("key", ["q", CTRL_C], ids=["q", "ctrl-c"])
def test_live_top_says_that_jobd_is_away_and_back_and_leaves_the_terminal_as_it_was(
    workerless: WorkerlessDaemon, key: str
) -> None:
    held = workerless.running()
    place = [workerless.daemon.address]

    with proxy(lambda: place[0]) as line, terminal("top", "--interval", "0.2", "--url", line.url) as shown:
        shown.wait_for("q leaves", "RUNNING JOB", held["job_id"], "DEAD LETTER")
        assert not shown.is_line_mode
        place[0] = "127.0.0.1:1"
        line.hang_up()
        shown.wait_for("jobd is AWAY", "below is how it was")
        place[0] = workerless.daemon.address
        shown.wait_for("jobd is back; it was away for")
        shown.press(key)
        code = shown.end()

        assert (code, shown.is_line_mode) == (0, True)
        assert ENTER in shown.raw
        wait_until(lambda: LEAVE in shown.raw, lambda: shown.raw[-200:], 10.0)
        assert "Traceback" not in shown.text
    workerless.complete(held)


def test_live_top_ends_with_its_terminal(workerless: WorkerlessDaemon) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "jobd", "top", "--url", f"http://{workerless.daemon.address}"]
    with subprocess.Popen(
        command, cwd="/", env=environment({"TERM": "xterm"}), stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        shown = b""
        while b"q leaves" not in shown:
            shown += os.read(ours, 65536)

        os.close(ours)

        process.wait(30)
