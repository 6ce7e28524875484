"""A jobd with slots and tasks of its own, for the rooms about jobs, and a worker that says what a test tells it to."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.daemon import TOP, Jobd
from tests.support.http import Answer, Api
from tests.support.sse import Stream
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

#: Nobody takes jobs of `still` but the workers that tests play.
CONFIG = """
tasks_from = ["page_tasks"]
[retry]
base_s = 0
cap_s = 0
[queues.default]
slots = 2
[queues.still]
slots = 0
[queues.other]
slots = 0
[tickets]
enabled = false
"""

TASKS = '''
from __future__ import annotations

from typing import Annotated, Any, Literal, Optional

import anyio
import msgspec
from msgspec import Meta

from jobd import task


class Sampling(msgspec.Struct):
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is the most predictable.")] = 0.7
    seed: Optional[int] = None


class Ask(msgspec.Struct):
    """Asks a model."""

    prompt: Annotated[str, Meta(description="What the model is asked.")]
    words: Annotated[int, Meta(ge=1, le=500)] = 3
    style: Literal["plain", "poem"] = "plain"
    is_public: bool = False
    sampling: Optional[Sampling] = None
    tags: list[str] = []


@task(name="ask")
async def ask(payload: Ask, ctx: Any) -> Any:
    for number in range(payload.words):
        ctx.token(f"{payload.style} {number} ")
        ctx.progress(number / payload.words, f"word {number}")
        await anyio.sleep(0.02)
    ctx.log("asked")
    return msgspec.to_builtins(payload)
'''

KEPT = ("job_id", "attempt_id", "lease_token", "stream", "message_id")


class Board:
    def __init__(self, daemon: Jobd) -> None:
        self.daemon = daemon

    @property
    def address(self) -> str:
        return self.daemon.address

    def api(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        return Api(self.address)(method, path, body, headers)

    def submit(self, task: str = "chat", payload: object = None, **fields: Any) -> str:
        answer = self.api("POST", "/v1/jobs", {"task": task, "payload": payload or {}, **fields})
        assert answer.status == 202, answer
        job_id: str = answer.json["job_id"]
        return job_id

    def submit_many(self, number: int, **fields: Any) -> None:
        answer = self.api("POST", "/v1/jobs/batch", [{"task": "chat", "payload": {}, **fields}] * number)
        assert answer.status == 202, answer

    def read(self, job_id: str) -> Any:
        return self.api("GET", f"/v1/jobs/{job_id}").json

    def count(self, **terms: Any) -> int:
        number: int = self.api("POST", "/v1/jobs/count", terms).json["count"]
        return number

    def until(self, job_id: str, *statuses: str) -> Any:
        wait_until(lambda: self.read(job_id)["status"] in statuses, lambda: self.read(job_id))
        return self.read(job_id)

    def text_of(self, job_id: str) -> str:
        """What one reader who was never cut sees of a job that has ended."""
        with Stream(self.address, f"/v1/jobs/{job_id}/events") as stream:
            return "".join(event.data["data"]["text"] for event in stream if event.type == "token")

    # -- a worker --------------------------------------------------------------------------------------------------

    def claim(self, queue: str = "still") -> dict[str, Any]:
        asked = {"streams": [f"jobs:stream:{queue}"], "max_wait_ms": 10_000}
        claimed = self.post("claim", asked)
        return {name: claimed[name] for name in KEPT}

    def post(self, verb: str, body: dict[str, Any]) -> Any:
        answer = self.api("POST", f"/internal/worker/{verb}", {"worker_id": "w-1", **body})
        assert answer.status == 200, answer
        return answer.json

    def say(self, held: dict[str, Any], *events: dict[str, Any]) -> None:
        answer = self.post("events", {"job_id": held["job_id"], "lease_token": held["lease_token"], "events": events})
        assert answer["ok"], answer

    def tokens(self, held: dict[str, Any], *texts: str) -> None:
        self.say(held, *({"type": "token", "data": {"text": text}} for text in texts))

    def complete(self, held: dict[str, Any], result: object = None) -> None:
        assert self.post("complete", {**held, "result": result})["ok"]

    def fail(self, held: dict[str, Any], **error: object) -> None:
        assert self.post("fail", {**held, "error": {"code": "boom", **error}})["ok"]


@contextlib.contextmanager
def running_board(*arguments: str, **variables: str) -> Iterator[Board]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG)
    (folder / "page_tasks.py").write_text(TASKS)
    variables = {"PYTHONPATH": f"{folder}:{TOP}", **variables}
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"), *arguments, **variables).start()
    try:
        yield Board(daemon.until_ready())
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


def free_port() -> int:
    """One that jobd can have again after a kill."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def shown_text(page: Page) -> str:
    """The text of the open job as the page shows it, without the marks between."""
    return "".join(page.locator(".tall span:not(.cut)").all_text_contents())


def hide(page: Page, is_hidden: bool) -> None:
    """As a phone that is locked, or a tab behind another."""
    page.evaluate(
        """(isHidden) => {
            Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )
