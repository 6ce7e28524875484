"""Tokens, and a jobd that stops in the middle of an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import openai
import pytest

from jobd.auth.token import new_token
from tests.openai.conftest import user
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.tasks.openai_server import OpenAIServer

TOKENS = {name: new_token() for name in ("ann", "bob")}
CONFIG = """
drain_s = 1
[openai]
reader_grace_s = 60
keep_alive_s = 0.2
[queues.nobody]
slots = 0
[models.m]
base_url = "{base_url}"
{tokens}
"""


def write_config(file: Path, server: OpenAIServer, *names: str) -> None:
    tokens = "".join(
        f'[[auth.tokens]]\nname = "{name}"\nsha256 = "{TOKENS[name].sha256.hex()}"\n'
        'scopes = ["client"]\nown_jobs = true\n'
        for name in names
    )
    file.write_text(CONFIG.format(base_url=server.base_url, tokens=tokens))
    file.chmod(0o600)


def as_client(daemon: Jobd, name: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{daemon.address}/v1", api_key=TOKENS[name].text, max_retries=0)


def test_tokens_count_as_everywhere(jobd: Callable[..., Jobd], folder: Path, model_server: OpenAIServer) -> None:
    file = folder / "jobd.toml"
    write_config(file, model_server, "ann", "bob")
    daemon = jobd(None, "--config", str(file)).start().until_ready()
    nobody: dict[str, Any] = {"extra_headers": {"x-jobd-queue": "nobody"}, "stream": True}

    with as_client(daemon, "ann") as ann, as_client(daemon, "bob") as bob:
        with pytest.raises(openai.AuthenticationError) as refused:
            ann.with_options(api_key="wrong").models.list()
        waiting = ann.chat.completions.with_raw_response.create(model="m", messages=user("x"), **nobody)
        job_id = waiting.headers["x-jobd-job-id"]
        again = {"x-jobd-queue": "nobody", "x-stainless-retry-count": "1"}
        own = ann.chat.completions.with_raw_response.create(
            model="m", messages=user("x"), stream=True, extra_headers=again
        )
        foreign = bob.chat.completions.with_raw_response.create(
            model="m", messages=user("x"), stream=True, extra_headers=again
        )

        assert refused.value.code == "unauthorized"
        assert own.headers["x-jobd-job-id"] == job_id
        assert foreign.headers["x-jobd-job-id"] != job_id
        bobs = Api(daemon.address, {"Authorization": f"Bearer {TOKENS['bob'].text}"})
        assert bobs("GET", f"/v1/jobs/{job_id}").status == 404

        write_config(file, model_server, "bob")
        os.kill(daemon.pid, signal.SIGHUP)
        waiting.http_response.read()  # ends, since ann's token is gone
        with pytest.raises(openai.AuthenticationError):
            ann.models.list()
        assert bob.models.list().data[0].id == "m"
        foreign.http_response.close()
        own.http_response.close()


def test_an_answer_that_a_stop_cuts_off_is_not_computed_for_nobody(
    jobd: Callable[..., Jobd], folder: Path, model_server: OpenAIServer
) -> None:
    model_server.script({"hang_after": 3, "times": 3})
    file = folder / "jobd.toml"
    write_config(file, model_server)
    daemon = jobd(None, "--config", str(file)).start().until_ready()
    body = json.dumps({"model": "m", "messages": user("x"), "stream": True})
    url = f"http://{daemon.address}/v1/chat/completions"
    command = ["curl", "--silent", "--no-buffer", "--include", "-H", "Content-Type: application/json", "-d", body, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        lines = iter(curl.stdout.readline, "")
        job_id = next(line.split(": ")[1].strip() for line in lines if line.startswith("x-jobd-job-id"))
        next(line for line in lines if "Hel" in line)
        daemon.stop()
        curl.wait()

    daemon.start().until_ready()
    api = Api(daemon.address)

    wait_until(
        lambda: api("GET", f"/v1/jobs/{job_id}").json["status"] == "canceled",
        lambda: str(api("GET", f"/v1/jobs/{job_id}").json),
        20,
    )
    assert len(model_server.seen) == 1
