"""`jobd chat` and `jobd models` as processes: what they print, and how a conversation is left and taken up."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jobd.cli.conversations import MOST, Conversation, Conversations
from tests.openai.conftest import MODEL
from tests.openai.test_openai_python import TOOLS
from tests.support.daemon import environment, run_jobd
from tests.support.terminal import CTRL_C, terminal
from tests.support.wait import wait_until
from tests.tasks.openai_server import TOKENS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.terminal import Terminal
    from tests.tasks.openai_server import OpenAIServer

HELLO = "".join(TOKENS)
CTRL_D = "\x04"


@pytest.fixture
def variables(face: Jobd, model_server: OpenAIServer, folder: Path) -> dict[str, str]:
    return {"JOBD_URL": face.addresses["JOBD_URL"], "XDG_STATE_HOME": str(folder)}


def kept(folder: Path) -> list[Conversation]:
    return Conversations({"XDG_STATE_HOME": str(folder)}).all()


def on_terminal(variables: dict[str, str], *arguments: str) -> AbstractContextManager[Terminal]:
    return terminal(*arguments, columns=100, lines=24, **variables)


def until_prompted(screen: Terminal, times: int) -> None:
    """Keys that are pressed before are read by nobody: line editing drops them when it begins."""
    wait_until(lambda: screen.text.count("\n> ") >= times, lambda: repr(screen.text), 30)


def test_models(variables: dict[str, str]) -> None:
    lines = run_jobd("models", **variables).stdout.splitlines()
    objects = [json.loads(line) for line in run_jobd("models", "--json", **variables).stdout.splitlines()]

    assert MODEL in lines
    assert [each["id"] for each in objects] == lines


def test_one_message(variables: dict[str, str], folder: Path) -> None:
    done = run_jobd("chat", MODEL, "-m", "hi", **variables)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{HELLO}\n", "")
    file = folder / "jobd" / "conversations.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (conversation,) = kept(folder)
    assert (conversation.model, conversation.title, len(conversation.responses)) == (MODEL, "hi", 1)


def test_a_pipe_is_one_message_and_a_conversation_goes_on(
    variables: dict[str, str], model_server: OpenAIServer, folder: Path
) -> None:
    command = [sys.executable, "-m", "jobd", "chat", MODEL, "--system", "Be kind."]
    subprocess.run(command, input="one\ntwo", env=environment(variables), cwd="/", check=True, text=True)

    done = run_jobd("chat", "--continue", "-m", "three", "--json", **variables)

    answered = json.loads(done.stdout)
    assert [message["content"] for message in model_server.seen[-1]["body"]["messages"]] == [
        "Be kind.",
        "one\ntwo",
        HELLO,
        "three",
    ]
    assert [each.responses for each in kept(folder)] == [[answered["previous_response_id"], answered["id"]]]
    listed = run_jobd("chat", "--list", **variables).stdout.split("\t")
    assert (listed[0], listed[1], listed[3]) == (answered["id"], MODEL, "one two\n")


def test_a_conversation_goes_on_behind_an_answer_that_failed(
    variables: dict[str, str], model_server: OpenAIServer
) -> None:
    model_server.script({}, {"status": 400}, {})
    assert run_jobd("chat", MODEL, "-m", "one", **variables).returncode == 0
    assert run_jobd("chat", "-c", "-m", "two", **variables).returncode == 1

    done = run_jobd("chat", "-c", "-m", "three", **variables)

    assert done.stdout == f"{HELLO}\n"
    said = [message["content"] for message in model_server.seen[-1]["body"]["messages"]]
    assert said == ["one", HELLO, "three"]


def test_an_answer_that_fails_is_said_and_is_the_exit_code(
    variables: dict[str, str], model_server: OpenAIServer
) -> None:
    model_server.script({"status": 400, "error": {"message": "too long"}})

    done = run_jobd("chat", MODEL, "-m", "hi", **variables)

    assert (done.returncode, done.stdout) == (1, "")
    assert "too long" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word", "code"),
    [
        (("large", "-m", "hi"), "there is no model large", 5),
        (("-m", "hi"), "name one", 2),
        ((MODEL, "-m", " "), "nothing to ask", 2),
        (("--continue", "-m", "hi"), "no conversation", 2),
        (("--continue", "--resume", "resp_1", "-m", "hi"), "do not go together", 2),
        (("--resume", "resp_1", "-m", "hi"), "there is no response", 5),
    ],
)
def test_what_cannot_be_is_said(variables: dict[str, str], arguments: tuple[str, ...], word: str, code: int) -> None:
    done = run_jobd("chat", *arguments, **variables)

    assert done.returncode == code
    assert word in done.stderr


def test_a_conversation_in_a_terminal(variables: dict[str, str], model_server: OpenAIServer, folder: Path) -> None:
    model_server.script({}, {"tokens": ["Well", ", "], "hang_after": 3}, {"data": TOOLS})

    with on_terminal(variables, "chat", MODEL) as screen:
        until_prompted(screen, 1)
        screen.press("hi\r")
        screen.wait_for(HELLO)
        until_prompted(screen, 2)
        screen.press("and?\r")
        screen.wait_for("Well, ")
        screen.press(CTRL_C)
        screen.wait_for("the answer was ended")
        until_prompted(screen, 3)
        screen.press("go on\r")
        screen.wait_for("Let me see.", "I look it up.", 'calls weather({"city": "Bonn"})')
        until_prompted(screen, 4)
        screen.press(CTRL_D)
        screen.wait_for("jobd chat --resume resp_")
        assert screen.end() == 0

    model_server.until_hung_up()
    (conversation,) = kept(folder)
    assert len(conversation.responses) == 3
    said = [message["content"] for message in model_server.seen[-1]["body"]["messages"]]
    assert said == ["hi", HELLO, "go on"], "an answer that was ended is continued"


def test_an_answer_goes_on_without_its_terminal(
    variables: dict[str, str], model_server: OpenAIServer, folder: Path
) -> None:
    model_server.script({"tokens": list("abcdefghij"), "delay_s": 0.1})
    with on_terminal(variables, "chat", MODEL) as screen:
        until_prompted(screen, 1)
        screen.press("count\r")
        screen.wait_for("ab")

    with on_terminal(variables, "chat", "--continue") as screen:
        screen.wait_for("abcdefghij")
        until_prompted(screen, 1)
        screen.press(CTRL_D)
        assert screen.end() == 0

    assert len(kept(folder)[0].responses) == 1


def test_as_many_conversations_are_kept_as_fit_and_a_damaged_file_is_none(folder: Path) -> None:
    conversations = Conversations({"XDG_STATE_HOME": str(folder)})
    for n in range(MOST + 1):
        conversations.keep(Conversation(responses=[f"resp_{n}"], model="m", url="u", title="t" * 1000))

    found = conversations.all()
    assert len(found) == MOST
    assert found[-1].last == f"resp_{MOST}"
    assert max(len(each.title) for each in found) == 60

    (folder / "jobd" / "conversations.json").write_bytes(b"\xff")
    assert conversations.all() == []
