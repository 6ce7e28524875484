"""Every example does what its README says, against a real jobd."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Any

import pytest

from jobd.testing import start_server
from tests.support.daemon import TOP
from tests.support.prepared import KEPT
from tests.support.wait import wait_until
from tests.tasks.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jobd.testing import JobdServer

EXAMPLES = TOP / "examples"
#: Seconds after which a program of an example hangs.
TOO_LONG_S = 120


def started(name: str, **options: Any) -> JobdServer:
    """A jobd in the folder of an example, with its configuration."""
    folder = EXAMPLES / name
    return start_server(folder / "jobd.toml", root=folder, templates=KEPT, **options)


def run(server: JobdServer, name: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(TOP), "JOBD_URL": server.url}
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=EXAMPLES / name,
        env=variables,
        capture_output=True,
        text=True,
        timeout=TOO_LONG_S,
    )


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.stop()


def test_each_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    folders = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert folders
    assert [name for name in folders if f"]({name})" not in listed] == []


def test_summary_of_a_long_text_is_made_of_its_parts(model: OpenAIServer, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("First paragraph.\n\nSecond paragraph.\n\nThird, which is last.")
    model.script({"tokens": ["a part"], "times": 3}, {"tokens": ["the ", "whole"]})

    with started("summarise", settings={"tasks.chat.base_url": model.base_url}) as server:
        done = run(server, "summarise", "summarise.py", str(tmp_path / "book.txt"), "--part-chars", "30")

    assert (done.returncode, done.stdout) == (0, "the whole\n"), done.stderr
    asked = [request["body"]["messages"][-1]["content"] for request in model.seen]
    assert sorted(asked[:3])[0] == "Summarise this part:\n\nFirst paragraph."
    assert asked[3] == "Make one summary of these:\n\na part\n\na part\n\na part"


def test_images_of_a_folder_are_shrunk_and_a_broken_one_is_named(folder: Path) -> None:
    photos, small = folder / "photos", folder / "small"
    photos.mkdir()
    for number in range(6):
        (photos / f"{number}.ppm").write_bytes(b"P6 4 2 255\n" + bytes(range(10, 34)))
    (photos / "broken.ppm").write_bytes(b"P6 4 2 255\n")

    with started("images", variables={"PYTHONPATH": str(EXAMPLES / "images")}) as server:
        done = run(server, "images", "batch.py", str(photos), str(small), "--width", "2")

    assert (done.returncode, done.stdout) == (1, "6 of 7 images are done\n"), done.stderr
    assert (small / "5.ppm").read_bytes() == b"P6 2 1 255\n" + bytes([10, 11, 12, 16, 17, 18])
    assert "broken.ppm" in done.stderr
    assert len(list(small.iterdir())) == 6


def test_agent_works_once_it_is_approved_and_is_signed_off(model: OpenAIServer, tmp_path: Path) -> None:
    model.script(
        {"tokens": ['{"tool": "write", "name": "../out.txt", "text": "x"}']},
        {"tokens": ['{"tool": "write", "name": "haiku.txt", "text": "queue"}']},
        {"tokens": ['{"tool": "finish", "summary": "written"}']},
    )
    variables = {"MODEL_URL": model.base_url, "WORKSPACE": str(tmp_path)}
    with started("agent", variables=variables) as server:
        written = run(server, "agent", "ticket.py", "Write a haiku", "--by", "ann", "--accept-if", "it scans")
        ticket_id = written.stdout.strip()
        assert server.client.ticket(ticket_id).status == "NEW", written.stderr
        assert model.seen == []

        server.client.approve(ticket_id, by="bob", why="harmless")
        wait_until(lambda: _is_signed_off(server, ticket_id), lambda: server.client.trail(ticket_id), 60)
        wait_until(lambda: server.client.ticket(ticket_id).status == "DONE", server.log, 60)
        (record,) = server.client.trail(ticket_id).run_records

    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["queue"]
    assert model.seen[0]["body"]["messages"][1]["content"].startswith("Write a haiku\n\nIt is accepted if: ")
    assert "refused: '../out.txt'" in model.seen[1]["body"]["messages"][-1]["content"]
    assert [gate["result"] for gate in record["gate_results"]] == ["PASS", "PASS"], record


def _is_signed_off(server: JobdServer, ticket_id: str) -> bool:
    from jobd.client import Conflict

    try:
        server.client.sign_off(ticket_id, by="bob", why="scans")
    except Conflict:  # its gates are not evaluated yet
        return False
    return True


#: Calls the application as a browser would, within its process.
CALLS = """
from fastapi.testclient import TestClient
from app import app
with TestClient(app) as web:
    first = web.post("/reports", json={"customer": "ada", "month": "2026-10"})
    again = web.post("/reports", json={"customer": "ada", "month": "2026-10"})
    assert (first.status_code, first.json()) == (202, again.json()), (first.text, again.text)
    events = web.get(f"/reports/{first.json()['id']}/events").text
    print(web.get(f"/reports/{first.json()['id']}").json()["report"]["total"])
    print(events.count("event: progress"), "event: done" in events)
    print(web.get("/reports/00000000-0000-7000-8000-000000000000").status_code)
"""


def test_task_of_the_web_application_makes_a_report() -> None:
    with started("fastapi_app") as server:
        job = server.run("report", {"customer": "ada", "month": "2026-10"})

    assert job.result == {"customer": "ada", "month": "2026-10", "total": 30}


@pytest.mark.slow  # installs FastAPI into an environment of its own
@pytest.mark.timeout(600)
def test_web_application_submits_once_and_passes_events_on(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    requirements = EXAMPLES / "fastapi_app" / "requirements.txt"
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements, "httpx"], check=True, timeout=500)
    ours = next(path for path in sys.path if path.endswith("site-packages"))

    with started("fastapi_app") as server:
        called = subprocess.run(
            [python, "-c", f"import sys; sys.path += [{str(TOP)!r}, {ours!r}]\n{CALLS}"],
            cwd=EXAMPLES / "fastapi_app",
            env={**os.environ, "JOBD_URL": server.url},
            capture_output=True,
            text=True,
            timeout=TOO_LONG_S,
        )

    assert called.stdout.split() == ["30", "4", "True", "404"], called.stderr
