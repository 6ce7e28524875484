"""Model servers of a whole jobd: calls of the OpenAI interface, what people see, and no survivor after its end."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.model_servers.test_service import PROGRAM, free_port
from tests.support.daemon import is_alive, run_jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

CONFIG = '''
[models.small]
base_url = "http://127.0.0.1:{small}/v1"
argv = [{argv}, """{{"port": {small}, "child": "{folder}/child", "runs": "{folder}/runs",
                     "print": ["loading of sk-secret123"]}}"""]

[models.broken]
base_url = "http://127.0.0.1:{broken}/v1"
argv = [{argv}, '{{"exit": 4, "port": 1, "print": ["error: no such file"]}}']
start = "always"
'''


@pytest.fixture
def file(folder: Path) -> Iterator[Path]:
    """A configuration with two model servers; whatever was started of the first is gone after the test."""
    path = folder / "jobd.toml"
    argv = f'"{sys.executable}", "{PROGRAM}"'
    path.write_text(CONFIG.format(small=free_port(), broken=free_port(), argv=argv, folder=folder))
    yield path
    for pid in [int(word) for name in ("runs", "child") for word in (folder / name).read_text().split()]:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def ask(daemon: Jobd, model: str, text: str = "hello") -> str:
    call = {"model": model, "messages": [{"role": "user", "content": text}]}
    answer = Api(daemon.address)("POST", "/v1/chat/completions", call)
    assert answer.status == 200, answer.body
    content: str = answer.json["choices"][0]["message"]["content"]
    return content


def pid_of(daemon: Jobd, model: str) -> int:
    (server,) = [each for each in daemon.get("/v1/board")[1]["model_servers"] if each["model"] == model]
    pid: int = server["pid"]
    return pid


def test_a_call_starts_the_server_and_no_end_of_jobd_leaves_it(
    jobd: Callable[..., Jobd], folder: Path, file: Path
) -> None:
    daemon = jobd(None, "--config", str(file)).start().until_ready()

    assert ask(daemon, "small") == "I am small"

    # What people see: a failed server leaves jobd ready, and its state has a reason.
    status, readiness = daemon.get("/readyz")
    assert (status, readiness["status"]) == (200, "ready")
    assert readiness["services"]["model_servers"].startswith("ready: small ready, broken ")
    wait_until(lambda: "failed" in daemon.get("/readyz")[1]["services"]["model_servers"])
    rows = run_jobd("models", JOBD_URL=daemon.addresses["JOBD_URL"]).stdout.splitlines()
    assert rows[0].split("\t")[:3] == ["small", "ready", "0"]
    assert rows[1].split("\t")[0] == "broken"
    assert [each["id"] for each in daemon.get("/v1/models")[1]["data"]] == ["small", "broken"]
    log = daemon.log_file.read_text()
    assert "loading of sk-***" in log
    assert "sk-secret123" not in log

    # Killed: the server survives, and the next jobd ends it and starts one of its own.
    first, child = pid_of(daemon, "small"), int((folder / "child").read_text())
    daemon.kill()
    assert is_alive(first)
    daemon.start().until_ready()
    assert not is_alive(first)
    assert not is_alive(child)
    assert ask(daemon, "small") == "I am small"

    # Stopped in order: nothing is left.
    second, child = pid_of(daemon, "small"), int((folder / "child").read_text())
    daemon.stop()
    assert not is_alive(second)
    assert not is_alive(child)


def test_a_job_that_kills_its_server_is_charged_and_the_next_one_finds_another(
    jobd: Callable[..., Jobd], file: Path
) -> None:
    daemon = jobd(None, "--config", str(file), JOBD_RETRY_MAX_ATTEMPTS="1").start().until_ready()
    call = {"model": "small", "messages": [{"role": "user", "content": "die"}]}

    died = Api(daemon.address)("POST", "/v1/chat/completions", call)

    assert died.status == 502
    assert died.json["error"]["code"] in ("upstream_cut", "upstream_unreachable")
    assert ask(daemon, "small") == "I am small"
    daemon.stop()
