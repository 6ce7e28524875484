"""Following a job on a terminal or into a pipe, showing how it ended, and leaving it on Ctrl-C.

Tokens go to standard output as they come, all else as lines to standard error; there, on a terminal, progress is a
bar that is written over.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from jobd.cli.running import show_progress
from jobd.cli.show import bar, error_text, event_line, note, one_line, text_in
from jobd.wire.progress import share_in

if TYPE_CHECKING:
    from uuid import UUID

    from jobd import Client
    from jobd.client import Event, Job

#: Exit code after Ctrl-C, as a shell has it: 128 + SIGINT.
INTERRUPTED = 130
#: Exit code of a command that waits for a job, by the job's final status.
OUTCOMES = {"done": 0, "error": 1, "canceled": 3}
#: Width of a progress bar in columns.
BAR_CELLS = 24
#: Seconds to wait until a canceled job has stopped; its worker learns of the cancel at its next heartbeat.
CANCEL_S = 120.0


class Followed:
    """Shows events, and remembers how far it got."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_within_line = False
        self._has_bar = False
        #: Text was printed, so the result need not be.
        self.has_text = False
        #: The id of the last event that was shown.
        self.last: str | None = None

    def follow(self, client: Client, job_id: str | UUID, after: str | None = None) -> None:
        """Until the job ends, through cut lines and restarts of jobd."""
        try:
            for event in client.events(job_id, after):
                self.show(event)
                self.last = event.id
        finally:
            self._clear_bar()
            self._end_line()

    def show(self, event: Event) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(event))
        elif event.type == "token":
            self._show_text(text_in(event.data))
        elif event.type == "progress" and sys.stderr.isatty() and (share := share_in(event.data)) is not None:
            self._end_line()
            self._has_bar = True
            show_progress(_bar_line(share, one_line(event.step)))
        elif not event.is_last:
            self._clear_bar()
            self._end_line()
            click.echo(event_line(event), err=True)

    def _show_text(self, text: str) -> None:
        self._clear_bar()
        click.echo(text, nl=False)
        self.has_text = True
        if text:
            self._is_within_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_within_line:
            click.echo()
        self._is_within_line = False

    def _clear_bar(self) -> None:
        if self._has_bar:
            show_progress("")
        self._has_bar = False


def _bar_line(share: float, step: str) -> str:
    """No wider than the terminal: one that wraps could not be written over."""
    return f"{bar(share, BAR_CELLS, sys.stderr.encoding)}  {step}"[: shutil.get_terminal_size().columns - 1]


def show_outcome(client: Client, job: Job, *, as_json: bool, was_shown: bool) -> None:
    """A large result is fetched, unless its text was seen already."""
    if as_json:
        click.echo(msgspec.json.encode(whole(client, job)))
    elif job.status == "error":
        note(f"job {job.job_id} ended in error after {len(job.attempts)} attempts: {error_text(job.error)}")
    elif job.status == "canceled":
        note(f"job {job.job_id} was canceled")
    elif not was_shown:
        click.echo(msgspec.json.encode(whole(client, job).result))


def whole(client: Client, job: Job) -> Job:
    """The job with its result, though it may be too large to stand in the job itself."""
    if job.result_ref is None:
        return job
    return msgspec.structs.replace(job, result=client.result_json(job.job_id))


def leave(client: Client, job_id: str | UUID, last: str | None, *, cancel: bool) -> NoReturn:
    """After Ctrl-C: end the job if that was asked for, else say how to come back to it."""
    if cancel:
        _cancel(client, job_id)
    else:
        since = f" --from {last}" if last else ""
        note(f"job {job_id} goes on")
        click.echo(f"  to follow it again:  jobd watch {job_id}{since}", err=True)
        click.echo(f"  to end it:           jobd cancel {job_id}", err=True)
    sys.exit(INTERRUPTED)


def _cancel(client: Client, job_id: str | UUID) -> None:
    from jobd.client import Conflict, WaitTimeout

    try:
        note(f"canceling job {job_id}; Ctrl-C again does not wait for it")
        client.cancel(job_id)
        job = client.wait(job_id, CANCEL_S)
    except Conflict as conflict:
        note(f"too late: {conflict.detail}")
    except (KeyboardInterrupt, WaitTimeout):
        note(f"job {job_id} was told to stop, but has not said yet that it did; `jobd get {job_id}` shows it")
    else:
        note(f"job {job_id} was canceled" if job.status == "canceled" else f"too late: job {job_id} is {job.status}")
