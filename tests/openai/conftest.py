"""A jobd whose models are answered by the test's own server, and clients of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.support.daemon import Jobd
from tests.support.http import Api
from tests.tasks.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
[openai]
reader_grace_s = 1.0
keep_alive_s = 0.5


[server]
cors_origins = ["http://ui.example:3000"]

[retry]
max_attempts = 2
base_s = 0
cap_s = 0

[queues.default]
slots = 32
[queues.nobody]
slots = 0
[queues.one]
slots = 1

[models."maker/small:1b"]
base_url = "{base_url}"
aliases = ["gpt-4o-mini"]
defaults = {{ temperature = 0.25 }}

[models.made-up]
task = "chat"

[models.once]
task = "once"

[models.silent]
base_url = "http://127.0.0.1:9/v1"

[tasks.once]
run = "openai"
base_url = "{base_url}"
model = "tiny"
max_attempts = 1
"""
MODEL = "maker/small:1b"


@pytest.fixture(scope="session")
def model_process() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.stop()


@pytest.fixture
def model_server(model_process: OpenAIServer) -> OpenAIServer:
    model_process.script()
    return model_process


@pytest.fixture(scope="session")
def face(model_process: OpenAIServer) -> Iterator[Jobd]:
    """One `jobd serve` for all tests of this folder that only talk to it."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG.format(base_url=model_process.base_url))
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml")).start().until_ready()
    yield daemon
    daemon.clean_up()
    shutil.rmtree(folder)


@pytest.fixture
def api(face: Jobd) -> Api:
    return Api(face.address)


@pytest.fixture
def client(face: Jobd, model_server: OpenAIServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{face.address}/v1", api_key="none") as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]
