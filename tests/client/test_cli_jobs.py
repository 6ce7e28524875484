"""`jobd submit`, `get` and `cancel` as processes: what they print, where, and their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from jobd import Client
from tests.http.test_events import claim, complete
from tests.support.daemon import environment, run_jobd
from tests.support.http import Api
from tests.support.terminal import terminal
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"


@pytest.fixture
def url(daemon: Jobd) -> str:
    return daemon.addresses["JOBD_URL"]


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


class Running:
    """A command under way; its job is known by what it says first."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobd", *arguments, "--url", url],
            cwd="/",
            env=environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What runs in the background of a shell ignores it, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self._process.stderr is not None
        words = self._process.stderr.readline().split()
        assert words[:2] == ["jobd:", "job"], words
        self.job_id = words[2]

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def read(self, characters: int) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.read(characters)

    def end(self) -> tuple[int, str, str]:
        """Not by `communicate`: it reads past these files, and what they had read ahead would be lost."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with self._process:
            out, err = self._process.stdout.read(), self._process.stderr.read()
        return self._process.returncode, out, err


@pytest.fixture
def run(url: str) -> Iterator[Callable[..., Running]]:
    """Starts commands, and ends whatever is left of them."""
    started: list[Running] = []

    def start(*arguments: str) -> Running:
        started.append(Running(url, *arguments))
        return started[-1]

    yield start
    for command in started:
        command.clean_up()


# -- submit -------------------------------------------------------------------------------------------------------


def test_submit_prints_the_id_alone(url: str, client: Client) -> None:
    done = run_jobd("submit", "chat", "--payload", '{"a": 1}', "--queue", "fast", "--priority", "5", "--url", url)

    job = client.get(done.stdout.strip())
    assert (done.returncode, done.stderr) == (0, "")
    assert (job.payload, job.queue, job.priority) == ({"a": 1}, "fast", 5)


def test_submit_as_json_is_the_job(url: str) -> None:
    done = run_jobd("submit", "chat", "--json", "--url", url)

    job = json.loads(done.stdout)
    assert (job["status"], job["payload"]) == ("queued", {})
    assert list(job)[:4] == ["job_id", "task", "payload", "status"]


def test_a_payload_comes_from_a_file_or_from_stdin(url: str, client: Client, folder: Path) -> None:
    (folder / "payload.json").write_text('{"from": "file"}\n')

    from_file = run_jobd("submit", "chat", "--payload", f"@{folder}/payload.json", "--url", url)
    from_stdin = subprocess.run(
        [sys.executable, "-m", "jobd", "submit", "chat", "--payload", "-", "--url", url],
        cwd="/",
        env=environment({}),
        input='\n{"from": "stdin"}\n',
        capture_output=True,
        text=True,
        timeout=15,
    )

    assert client.get(from_file.stdout.strip()).payload == {"from": "file"}
    values = ("--set", "from=flags", "--set", "n:=[1]", "--set", f"text=@{folder}/payload.json")
    by_flags = run_jobd("submit", "chat", "--payload", '{"a": 1, "n": 0}', *values, "--url", url)
    assert client.get(by_flags.stdout.strip()).payload == {
        "a": 1,
        "n": [1],
        "from": "flags",
        "text": '{"from": "file"}\n',
    }
    assert client.get(from_stdin.stdout.strip()).payload == {"from": "stdin"}


BAD: dict[str, tuple[list[str], int, str]] = {
    "a task that is none": (["submit", "nonsense"], 5, "jobd: submit of nonsense: there is no task nonsense"),
    "a queue that is none": (["submit", "chat", "--queue", "nowhere"], 5, "there is no queue nowhere"),
    "a payload that is no JSON": (["submit", "chat", "--payload", "hello"], 2, "--payload': cannot be read"),
    "a payload with more behind it": (["submit", "chat", "--payload", '{},"ttl_s":1'], 2, "--payload': cannot be read"),
    "a payload that is no object": (["submit", "chat", "--payload", "[1]"], 2, "must be a JSON object, as in"),
    "the same key twice": (["submit", "chat", "--payload", '{"a":1,"a":2}'], 5, "(duplicate_key)"),
    "a file that is not there": (["submit", "chat", "--payload", "@/none"], 2, "No such file or directory"),
    "a token file that is not there": (["submit", "chat", "--token-file", "/none"], 2, "/none: No such file"),
    "an empty token file": (["get", NOBODY, "--token-file", "/dev/null"], 2, "/dev/null is empty"),
    "a value without a key": (["submit", "chat", "--set", "=x"], 2, "must be like text=hello"),
    "a value that is no JSON": (["submit", "chat", "--set", "a:=x"], 2, "the value of 'a' cannot be read"),
    "a cancel of nothing": (["submit", "chat", "--cancel-on-interrupt"], 2, "goes with --wait or --follow"),
    "no job at all": (["retry"], 2, "Missing argument"),
    "letters by name and all": (["dlq", "retry", "--all", NOBODY], 2, "name jobs, or give --all"),
    "letters of a task without all": (["dlq", "retry", "--task", "chat"], 2, "name jobs, or give --all"),
    "a letter that is no id": (["dlq", "retry", "x"], 5, "$.ids[0]"),
    "a limit of nothing": (["list", "--limit", "0"], 2, "is not in the range"),
    "a delete of everything unsaid": (["delete"], 2, "give a filter"),
    "a delete of all and some": (["delete", "--all", "--status", "done"], 2, "give a filter"),
    "a delete of running jobs": (["delete", "--status", "running"], 2, "is not one of"),
    "a delete by no time": (["delete", "--older-than", "soon"], 2, "is no time"),
    "a status that is none": (["list", "--status", "odd"], 2, "is not one of"),
    "a job to watch that is none": (["watch", NOBODY], 5, f"job {NOBODY}: there is no job"),
    "a shell that is none": (["completion", "csh"], 2, "is not one of"),
    "a timeout of nothing": (["submit", "chat", "--timeout", "1"], 2, "--timeout goes with --wait"),
    "a token on the command line": (["submit", "chat", "--token", "x"], 2, "No such option"),
    "a job that is none": (["get", NOBODY], 5, f"jobd: job {NOBODY}: there is no job"),
    "a cancel of none": (["cancel", "x"], 5, "jobd: cancel of job x: 'x' is no job id"),
    "nobody there": (["get", NOBODY, "--url", "http://127.0.0.1:1"], 69, "is jobd running there?"),
    "a URL that is none": (["get", NOBODY, "--url", "ftp://x"], 78, "url must be like http://host:port"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_ends_with_its_code_and_one_clear_line(daemon: Jobd, name: str) -> None:
    arguments, code, words = BAD[name]
    where = [] if {"--url", "completion"} & {*arguments} else ["--url", daemon.addresses["JOBD_URL"]]

    done = run_jobd(*arguments, *where)

    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


# -- which jobd ---------------------------------------------------------------------------------------------------


def test_the_jobd_that_is_meant_is_found(daemon: Jobd, url: str, client: Client, folder: Path) -> None:
    job_id = str(client.submit("chat", {}).job_id)
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--url", url], {}),
        ([], {"JOBD_URL": url}),
        (["--data-dir", str(daemon.data_dir)], {}),
        (["--data-dir", str(daemon.data_dir)], {"JOBD_URL": "http://127.0.0.1:1"}),
        ([], {"JOBD_DATA_DIR": str(daemon.data_dir)}),
    ]

    found = [run_jobd("get", job_id, "--json", *arguments, **variables) for arguments, variables in ways]
    nowhere = run_jobd("get", job_id, "--data-dir", str(folder / "none"))

    assert [json.loads(done.stdout)["job_id"] for done in found] == [job_id] * len(ways)
    assert (nowhere.returncode, "has no jobd in it yet" in nowhere.stderr) == (73, True)


def test_a_token_comes_from_a_file_or_a_variable(folder: Path, jobd: Any) -> None:
    daemon = jobd().start().until_ready()
    made = run_jobd("token", "create", "--name", "me", "--scope", "client", "--data-dir", str(daemon.data_dir))
    (folder / "token").write_text(made.stdout)
    here = ("submit", "chat", "--url", daemon.addresses["JOBD_URL"])
    wait_until(lambda: run_jobd(*here).returncode == 77, daemon.log, 10.0)

    by_file = run_jobd(*here, "--token-file", str(folder / "token"))
    by_variable = run_jobd(*here, JOBD_TOKEN=made.stdout.strip())
    wrong = run_jobd(*here, JOBD_TOKEN="jobd_00000000_wrong")

    assert (by_file.returncode, by_variable.returncode, wrong.returncode) == (0, 0, 77)
    assert "jobd_00000000_wrong" not in wrong.stderr


# -- waiting and following ----------------------------------------------------------------------------------------


def test_the_outcome_of_a_job_is_the_exit_code(
    run: Callable[..., Running], client: Client, workers: DatabaseWorkers
) -> None:
    done, error, canceled = (run("submit", "chat", "--wait") for _ in range(3))
    workers.finish(done.job_id, '{"text": "hi"}')
    workers.fail(error.job_id)
    client.cancel(canceled.job_id)

    assert done.end() == (0, '{"text":"hi"}\n', "")
    code, out, err = error.end()
    assert (code, out) == (1, "")
    assert err.startswith(f"jobd: job {error.job_id} ended in error after 1 attempts: ")
    assert canceled.end() == (3, "", f"jobd: job {canceled.job_id} was canceled\n")


def test_waiting_too_long_has_a_code_of_its_own_and_leaves_the_job(run: Callable[..., Running], client: Client) -> None:
    waiting = run("submit", "chat", "--wait", "--timeout", "0.2")

    code, out, err = waiting.end()

    assert (code, out) == (4, "")
    assert f"job {waiting.job_id} is queued after 0.2 s of waiting; it goes on" in err
    assert client.get(waiting.job_id).status == "queued"


def test_following_prints_what_comes_as_it_comes(run: Callable[..., Running], daemon: Jobd) -> None:
    api = Api(daemon.address)
    following = run("submit", "chat", "--queue", "told", "--follow")
    held = claim(api, following.job_id)
    proof = {name: held[name] for name in ("worker_id", "job_id", "lease_token")}
    said = [
        {"type": "token", "data": {"t": "Hel"}},
        {"type": "token", "data": {"text": "lo\x1b[2J"}},
        {"type": "progress", "step": "load", "data": {"percent": 40}},
        {"type": "log", "data": {"line": "a\x07b"}},
        {"type": "token", "data": {"t": "world"}},
    ]

    api("POST", "/internal/worker/events", {**proof, "events": said})
    while_it_runs = following.read(len("Hello[2J\nworld"))
    complete(api, held)
    code, rest, err = following.end()

    assert while_it_runs == "Hello[2J\nworld"
    assert (code, rest) == (0, "\n")
    assert err.splitlines() == ["queued", "running, attempt 1", 'progress: load: {"percent":40}', "log: ab"]


def test_following_as_json_is_one_event_a_line_and_then_the_job(run: Callable[..., Running], daemon: Jobd) -> None:
    api = Api(daemon.address)
    following = run("submit", "chat", "--queue", "told", "--follow", "--json")
    held = claim(api, following.job_id)
    complete(api, held)

    code, out, err = following.end()

    *events, job = map(json.loads, out.splitlines())
    assert [(event["id"], event["type"]) for event in events] == [
        ("0-1", "queued"),
        ("1-0", "running"),
        ("1-1", "done"),
    ]
    assert (job["job_id"], job["status"], job["result"]) == (following.job_id, "done", {"ok": True})
    assert (code, err) == (0, "")


def test_following_tells_of_attempts_that_failed(run: Callable[..., Running], workers: DatabaseWorkers) -> None:
    following = run("submit", "chat", "--follow")
    workers.fail(following.job_id, retryable=True, delay_s=0.0)
    workers.fail(following.job_id)

    code, out, err = following.end()

    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert lines[:2] == ["queued", "running, attempt 1"]
    assert lines[2].startswith("attempt 1 failed, queued again: ")
    assert lines[3] == "running, attempt 2"
    assert "ended in error after 2 attempts" in lines[4]


@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_ctrl_c_leaves_the_job_and_says_so(run: Callable[..., Running], client: Client, how: str) -> None:
    running = run("submit", "chat", how)

    running.interrupt()
    code, out, err = running.end()

    assert (code, out) == (130, "")
    assert f"job {running.job_id} goes on\n" in err
    assert f"jobd watch {running.job_id}" in err
    assert "Traceback" not in err
    assert client.get(running.job_id).status == "queued"


# -- get and cancel -----------------------------------------------------------------------------------------------


def test_get_shows_where_a_job_stands(url: str, client: Client, workers: DatabaseWorkers) -> None:
    job_id = str(client.submit("chat", {"text": "x\x1b[31m"}, max_attempts=2).job_id)
    waiting = run_jobd("get", job_id, "--url", url)
    workers.fail(job_id, retryable=True, delay_s=0.0)
    workers.finish(job_id, '{"text": "hi"}')

    done = run_jobd("get", job_id, "--url", url)
    as_json = run_jobd("get", job_id, "--url", url, "--json")

    assert waiting.stdout.splitlines()[0] == f"job         {job_id}"
    assert "status      queued (in_line, " in waiting.stdout
    shown = done.stdout.splitlines()
    assert {"status      done", "attempts    2 of 2", 'result      {"text":"hi"}'} <= set(shown)
    assert [line[:16].rstrip() for line in shown[-2:]] == ["attempt 1   fail", "attempt 2   done"]
    assert "\x1b" not in done.stdout
    assert json.loads(as_json.stdout)["attempts"][1]["outcome"] == "done"


def test_cancel_says_what_came_of_it(url: str, client: Client, workers: DatabaseWorkers) -> None:
    waiting, running, done = (str(client.submit("chat", {}).job_id) for _ in range(3))
    workers.start(running)
    workers.finish(done)

    ended = [run_jobd("cancel", job_id, "--url", url) for job_id in (waiting, running, done)]

    assert [command.returncode for command in ended] == [0, 0, 5]
    assert ended[0].stdout == f"job {waiting}: canceled\n"
    assert ended[1].stdout.startswith(f"job {running}: asked to stop")
    assert f"job {done} is done and stays so" in ended[2].stderr
    assert json.loads(run_jobd("cancel", waiting, "--json", "--url", url).stdout)["status"] == "canceled"


# -- delete ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished(client: Client, workers: DatabaseWorkers) -> Iterator[str]:
    """The label of three jobs that are done."""
    value = str(uuid.uuid4())
    for _ in range(3):
        workers.finish(str(client.submit("plan", {}, labels={"of": value}).job_id))
    yield value
    client.delete_jobs(labels={"of": value})


def test_delete_says_how_many_jobs_went(client: Client, url: str, finished: str) -> None:
    kept = run_jobd("delete", "--label", f"of={finished}", "--older-than", "1d", "--url", url)
    gone = run_jobd("delete", "--label", f"of={finished}", "--status", "done", "--json", "--url", url)

    assert (kept.returncode, kept.stdout) == (0, "there is nothing to delete\n")
    assert (gone.returncode, json.loads(gone.stdout)) == (0, {"deleted": 3, "skipped": 0})
    assert client.count(labels={"of": finished}).count == 0


@pytest.mark.parametrize(("key", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 3)])
def test_delete_asks_on_a_terminal(client: Client, url: str, finished: str, key: str, code: int, left: int) -> None:
    with terminal("delete", "--label", f"of={finished}", "--url", url) as shown:
        shown.wait_for("Delete 3 jobs with their results?")
        shown.press(key)
        ended = shown.end()

    assert ended == code
    assert client.count(labels={"of": finished}).count == left


def test_delete_with_yes_does_not_ask(client: Client, url: str, finished: str) -> None:
    with terminal("delete", "--label", f"of={finished}", "--yes", "--url", url) as shown:
        assert shown.end() == 0
        shown.wait_for("3 jobs deleted")


def test_limits_of_keys_are_set_listed_and_dropped(url: str) -> None:
    set_one = run_jobd("limit", "set", "fast", "ann", "--running", "2", "--json", "--url", url)
    listed = run_jobd("limit", "list", "fast", "--json", "--url", url)
    table = run_jobd("limit", "list", "fast", "--url", url)
    dropped = run_jobd("limit", "drop", "fast", "ann", "--url", url)

    assert json.loads(set_one.stdout)["running"] == 2
    assert [json.loads(line)["key"] for line in listed.stdout.splitlines()] == ["ann"]
    assert table.stdout.split()[:2] == ["ann", "2"]
    assert "configured for every key" in table.stderr
    assert dropped.stdout == "key ann of queue fast has no limits of its own\n"


def test_a_rate_without_its_period_is_wrong_usage(url: str) -> None:
    assert run_jobd("limit", "set", "fast", "ann", "--rate", "2", "--url", url).returncode == 2


def test_pause_and_resume_name_what_they_mean(url: str) -> None:
    assert run_jobd("pause", "--task", "embed", "--all", "--url", url).returncode == 0
    resumed = run_jobd("resume", "--task", "embed", "--all", "--url", url)

    assert resumed.stdout == "task embed goes on\njobs are started again\n"
    assert run_jobd("pause", "--url", url).returncode == 2
