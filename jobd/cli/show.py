"""Jobs and their events as text for people. What workers said cannot steer the terminal: control characters go."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.times import lasting

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
        return f"attempt {attempt}: its worker fell silent; events that it had not sent are lost"
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
    """The text with all lines but the first indented, so that none looks like a line of jobd's own output."""
    return text.replace("\n", "\n" + " " * width)


def bar(share: float, cells: int, encoding: str | None) -> str:
    """A progress bar of that number of cells, readable without colours too."""
    full = round(share * cells)
    done, left = ("█", "░") if (encoding or "").lower().startswith("utf") else ("#", "-")
    return f"{done * full}{left * (cells - full)} {share:4.0%}"


def note(text: str) -> None:
    """A remark for people on standard error; programs read standard output only."""
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
        "expires": moment(job.expires_ts) if job.expires_ts and job.status == "queued" and not job.started_ts else None,
        "limit key": job.limit_key and one_line(job.limit_key),
        "interrupted": f"{job.interruptions} times by the stop of its node" if job.interruptions else None,
        "put off": f"{job.snoozes} times" if job.snoozes else None,
        "started": job.started_ts and moment(job.started_ts),
        "finished": job.finished_ts and moment(job.finished_ts),
        "labels": one_line(", ".join(f"{name}={value}" for name, value in job.labels.items())),
        "owner": job.owner and one_line(job.owner),
        "trace": job.traceparent and one_line(job.traceparent),
        "group": job.group_id and str(job.group_id),
        "after": ", ".join(f"{one.id} ({one.status or 'deleted'})" for one in job.depends_on[:10]),
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
        until = f", perhaps until {moment(job.waiting.until_ts)}" if job.waiting.until_ts else ""
        detail = f": {one_line(job.waiting.detail)}" if job.waiting.detail else until
        what = f": {job.waiting.paused}" if job.waiting.paused else detail
        starts = "" if job.waiting.eta_s is None else f", starts in about {lasting(job.waiting.eta_s)}"
        return f"{job.status} ({one_line(job.waiting.reason)}{what}{ahead}{starts})"
    return f"{job.status} (asked to stop)" if job.cancel_requested and not job.is_final else job.status


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(sep=" ", timespec="milliseconds")
