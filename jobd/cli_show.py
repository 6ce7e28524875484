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

#: Where workers put the text of a token or a log line.
TEXT_FIELDS = ("t", "text", "token", "message", "line")
#: All control characters but tab and line feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class FollowedJob:
    """Tokens go to standard output as they are, all else as lines to standard error."""

    def __init__(self) -> None:
        self._is_within_line = False
        self._has_text = False

    def show(self, event: Event) -> None:
        if event.type == "token":
            text = text_in(event.data)
            click.echo(text, nl=False)
            self._has_text = True
            if text:
                self._is_within_line = not text.endswith("\n")
        elif not event.is_last:
            self._end_line()
            click.echo(event_line(event), err=True)

    def end(self) -> bool:
        """Whether there was any text."""
        self._end_line()
        return self._has_text

    def _end_line(self) -> None:
        if self._is_within_line:
            click.echo()
        self._is_within_line = False


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
    return plain(": ".join(part for part in (event.type, event.step, text_in(event.data)) if part))


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
        "result file": job.result_ref,
        "error": None if job.error is None else error_text(job.error),
    }
    for name, value in rows.items():
        if value:
            yield f"{name:12}{value}"
    for attempt in job.attempts:
        ended = "" if attempt.error is None else f": {error_text(attempt.error)}"
        outcome = attempt.outcome or "running"
        yield f"attempt {attempt.number:<4}{outcome} by {plain(attempt.owner_id)}, {moment(attempt.started_ts)}{ended}"


def _status(job: Job) -> str:
    if job.waiting is not None:
        place = "" if job.waiting.position is None else f", {job.waiting.position} before it"
        return f"{job.status} ({job.waiting.reason}{place})"
    return f"{job.status} (asked to stop)" if job.cancel_requested and not job.is_final else job.status


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(sep=" ", timespec="milliseconds")
