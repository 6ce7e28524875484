"""`jobd new`: the files of a small project, each of which is meant to be read and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

TASKS = '''\
"""The tasks of this project. A function that is marked with @task runs the jobs of its name."""

import time

import msgspec

from jobd import Context, TaskFailed, task


class Letter(msgspec.Struct):
    """The payload of a job: checked when the job is submitted, and shown as a form on the web page."""

    name: str
    lines: int = 3


@task(timeout_s=60, max_attempts=3)
def greet(letter: Letter, ctx: Context) -> dict[str, str]:
    """A plain function runs in a thread, an `async def` in the event loop."""
    if not letter.name.strip():
        raise TaskFailed("no_name", "nobody to greet", retryable=False)
    text = ""
    for number in range(letter.lines):
        if ctx.cancelled:  # a thread cannot be stopped from outside
            break
        line = f"Hello {letter.name}, line {number + 1} of {letter.lines}.\\n"
        ctx.token(line)
        ctx.progress((number + 1) / letter.lines, f"line {number + 1}")
        text += line
        time.sleep(0.1)
    return {"text": text}
'''
CONFIG = """\
# What is not here has its default; `jobd config show` prints every option with its value.

# Jobs, results and the database; relative to this file.
data_dir = "data"

# Modules with functions that are marked with @task.
tasks_from = ["tasks"]

[queues.default]
# Jobs that run at once.
slots = 4

# A command as a task: the payload is on its stdin, the last JSON on its stdout is the result.
[tasks.count]
run = "command"
argv = ["wc", "--chars"]
timeout_s = 60

# A model server that speaks the OpenAI protocol (llama.cpp, Ollama, vLLM); its tokens are events of the job.
# [tasks.chat]
# run = "openai"
# base_url = "http://127.0.0.1:8080/v1"
"""
TESTS = '''\
"""Tests of the tasks: inline, and in a jobd of their own. The fixtures come with jobd."""

from jobd.testing import FakeContext, run_handler

from tasks import greet


def test_greets_line_by_line() -> None:
    ran = run_handler(greet, {"name": "Ada", "lines": 2})

    assert ran.outcome == "done"
    assert ran.result == {"text": ran.context.text}
    assert ran.context.shares == [0.5, 1.0]


def test_nobody_to_greet_is_not_tried_again() -> None:
    ran = run_handler(greet, {"name": " "})

    assert ran.error is not None
    assert (ran.error.code, ran.is_retried) == ("no_name", False)


def test_canceled_job_stops() -> None:
    ran = run_handler(greet, {"name": "Ada", "lines": 1000}, FakeContext(cancel_after_events=4))

    assert ran.outcome == "canceled"
    assert len(ran.context.tokens) == 2


def test_job_runs_in_a_real_jobd(jobd_server) -> None:
    job = jobd_server.run("greet", {"name": "Ada", "lines": 1})

    assert job.status == "done"
    assert job.result == {"text": "Hello Ada, line 1 of 1.\\n"}


def test_command_gets_the_payload(jobd_server) -> None:
    assert jobd_server.run("count", {"a": 1}).result == len('{"a":1}')
'''
PYTEST = "[pytest]\npythonpath = .\n"
IGNORED = "/data/\n__pycache__/\n.pytest_cache/\n"
#: Path in the project -> text.
FILES = {
    "tasks.py": TASKS,
    "jobd.toml": CONFIG,
    "test_tasks.py": TESTS,
    "pytest.ini": PYTEST,
    ".gitignore": IGNORED,
}


def write_project(folder: Path) -> list[Path]:
    """Write all files into a new or empty folder; raises ConfigError for one with something in it."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name a new one")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return [folder / name for name in FILES]
