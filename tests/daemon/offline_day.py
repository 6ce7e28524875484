"""A day of a jobd: start, jobs of every kind of task, a schedule, the page, metrics, doctor, a reload and a stop."""

from __future__ import annotations

import signal
import tempfile
import urllib.request
from pathlib import Path

from jobd import Client
from tests.support.daemon import TOP, Jobd, run_jobd
from tests.support.wait import wait_until
from tests.tasks.openai_server import OpenAIServer

CONFIG = """
[tasks.area]
run = "python"
handler = "shapes:area"

[tasks.apart]
run = "python"
handler = "shapes:area"
isolate = true

[tasks.lines]
run = "command"
argv = ["wc", "--lines"]

[tasks.ask]
run = "openai"
base_url = "{model}"

[schedules.often]
every = "1s"
task = "lines"
"""
HANDLER = """
import socket


def area(payload, ctx):
    if payload.get("call"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"hello", (payload["call"], 9))
    return 42
"""


def run(call: str = "") -> None:
    """`call`: an address that a handler sends a packet to."""
    with tempfile.TemporaryDirectory(prefix="jt-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "shapes.py").write_text(HANDLER)
        model = OpenAIServer()
        (folder / "jobd.toml").write_text(CONFIG.format(model=model.base_url))
        daemon = Jobd(folder / "data", "--config", f"{name}/jobd.toml", PYTHONPATH=f"{folder}:{TOP}")
        try:
            daemon.start().until_ready()
            use(daemon, name, call)
            daemon.signal(signal.SIGHUP)
            assert daemon.stop() == 0
        finally:
            daemon.clean_up()
            model.stop()


def use(daemon: Jobd, folder: str, call: str) -> None:
    url = daemon.addresses["JOBD_URL"]
    with Client(url) as client:
        for task in ("area", "apart", "lines", "chat"):
            job = client.submit_and_wait(task, {"text": "hello", "call": call}, timeout_s=60)
            assert job.status == "done", job
        asked = client.submit_and_wait("ask", {"messages": [{"role": "user", "content": "hello"}]}, timeout_s=60)
        assert asked.status == "done", asked
        wait_until(lambda: client.list(schedule="often").jobs)
    for path in ("/", "/docs", "/metrics", "/openapi.json", "/readyz"):
        urllib.request.urlopen(f"{url}{path}", timeout=30).read()
    assert run_jobd("doctor", "--config", f"{folder}/jobd.toml", "--data-dir", f"{folder}/data").returncode == 0
