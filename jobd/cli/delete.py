"""`jobd delete`: finished jobs that fit a filter go before their retention is over, in batches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_queues, complete_tasks
from jobd.cli.payload import read_labels
from jobd.cli.show import note
from jobd.cli.target import client_options
from jobd.cli.times import read_time

if TYPE_CHECKING:
    from jobd import Client

#: Jobs of one call: the most that a call takes.
BATCH = 1_000


@click.command()
@click.option("--status", type=click.Choice(["done", "error", "canceled"]), help="Only these.")
@click.option(
    "--older-than", "until", callback=read_time, metavar="TIME", help="Only jobs made before: 7d, 2026-11-01."
)
@click.option("--since", callback=read_time, metavar="TIME", help="Only jobs made at this time or later.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.", shell_complete=complete_tasks)
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.", shell_complete=complete_queues)
@click.option("--error", metavar="CODE", help="Only jobs that ended in an error with this code.")
@click.option("--text", metavar="TEXT", help="Only jobs that ended in an error with this in its message.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=read_labels,
    metavar="NAME=VALUE",
    help="Only jobs with this label. May be repeated: all must fit.",
)
@click.option("--owner", metavar="TOKEN", help="Only jobs that the token of this name has sent.")
@click.option("--all", "every", is_flag=True, help="Every finished job; needed if there is no filter.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help='As one JSON object: {"deleted": N, "skipped": N}.')
@client_options
def delete(client: Client, every: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Delete finished jobs that fit a filter, with their results, attempts and events, and say how many.

    Jobs that wait or run stay, and so do those that a ticket needs. On a terminal it asks first. Asking for a deleted
    job answers 410 for a while, as after its retention.

    \b
    Examples:
      jobd delete --status done --older-than 7d
      jobd delete --label run=7 --yes
      jobd delete --error timeout --queue slow
      jobd delete --all --yes
    """
    terms = {name: value for name, value in filters.items() if value}
    if bool(terms) == every:
        raise click.UsageError("give a filter, such as --status or --older-than, or --all alone")
    if not yes and sys.stdin.isatty() and not _is_wanted(client, terms):
        note("nothing was done")
        sys.exit(1)
    deleted, skipped = _delete_all(client, terms, every)
    if as_json:
        click.echo(msgspec.json.encode({"deleted": deleted, "skipped": skipped}))
        return
    click.echo(f"{deleted} jobs deleted" if deleted else "there is nothing to delete")
    if skipped:
        note(f"{skipped} jobs stay: a ticket needs them, or somebody else deletes them just now")


def _is_wanted(client: Client, terms: dict[str, Any]) -> bool:
    found = client.count(action="delete", **terms)
    if not found.count and found.exact:
        return True  # which then says that there is nothing
    number = f"{found.count}" if found.exact else f"at least {found.count}"
    return click.confirm(f"Delete {number} jobs with their results?", err=True)


def _delete_all(client: Client, terms: dict[str, Any], every: bool) -> tuple[int, int]:
    deleted, skipped, before = 0, 0, None
    while True:
        answer = client.delete_jobs(**terms, all=every, limit=BATCH, before=before)
        deleted, skipped, before = deleted + answer.changed, skipped + answer.skipped, answer.next
        if before is None:
            return deleted, skipped
