"""What the README says to paste does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.daemon import TOP, Jobd, environment
from tests.tasks.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (TOP / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The address that stands in the README, which nobody may own here.
LLM = "http://127.0.0.1:8080/v1"


class Block(NamedTuple):
    kind: str
    text: str


def blocks_of(heading: str) -> list[Block]:
    """The code of one section."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [Block(*found) for found in BLOCK.findall(section)]


EXAMPLES = blocks_of("Run your own code")
#: What to type, and what is printed.
COMMANDS = [
    tuple(part.strip() for part in line.split("    # "))
    for block in EXAMPLES
    if block.kind == "sh"
    for line in block.text.splitlines()
]


class Shell:
    """A shell in which `jobd` is the command, beside a jobd that runs."""

    def __init__(self, folder: Path, daemon: Jobd) -> None:
        self._folder = folder
        self.daemon = daemon
        program = folder / "jobd"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jobd "$@"\n')
        program.chmod(0o755)

    @property
    def variables(self) -> dict[str, str]:
        path = f"{self._folder}:{os.environ['PATH']}"
        return environment({"PATH": path, "JOBD_URL": self.daemon.addresses["JOBD_URL"]})

    def type(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", line], cwd=self._folder, env=self.variables, capture_output=True, text=True, timeout=50
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr, self.daemon.log())
        return done.stdout


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A jobd with the tasks of the README."""
    with tempfile.TemporaryDirectory(prefix="jt-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for block in EXAMPLES:
            if block.kind == "python":
                (folder / block.text.split("\n")[0].removeprefix("# ")).write_text(block.text)
        tables = "".join(block.text for block in EXAMPLES if block.kind == "toml")
        config = folder / "jobd.toml"
        model = OpenAIServer()
        config.write_text(tables.replace(LLM, model.base_url))
        daemon = Jobd(folder / "data", "--config", str(config), PYTHONPATH=f"{folder}:{TOP}")
        try:
            yield Shell(folder, daemon.start().until_ready())
        finally:
            daemon.clean_up()
            model.stop()


def test_there_is_an_example_of_each_way() -> None:
    assert [command.split()[2] for command, _ in COMMANDS] == ["area", "lines", "chat"]
    assert LLM in README


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[command.split()[2] for command, _ in COMMANDS])
def test_example_prints_what_it_says(shell: Shell, command: str, printed: str) -> None:
    assert shell.type(command).strip() == printed


def test_ticket_is_approved_carried_out_and_told(shell: Shell) -> None:
    (script,) = (block.text for block in blocks_of("Tickets") if block.kind == "sh")

    printed = shell.type(script)

    assert "is DONE\n" in printed
    assert "APPROVE by bob, TODO: small enough\n" in printed
    assert 'output\tDONE {"area":42}\n' in printed
