"""`jobd dev` as a process: what is saved takes the next job, what runs goes on, what is broken changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobd import Client
from tests.support.daemon import TOP
from tests.support.prepared import KEPT
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS = """
import time
from pathlib import Path
from jobd import task
from words import WORD

@task
def say(payload, ctx):
    return WORD

@task(isolate=True)
def say_apart(payload, ctx):
    return WORD

@task
def wait_for(payload, ctx):
    ctx.progress(0)
    while not Path(payload["file"]).exists() and not ctx.cancelled:
        time.sleep(0.01)
    return WORD

@task
def fail(payload, ctx):
    raise ValueError("as asked")
"""


class Dev:
    def __init__(self, project: Path, home: Path) -> None:
        self.project = project
        #: For the folder that is thrown away.
        self.home = home
        self.log_file = project / "dev.log"
        variables = {"PYTHONPATH": str(TOP), "JOBD_TEST_CACHE": str(KEPT), "TMPDIR": str(home)}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobd", "dev", "tasks", "--temporary", "--port", "0", "--open"],
                cwd=project,
                env={**os.environ, **variables, "PYTHONWARNINGS": "error"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._url() is not None, self.log, 45)
        url = self._url()
        assert url is not None
        self.client = Client(url[1])

    def _url(self) -> re.Match[str] | None:
        assert self.process.poll() is None, self.log()
        return re.search(r"serves at (http\S+), data thrown away at the end\n", self.log())

    def log(self) -> str:
        return self.log_file.read_text()

    def save(self, name: str, text: str) -> None:
        (self.project / name).write_text(text)

    def result(self, task: str, payload: dict[str, Any] | None = None) -> Any:
        return self.client.submit_and_wait(task, payload or {}, wait_s=30).result

    def close(self) -> int:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    project = tmp_path_factory.mktemp("project")
    (project / "words.py").write_text('WORD = "first"\n')
    (project / "tasks.py").write_text(TASKS)
    (project / "jobd.toml").write_text("[queues.default]\nslots = 2\n")
    home = Path(tempfile.mkdtemp(prefix="jt-"))
    home.chmod(0o755)
    dev = Dev(project, home)
    yield dev
    if dev.process.poll() is None:
        dev.close()
    shutil.rmtree(home)


def test_saved_code_takes_the_next_job_while_running_jobs_finish_with_the_old(dev: Dev) -> None:
    dev.save("words.py", 'WORD = "one"\n')
    wait_until(lambda: dev.result("say") == "one", dev.log, 30)
    running = dev.client.submit("wait_for", {"file": str(dev.project / "go")})
    wait_until(lambda: dev.client.get(running.job_id).status == "running", dev.log, 30)

    dev.save("words.py", 'WORD = "two"\n')
    wait_until(lambda: dev.result("say") == "two", dev.log, 30)
    apart = dev.result("say_apart")
    (dev.project / "go").touch()
    ended = dev.client.wait(running.job_id, timeout_s=30)

    assert apart == "two"
    assert (ended.result, len(ended.attempts)) == ("one", 1)
    assert "1 running jobs finish with the old code" in dev.log()


def test_running_job_can_be_canceled_after_a_save(dev: Dev) -> None:
    running = dev.client.submit("wait_for", {"file": str(dev.project / "never")})
    wait_until(lambda: dev.client.get(running.job_id).status == "running", dev.log, 30)
    dev.save("words.py", 'WORD = "three"\n')
    wait_until(lambda: dev.result("say") == "three", dev.log, 30)

    dev.client.cancel(running.job_id)

    assert dev.client.wait(running.job_id, timeout_s=30).status == "canceled"
    wait_until(lambda: "wait_for stopped after" in dev.log(), dev.log, 30)


def test_broken_code_changes_nothing_and_the_log_says_where(dev: Dev) -> None:
    before = dev.result("say")

    dev.save("words.py", "WORD = = 4\n")

    wait_until(lambda: "not reloaded, the old code goes on" in dev.log(), dev.log, 30)
    assert "WORD = = 4" in dev.log()
    assert dev.result("say") == before
    dev.save("words.py", 'WORD = "mended"\n')
    wait_until(lambda: dev.result("say") == "mended", dev.log, 30)


def test_saved_configuration_brings_tasks_and_refuses_a_queue(dev: Dev) -> None:
    dev.save("jobd.toml", '[queues.default]\nslots = 2\n[tasks.lines]\nrun = "command"\nargv = ["wc", "-l"]\n')
    wait_until(lambda: "reloaded jobd.toml" in dev.log(), dev.log, 30)
    assert dev.result("lines") == 0

    dev.save("jobd.toml", '[queues.default]\nslots = 2\n[queues.gpu]\n[tasks.far]\nrun = "mock"\nqueue = "gpu"\n')

    wait_until(lambda: "restart jobd to make this queue" in dev.log(), dev.log, 30)
    assert dev.result("lines") == 0


def test_failure_is_shown_with_its_stack(dev: Dev) -> None:
    job = dev.client.submit_and_wait("fail", {}, max_attempts=1, wait_s=30)

    assert job.status == "error"
    assert 'raise ValueError("as asked")' in dev.log()
    assert "fail failed after" in dev.log()


def test_page_is_shown_and_data_is_thrown_away_at_the_end(dev: Dev) -> None:
    """The last: it ends what the others use."""
    wait_until(lambda: re.search(r"^http://127.0.0.1:\d+/$", dev.log(), re.MULTILINE) is not None, dev.log, 30)
    assert [path.name[:9] for path in dev.home.iterdir()] == ["jobd-dev-"]

    assert dev.close() == 0, dev.log()

    assert list(dev.home.iterdir()) == []


def test_temporary_and_a_data_directory_exclude_each_other() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "jobd", "dev", "--temporary", "--data-dir", "x"],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert refused.returncode == 2
    assert "exclude each other" in refused.stderr
