"""What README.md and the guides say to type does what they say, on a jobd with the configuration that they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import SHOWN, Page, all_pages
from tests.support.daemon import TOP, Jobd, environment
from tests.tasks.openai_server import OpenAIServer

PAGES = all_pages()
RUN = [page for page in PAGES if page.is_typed]
#: Addresses and folders that stand in the pages, which nobody may own here.
MODEL_SERVER = "http://127.0.0.1:8080/v1"
JOBD = ("http://127.0.0.1:7433", "http://localhost:7433", "localhost:7433")
FOLDERS = ("/etc/prometheus", "/mnt/usb")
#: Seconds for all that is typed of a page.
PAGE_S = 100.0


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_block_is_of_a_kind_that_is_checked(page: Page) -> None:
    known = {"toml", "python", "sh", "json", "yaml", *SHOWN}

    assert {block.kind for block in page.blocks} <= known
    assert all((TOP / block.about.partition("::")[0]).exists() for block in page.blocks if block.mark == "run by")
    for block in page.of_kind("json"):
        json.loads(block.text)


@pytest.mark.timeout(PAGE_S + 60)
@pytest.mark.parametrize("page", RUN, ids=[page.name for page in RUN])
def test_page_does_what_it_says(page: Page) -> None:
    with tempfile.TemporaryDirectory(prefix="jt-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file, text in page.files.items():
            (folder / file).write_text(text)
        for command, program in (("jobd", "-m jobd"), ("python", "")):
            (folder / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
            (folder / command).chmod(0o755)
        model = OpenAIServer()
        config = folder / "jobd.toml"
        config.write_text(page.config.replace(MODEL_SERVER, model.base_url))
        daemon = Jobd(folder / "data", "--config", str(config), PYTHONPATH=f"{folder}:{TOP}")
        try:
            daemon.start().until_ready()
            typed(page.script, folder, daemon)
        finally:
            daemon.clean_up()
            model.stop()


def typed(script: str, folder: Path, daemon: Jobd) -> None:
    address = daemon.addresses["JOBD_URL"]
    for shown in JOBD:
        script = script.replace(shown, address if shown.startswith("http") else address.removeprefix("http://"))
    for shown in FOLDERS:
        script = script.replace(shown, str(folder / Path(shown).name))
        (folder / Path(shown).name).mkdir()
    variables = environment(
        {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}:{TOP}",
            "JOBD_URL": address,
            "JOBD_DATA_DIR": str(folder / "data"),
            "HOME": str(folder),
        }
    )
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{daemon.log()}"
