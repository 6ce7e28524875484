#!/usr/bin/env python3
"""Make the pictures of the web page for the README and docs/: a jobd with made-up work, photographed in Chromium.

    .venv-3.10/bin/python packaging/screenshots.py [--to docs/images]

Needs Debian's `chromium` and the environment of the tests. The jobd runs on a data directory of its own that is deleted
afterwards; its workers are played by this program.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from playwright.sync_api import expect  # noqa: E402  # after the path is set

from tests.page.browser import running_browser  # noqa: E402
from tests.support.daemon import Jobd  # noqa: E402
from tests.support.http import Api  # noqa: E402
from tests.support.wait import wait_until  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, ViewportSize

#: Largest size of a picture in bytes: a page with all of them loads at once.
MAX_BYTES = 150_000
DESKTOP: ViewportSize = {"width": 1280, "height": 820}
PHONE: ViewportSize = {"width": 390, "height": 780}
CONFIG = """
[queues.default]
slots = 4
[queues.gpu]
slots = 0
[queues.batch]
slots = 0
[tasks.chat]
run = "external"
queue = "gpu"
[tasks.transcribe]
run = "external"
queue = "batch"
[queues.vectors]
slots = 0
[tasks.embed]
run = "external"
queue = "vectors"
[tasks.review]
run = "command"
argv = ["cat"]
[tickets]
four_eyes = true
poll_s = 0.2
"""
ANSWER = (
    "The drift comes from the sensor, not from the filter: between 02:00 and 04:00 the readings rise by 0.4 degrees"
    " while the reference stays flat. Three things point to the housing. First, the rise begins nine minutes after"
    " the pump starts. Second, it ends as soon as the door is opened. Third, the second sensor, which hangs outside,"
    " shows nothing of it. I would move the sensor away from the pump and measure one more night before"
)
FAILURES = (
    ("model_timeout", "chat", "no token for 120 s from http://127.0.0.1:8080 (qwen3-8b)", 14),
    ("out_of_memory", "chat", "the model server was killed by the kernel: 7.6 GB of 8 GB in use", 6),
    ("bad_audio", "transcribe", "segment 12 of intake/2043.wav has no samples", 3),
)
TICKETS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Summarize the night shift log", "new", {}),
    ("Translate the safety sheet into Polish", "new", {}),
    ("Classify 200 support mails", "sign-off", {"gates": [{"type": "sign_off"}]}),
    ("Write alt texts for the product photos", "sign-off", {"gates": [{"type": "sign_off"}]}),
    ("Extract part numbers from scans", "done", {}),
    ("Draft the weekly status mail", "done", {}),
    ("Check invoices against orders", "failed", {"gates": [{"type": "minimum", "pointer": "/score", "value": 0.9}]}),
    ("Rewrite the onboarding guide", "rejected", {}),
)


class Shot(NamedTuple):
    """A picture: its file, the room, and on what."""

    name: str
    query: str
    viewport: ViewportSize
    scheme: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=TOP / "docs" / "images")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shots-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"))
    try:
        api = Api(daemon.start().until_ready().address)
        ids = play(api)
        options.to.mkdir(parents=True, exist_ok=True)
        with working(api), running_browser() as browser:
            sizes = {shot.name: take(browser, api.address, shot, options.to) for shot in shots(ids)}
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)
    for name, size in sizes.items():
        print(f"{name}.png\t{size} bytes")
    return 1 if max(sizes.values()) > MAX_BYTES else 0


def shots(ids: dict[str, str]) -> list[Shot]:
    job, ticket = f"?view=job&id={ids['job']}", f"?view=ticket&id={ids['ticket']}"
    found = [
        Shot("overview", "", DESKTOP, "light"),
        Shot("overview-phone", "", PHONE, "dark"),
        Shot("tickets", "?view=tickets", DESKTOP, "light"),
        Shot("tickets-phone", "?view=tickets", PHONE, "light"),
        Shot("ticket", ticket, DESKTOP, "dark"),
        Shot("dead-letters", "?view=dead_letters", DESKTOP, "light"),
    ]
    if (TOP / "jobd/http/pages/app/job.js").exists():
        found += [Shot("job", job, DESKTOP, "dark"), Shot("job-phone", job, PHONE, "light")]
    return found


def take(browser: Browser, address: str, shot: Shot, to: Path) -> int:
    context = browser.new_context(
        viewport=shot.viewport,
        color_scheme="dark" if shot.scheme == "dark" else "light",
        reduced_motion="reduce",
        device_scale_factor=1.5 if shot.viewport is PHONE else 1,
    )
    page = context.new_page()
    page.goto(f"http://{address}/{shot.query}")
    settle(page)
    path = to / f"{shot.name}.png"
    page.screenshot(path=path, animations="disabled")
    context.close()
    return path.stat().st_size


def settle(page: Page) -> None:
    """Until everything that the room shows was read; the lines of the overview need some samples."""
    expect(page.locator("main h1").first).to_be_visible(timeout=20_000)
    expect(page.get_by_text("Asking jobd…")).to_have_count(0)
    page.wait_for_timeout(16_000 if "?" not in page.url else 3_000)


@contextmanager
def working(api: Api) -> Iterator[None]:
    """Meanwhile jobs come and end, now more and now fewer."""
    is_over = threading.Event()

    def work() -> None:
        for number in itertools.count():
            if is_over.wait(0.2 + 0.2 * math.sin(number / 5)):
                return
            report(api, "complete", claim(api, submit(api, "embed")), result={"vector": []})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# -- made-up work ------------------------------------------------------------------------------------------------------


def play(api: Api) -> dict[str, str]:
    """Fill jobd with work; the ids of what is photographed by itself."""
    for code, task, message, number in FAILURES:
        for _ in range(number):
            fail(api, claim(api, submit(api, task)), code, message)
    for number in range(60):
        job = claim(api, submit(api, ("chat", "embed", "transcribe")[number % 3]))
        report(api, "complete", job, result={"text": "…", "tokens": 180 + number})
    tickets = [write_ticket(api, *entry) for entry in TICKETS]
    job_id = submit(api, "chat", {"user": "ann", "device": "line-2"})
    talking = claim(api, job_id, "orin-nx-1")
    emit(api, talking, [{"type": "progress", "step": "model loaded", "data": {"percent": 10}}])
    emit(api, talking, [{"type": "log", "step": "model", "data": {"message": "qwen3-8b, 4096 tokens of context"}}])
    words = [word + " " for word in ANSWER.split()]
    emit(api, talking, [{"type": "token", "step": "model", "data": {"text": word}} for word in words])
    hearing = claim(api, submit(api, "transcribe", {"user": "bob"}), "rk3588-attic")
    emit(api, hearing, [{"type": "progress", "step": "segment 31 of 50", "data": {"percent": 62}}])
    for _ in range(7):
        submit(api, "transcribe", {"user": "bob"})
    for _ in range(3):
        submit(api, "chat", {"user": "eve"})
    return {"job": job_id, "ticket": tickets[2]}


def submit(api: Api, task: str, labels: dict[str, str] | None = None) -> str:
    payloads = {
        "chat": {"model": "qwen3-8b", "messages": [{"role": "user", "content": "Why does sensor 4 drift at night?"}]},
        "transcribe": {"file": "intake/2043.wav", "language": "de"},
        "embed": {"texts": ["pump", "valve"]},
    }
    body = {"task": task, "payload": payloads[task], "labels": labels or {}, "max_attempts": 2}
    job_id: str = must(api("POST", "/v1/jobs", body))["job_id"]
    return job_id


def claim(api: Api, job_id: str, worker: str = "orin-nx-1") -> dict[str, str]:
    queue = must(api("GET", f"/v1/jobs/{job_id}"))["queue"]
    asked = {"worker_id": worker, "streams": [f"jobs:stream:{queue}"], "max_wait_ms": 30_000}
    found = must(api("POST", "/internal/worker/claim", asked))
    return {"worker_id": worker, **{name: found[name] for name in ("job_id", "attempt_id", "lease_token")}}


def report(api: Api, word: str, held: dict[str, str], **fields: object) -> None:
    must(api("POST", f"/internal/worker/{word}", {**held, **fields}))


def fail(api: Api, held: dict[str, str], code: str, message: str) -> None:
    report(api, "fail", held, error={"code": code, "message": message, "retryable": False})


def emit(api: Api, held: dict[str, str], events: list[dict[str, Any]]) -> None:
    proof = {name: held[name] for name in ("worker_id", "job_id", "lease_token")}
    must(api("POST", "/internal/worker/events", {**proof, "events": events}))


def write_ticket(api: Api, title: str, until: str, fields: dict[str, Any]) -> str:
    body = {
        "title": title,
        "acceptance_criteria": ["every line is covered", "numbers are copied, not guessed", "at most one page"],
        "task": "review",
        "payload": {"prompt": "{{prompt}}", "score": 0.74},
        "created_by": "ann",
        **fields,
    }
    ticket_id: str = must(api("POST", "/v1/tickets", body))["ticket_id"]
    path = f"/v1/tickets/{ticket_id}"
    if until == "rejected":
        must(api("POST", f"{path}/reject", {"by": "bob", "why": "the guide is being replaced; wait for the new one"}))
    elif until != "new":
        must(api("POST", f"{path}/approve", {"by": "bob", "why": "needed for Monday"}))
        ends = {"sign-off": ("IN_PROGRESS", "SIGN_OFF"), "done": ("DONE", None), "failed": ("BLOCKED", None)}

        def stands() -> bool:
            found = must(api("GET", path))
            return (found["status"], found["step"]) == ends[until]

        wait_until(stands, lambda: json.dumps(must(api("GET", path))))
    return ticket_id


def must(answer: Any) -> Any:
    if answer.status >= 300:
        raise SystemExit(f"jobd answered {answer.status}: {answer.body.decode()}")
    return answer.json


if __name__ == "__main__":
    sys.exit(main())
