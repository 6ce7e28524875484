"""What the Tab key offers, by the scripts themselves where the shell is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import BashComplete

from jobd import Client
from jobd.cli.main import cli
from tests.support.daemon import environment, run_jobd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def url(daemon: Jobd) -> str:
    return daemon.addresses["JOBD_URL"]


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def offered(*words: str, incomplete: str = "") -> dict[str, str | None]:
    """Words and what is said about them."""
    shell = BashComplete(cli, {}, "jobd", "_JOBD_COMPLETE")
    return {completion.value: completion.help for completion in shell.get_completions(list(words), incomplete)}


def test_commands_and_options_are_offered() -> None:
    assert {"submit", "watch", "list", "dlq", "top", "completion"} <= offered().keys()
    assert offered("dlq").keys() == {"groups", "list", "retry"}
    assert offered("submit", "chat", incomplete="--fo").keys() == {"--follow"}
    assert offered("list", "--status", incomplete="c").keys() == {"canceled"}


def test_tasks_and_queues_are_offered(url: str) -> None:
    assert {"chat", "code"} <= offered("submit", "--url", url, incomplete="c").keys()
    assert offered("submit", "chat", "--url", url, "--queue", incomplete="f").keys() == {"fast"}
    assert offered("pause", "--url", url, incomplete="d").keys() == {"default"}


def test_jobs_are_offered_by_what_can_be_done_with_them(url: str, client: Client, workers: DatabaseWorkers) -> None:
    waiting, dead = (str(client.submit("chat", {}).job_id) for _ in range(2))
    workers.fail(dead)

    assert offered("watch", "--url", url, incomplete=dead[:-1]) == {dead: "chat error"}
    assert offered("cancel", "--url", url).keys() & {waiting, dead} == {waiting}
    assert offered("retry", "--url", url).keys() & {waiting, dead} == {dead}


@pytest.mark.parametrize("words", [("watch",), ("submit", "chat", "--queue"), ("list", "--queue"), ("dlq", "retry")])
def test_a_jobd_that_is_away_offers_nothing_and_says_nothing(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBD_URL", NOWHERE)

    assert offered(*words) == {}
    assert capfd.readouterr() == ("", "")


def test_tab_does_not_read_the_payload() -> None:
    assert offered("submit", "chat", "--payload", "-", incomplete="--wa").keys() == {"--wait"}
    assert offered("submit", "chat", "--set", "a:=x", incomplete="--wa").keys() == {"--wait"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_one_that_the_shell_takes(shell: str) -> None:
    script = run_jobd("completion", shell)

    assert (script.returncode, script.stderr) == (0, "")
    assert "_JOBD_COMPLETE" in script.stdout
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script.stdout, text=True, check=True, timeout=15)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(folder: Path, url: str) -> None:
    (folder / "jobd").write_text(f'#!/bin/sh\nexec {sys.executable} -m jobd "$@"\n')
    (folder / "jobd").chmod(0o755)
    typed = 'eval "$(jobd completion bash)"; COMP_WORDS=(jobd submit chat --queue fa); COMP_CWORD=4'
    variables = environment({"JOBD_URL": url})

    completed = subprocess.run(
        ["bash", "-c", f'{typed}; _jobd_completion jobd; echo "${{COMPREPLY[@]}}"'],
        env={**variables, "PATH": f"{folder}:{variables['PATH']}"},
        capture_output=True,
        text=True,
        timeout=18,
    )

    assert (completed.stdout, completed.stderr) == ("fast\n", "")
