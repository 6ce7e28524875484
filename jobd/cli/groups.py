"""`jobd group`: jobs that are counted, waited for, canceled and run again together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_tasks
from jobd.cli.follow import INTERRUPTED
from jobd.cli.listing import limit_option
from jobd.cli.payload import read_labels, read_payload
from jobd.cli.show import moment, note, one_line
from jobd.cli.table import Column, show_rows
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd import Client
    from jobd.client import GroupObject

#: Exit codes of `jobd group watch`, as those of a job.
OUTCOMES = {"done": 0, "error": 1}
COLUMNS = (
    Column("GROUP"),
    Column("NAME"),
    Column("STATUS"),
    Column("MEMBERS", is_number=True),
    Column("PENDING", is_number=True),
    Column("DONE", is_number=True),
    Column("ERROR", is_number=True),
    Column("CANCELED", is_number=True),
)

json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


@click.group("group")
def group() -> None:
    """Count, wait for, cancel and run again many jobs at once.

    \b
    Examples:
      g=$(jobd group create --name nightly --callback report)
      jobd submit embed --group "$g" --payload '{"n": 1}'
      jobd group seal "$g"
      jobd group watch "$g"
    """


@group.command()
@click.option("--name", metavar="NAME", help="For people.")
@click.option("--label", "labels", multiple=True, callback=read_labels, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--callback",
    metavar="TASK",
    shell_complete=complete_tasks,
    help="Run this task once, when the group is sealed and all members are final.",
)
@click.option(
    "--payload", default="{}", callback=read_payload, metavar="JSON|@FILE|-", help="Of the callback; -: stdin."
)
@click.option("--on-success", is_flag=True, help="Cancel the callback unless all members are done.")
@json_option
@client_options
def create(
    client: Client,
    name: str | None,
    labels: dict[str, str],
    callback: str | None,
    payload: msgspec.Raw,
    on_success: bool,
    as_json: bool,
) -> None:
    """Make a group and print its id.

    \b
    Examples:
      jobd group create --name nightly
      jobd group create --callback report --payload '{"text": "{{inputs.group.done}} are done"}'
    """
    job: Any = None if callback is None else {"task": callback, "payload": payload}
    made = client.create_group(
        name=name, labels=labels or None, callback=job, callback_on="success" if on_success else "any"
    )
    click.echo(msgspec.json.encode(made) if as_json else str(made.group_id))


@group.command()
@click.argument("group_id", metavar="GROUP")
@json_option
@client_options
def get(client: Client, group_id: str, as_json: bool) -> None:
    """Show a group with its counters; `jobd list --group` has its members.

    \b
    Examples:
      jobd group get 01890a5d-ac96-774b-bcce-b302099a8057
      jobd group get 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq .pending
    """
    _show(client.group(group_id), as_json=as_json)


@group.command("list")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def list_groups(client: Client, limit: int, as_json: bool) -> None:
    """List groups, newest first.

    \b
    Examples:
      jobd group list
      jobd group list --limit 5 --json
    """
    found: list[GroupObject] = []
    before = None
    while len(found) < limit:
        page = client.groups(limit=min(limit - len(found), 100), before=before)
        found += page.groups
        before = page.next
        if before is None:
            break
    if as_json:
        for one in found:
            click.echo(msgspec.json.encode(one))
        return
    rows = [
        (one.group_id, one.name, one.status, one.members, one.pending, one.done, one.error, one.canceled)
        for one in found
    ]
    show_rows(COLUMNS, rows, nothing="there are no groups")


@group.command()
@click.argument("group_id", metavar="GROUP")
@json_option
@client_options
def seal(client: Client, group_id: str, as_json: bool) -> None:
    """Let no more jobs enter a group: it is finished when those in it have ended.

    \b
    Examples:
      jobd group seal 01890a5d-ac96-774b-bcce-b302099a8057
    """
    _show(client.seal_group(group_id), as_json=as_json)


@group.command()
@click.argument("group_id", metavar="GROUP")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Wait at most S seconds.")
@json_option
@client_options
def watch(client: Client, group_id: str, timeout: float | None, as_json: bool) -> None:
    """Wait until a group is finished, and show it.

    \b
    Examples:
      jobd group watch 01890a5d-ac96-774b-bcce-b302099a8057

    \b
    Exit codes:
      0    all members are done
      1    a member failed or was canceled
      4    it is not finished after --timeout
      130  Ctrl-C; the group goes on
    """
    try:
        found = client.wait_group(group_id, timeout)
    except KeyboardInterrupt:
        note(f"the group goes on; `jobd group watch {group_id}` waits for it again")
        sys.exit(INTERRUPTED)
    _show(found, as_json=as_json)
    sys.exit(OUTCOMES.get(found.status, 1))


@group.command()
@click.argument("group_id", metavar="GROUP")
@json_option
@client_options
def cancel(client: Client, group_id: str, as_json: bool) -> None:
    """Seal a group and cancel its members; its callback runs when they have ended.

    \b
    Examples:
      jobd group cancel 01890a5d-ac96-774b-bcce-b302099a8057
    """
    _changed(client.cancel_group(group_id), "canceled, or asked to stop", as_json=as_json)


@group.command()
@click.argument("group_id", metavar="GROUP")
@json_option
@client_options
def retry(client: Client, group_id: str, as_json: bool) -> None:
    """Run the members that ended in error again, each once, as new members.

    \b
    Examples:
      jobd group retry 01890a5d-ac96-774b-bcce-b302099a8057
    """
    _changed(client.retry_group(group_id), "run again", as_json=as_json)


def _changed(number: int, what: str, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode({"changed": number}) if as_json else f"{number} members {what}")


def _show(found: GroupObject, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(found) if as_json else "\n".join(_lines(found)))


def _lines(found: GroupObject) -> Iterator[str]:
    rows = {
        "group": str(found.group_id),
        "name": found.name and one_line(found.name),
        "status": found.status if found.sealed else f"{found.status} (open for more members)",
        "members": f"{found.members}: {found.pending} pending, {found.done} done, {found.error} in error,"
        f" {found.canceled} canceled" + (f"; {found.retried} of them run again" if found.retried else ""),
        "callback": found.callback_id and str(found.callback_id),
        "labels": one_line(", ".join(f"{name}={value}" for name, value in found.labels.items())),
        "owner": found.owner and one_line(found.owner),
        "created": moment(found.created_ts),
        "finished": found.finished_ts and moment(found.finished_ts),
    }
    for name, value in rows.items():
        if value:
            yield f"{name:12}{value}"
