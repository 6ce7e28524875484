"""Jobs and their events as text for people. What workers said cannot steer the terminal: control characters go."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.client import Event, Job

#: Fields of an event's data that may hold its text, in order of preference.
TEXT_FIELDS = ("t", "text", "token", "message", "line")
#: Control characters except tab and line feed, and Unicode that changes text direction or breaks a line invisibly.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def event_line(event: Event) -> str:
    data = event.data if isinstance(event.data, dict) else {}
    attempt = data.get("attempt")
    if event.type == "queued":
        return (
            "queued" if "error" not in data else f"attempt {attempt} failed, queued again: {error_text(data['error'])}"
        )
    if event.type == "running":
        return f"running, attempt {attempt}"
    if event.type == "gap":
        return f"attempt {attempt}: its worker fell silent; what it had not told yet is lost"
    return indented(": ".join(plain(part) for part in (event.type, event.step, text_in(event.data)) if part), 2)


def text_in(data: Any) -> str:
    """The text of a token or log line; the JSON of anything else."""
    if isinstance(data, dict):
        for name in TEXT_FIELDS:
            if isinstance(data.get(name), str):
                return plain(data[name])
    return "" if data in (None, {}) else compact(data)


def error_text(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return plain(f"{error['message']} ({error['code']})" if "code" in error else error["message"])
    return compact(error)


def compact(value: Any) -> str:
    return plain(msgspec.json.encode(value).decode())


def plain(text: str) -> str:
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    return plain(text).replace("\n", " ").replace("\t", " ")


def indented(text: str, width: int) -> str:
    """So that no further line of it looks like one of ours."""
    return text.replace("\n", "\n" + " " * width)


def bar(share: float, cells: int, encoding: str | None) -> str:
    """How far it is, in as many cells, readable without colours too."""
    full = round(share * cells)
    done, left = ("█", "░") if (encoding or "").lower().startswith("utf") else ("#", "-")
    return f"{done * full}{left * (cells - full)} {share:4.0%}"


def note(text: str) -> None:
    """What a person should know; a program reads standard output only."""
    click.echo(f"jobd: {text}", err=True)


def job_lines(job: Job) -> Iterator[str]:
    """Name and value of what there is to say, one a line."""
    rows = {
        "job": str(job.job_id),
        "task": job.task,
        "status": _status(job),
        "queue": f"{job.queue}, priority {job.priority}",
        "attempts": f"{job.attempt_count} of {job.max_attempts}",
        "created": moment(job.created_ts),
        "run after": moment(job.run_after_ts) if job.run_after_ts > job.created_ts and not job.started_ts else None,
        "started": job.started_ts and moment(job.started_ts),
        "finished": job.finished_ts and moment(job.finished_ts),
        "runs again": job.redriven_from and str(job.redriven_from),
        "payload": compact(job.payload),
        "result": None if job.result is None else compact(job.result),
        "result file": job.result_ref and f"{job.result_ref} (`jobd get {job.job_id} --result` prints it)",
        "error": None if job.error is None else error_text(job.error),
    }
    for name, value in rows.items():
        if value:
            yield f"{name:12}{indented(value, 12)}"
    for attempt in job.attempts:
        ended = "" if attempt.error is None else f": {error_text(attempt.error)}"
        outcome = attempt.outcome or "running"
        by = f"{one_line(outcome)} by {one_line(attempt.owner_id)}, {moment(attempt.started_ts)}"
        yield f"attempt {attempt.number:<4}{by}{indented(ended, 12)}"


def _status(job: Job) -> str:
    if job.waiting is not None:
        ahead = "" if job.waiting.position is None else f", {job.waiting.position} before it"
        return f"{job.status} ({job.waiting.reason}{ahead})"
    return f"{job.status} (asked to stop)" if job.cancel_requested and not job.is_final else job.status


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(sep=" ", timespec="milliseconds")
