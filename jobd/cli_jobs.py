"""`jobd submit`, `get` and `cancel`: jobs from a shell, over HTTP by `jobd.Client`.

What a program reads goes to standard output, what a person should know to standard error. A token is never an argument:
other users of the machine could read it in the list of processes.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd import config_load
from jobd.cli_show import FollowedJob, error_text, job_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from jobd import Client
    from jobd.client import Job

#: A person waits in front of it; a jobd that is being restarted is back by then.
PATIENCE_S = 3.0
INTERRUPTED = 130
#: What `submit --wait` ends with, by the job's status.
OUTCOMES = {"done": 0, "error": 1, "canceled": 3}


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which jobd is meant, and hands the command a client of it."""

    @functools.wraps(command)
    def with_client(
        url: str | None, token_file: str | None, file: str | None, data_dir: str | None, **rest: Any
    ) -> None:
        from jobd import Client  # httpx takes a while to import

        place = url or url_of(file, data_dir)
        with Client(place, read_token(token_file), patience_s=PATIENCE_S) as client:
            command(client, **rest)

    for option in (
        click.option("--data-dir", metavar="DIR", help="The jobd of this data directory (default: of the usual one)."),
        click.option("--config", "file", metavar="FILE", help="The jobd of this configuration."),
        click.option("--token-file", metavar="FILE", help="Holds the token (default: JOBD_TOKEN)."),
        click.option("--url", metavar="URL", help="http://host:port or unix:///path (default: JOBD_URL)."),
    ):
        with_client = option(with_client)
    return with_client


def url_of(file: str | None, data_dir: str | None) -> str:
    """What was named on the command line, else JOBD_URL, else the jobd that keeps its data in the usual place."""
    named = file is not None or data_dir is not None
    if not named and (variable := os.environ.get("JOBD_URL")):
        return variable
    from jobd.account import server_account
    from jobd.datadir import DataDir

    flags = {"data_dir": data_dir}
    loaded = config_load.load(Path(file) if file is not None else None, os.environ, flags)
    return DataDir(Path(loaded.config.data_dir), server_account()).read_addresses().JOBD_URL


def read_token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text file"
        raise click.BadParameter(f"{file}: {why}", param_hint="--token-file") from None
    if not token:
        raise click.BadParameter(f"{file} is empty; `jobd token create` makes a token", param_hint="--token-file")
    return token


def read_payload(ctx: click.Context, parameter: click.Parameter, text: str) -> msgspec.Raw:
    """The JSON as it was written; that it is an object is known here, the rest jobd checks."""
    try:
        if text == "-":
            raw = sys.stdin.buffer.read()
        else:
            raw = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode("utf-8", "surrogateescape")
        is_object = isinstance(msgspec.json.decode(raw), dict)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, no such path
        why = error.strerror or error if isinstance(error, OSError) else error
        raise click.BadParameter(f"cannot be read: {why}") from None
    if not is_object:
        raise click.BadParameter("""must be a JSON object, as in '{"text": "hello"}'""")
    return msgspec.Raw(raw.strip())


@click.command()
@click.argument("task")
@click.option("--payload", default="{}", callback=read_payload, metavar="JSON|@FILE|-", help="A JSON object; -: stdin.")
@click.option("--queue", metavar="NAME", help="Default: the task's own.")
@click.option("--priority", type=int, metavar="N", help="Higher goes first; a point is worth a minute of waiting.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="With --wait: for at most so many seconds.")
@click.option("--follow", is_flag=True, help="Print tokens, progress and log lines as they come, and wait for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as a JSON object; --follow: each event, too.")
@where_options
def submit(
    client: Client,
    task: str,
    payload: msgspec.Raw,
    queue: str | None,
    priority: int | None,
    wait: bool,
    timeout: float | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Submit a job and print its id.

    With --wait or --follow the result is printed instead, and the exit code tells the outcome. Ctrl-C then ends the
    command, not the job.

    \b
    Examples:
      jobd submit chat --payload '{"text": "hello"}' --follow
      jobd submit embed --payload @document.json --queue fast --priority 10
      id=$(produce | jobd submit tool --payload -)
      jobd submit tool --wait --timeout 60 --json | jq .result

    \b
    Exit codes:
      0    submitted; with --wait or --follow: done
      1    the job ended in error
      2    wrong usage of the command line
      3    the job was canceled
      4    the job goes on after --timeout
      5    jobd refused the job
      69   jobd does not answer or is too busy
      77   a token is missing, wrong or not enough
      130  Ctrl-C; a job that was submitted goes on
    """
    if timeout is not None and (follow or not wait):
        raise click.UsageError("--timeout goes with --wait, and not with --follow")
    said = {"queue": queue, "priority": priority}
    options: Any = {name: value for name, value in said.items() if value is not None}
    try:
        job = client.submit(task, payload, **options)
    except KeyboardInterrupt:
        note("interrupted before jobd had answered; the job may have been submitted")
        sys.exit(INTERRUPTED)
    if not wait and not follow:
        click.echo(msgspec.json.encode(job) if as_json else str(job.job_id))
        return
    try:
        note(f"job {job.job_id}")
        shown = show_events(client, job.job_id, as_json) if follow else False
        job = client.wait(job.job_id, timeout)
    except KeyboardInterrupt:
        note(f"job {job.job_id} goes on; `jobd get {job.job_id}` shows it, `jobd cancel {job.job_id}` ends it")
        sys.exit(INTERRUPTED)
    show_outcome(job, as_json, shown)
    sys.exit(OUTCOMES[job.status])


def show_events(client: Client, job_id: UUID, as_json: bool) -> bool:
    """Print what happens until the job ends; whether its text was printed on the way."""
    followed = FollowedJob()
    for event in client.events(job_id):
        if as_json:
            click.echo(msgspec.json.encode(event))
        else:
            followed.show(event)
    return followed.end()


def show_outcome(job: Job, as_json: bool, was_shown: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(job))
    elif job.status == "error":
        note(f"job {job.job_id} ended in error after {len(job.attempts)} attempts: {error_text(job.error)}")
    elif job.status == "canceled":
        note(f"job {job.job_id} was canceled")
    elif job.result_ref is not None:
        note(f"the result is in the file {job.result_ref}")
    elif not was_shown:
        click.echo(msgspec.json.encode(job.result))


@click.command("get")
@click.argument("job_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@where_options
def get_job(client: Client, job_id: str, as_json: bool) -> None:
    """Show a job: where it stands, why it waits, its attempts, its result or error.

    \b
    Examples:
      jobd get 01890a5d-ac96-774b-bcce-b302099a8057
      jobd get 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq -r .status
    """
    job = client.get(job_id)
    click.echo(msgspec.json.encode(job) if as_json else "\n".join(job_lines(job)))


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@where_options
def cancel(client: Client, job_id: str, as_json: bool) -> None:
    """Cancel a job: at once if it waits, by way of its worker if it runs. Exit code 5 if it has ended already.

    \b
    Examples:
      jobd cancel 01890a5d-ac96-774b-bcce-b302099a8057
    """
    answer = client.cancel(job_id)
    text = "canceled" if answer.status == "canceled" else "asked to stop; its worker hears of it at its next heartbeat"
    click.echo(msgspec.json.encode(answer) if as_json else f"job {answer.job_id}: {text}")


def note(text: str) -> None:
    click.echo(f"jobd: {text}", err=True)


COMMANDS = (submit, get_job, cancel)
