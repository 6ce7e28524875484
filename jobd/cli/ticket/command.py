"""`jobd ticket`: write tickets, decide about them, and see what became of them, over HTTP by `jobd.Client`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Raw

from jobd.cli.completion import complete_tasks, complete_tickets
from jobd.cli.follow import INTERRUPTED
from jobd.cli.listing import limit_option, pages, show_json
from jobd.cli.payload import merged
from jobd.cli.show import moment, note
from jobd.cli.table import Column, ago, is_terminal, show_rows
from jobd.cli.target import client_options
from jobd.cli.ticket.decide import DECISIONS
from jobd.cli.ticket.fields import by_option, field_options
from jobd.cli.ticket.show import change_line, standing, ticket_lines, trail_rows
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from jobd import Client
    from jobd.client import Ticket

STATUSES = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE")
#: Exit code of `watch`, by the status in which the ticket came to rest.
OUTCOMES = {"DONE": 0, "BLOCKED": 1}

TICKET_COLUMNS = (
    Column("TICKET"),
    Column("STATUS"),
    Column("TASK"),
    Column("AGE", is_number=True),
    Column("WRITTEN BY", is_extra=True),
    Column("APPROVED BY", is_extra=True),
    Column("TITLE"),
)
TRAIL_COLUMNS = (Column("WHEN"), Column("WHAT"), Column("HOW"))


@click.group()
def ticket() -> None:
    """Write tickets, decide about them, and see what became of them."""


@ticket.command("new")
@click.argument("task", shell_complete=complete_tasks)
@click.option("--title", required=True, metavar="TEXT", help="What it is about, in one line.")
@field_options
@by_option
@click.option("--json", "as_json", is_flag=True, help="Print the ticket as a JSON object.")
@client_options
def new(
    client: Client, task: str, by: str | None, fields: dict[str, Any], values: dict[str, Raw], as_json: bool
) -> None:
    """Write a ticket for a task and print its id. It is NEW, and waits until somebody approves it.

    In the texts of its payload {{title}}, {{acceptance_criteria}}, {{prompt}}, {{ticket_id}} and {{branch_name}} are
    filled in.

    \b
    Examples:
      jobd ticket new chat --title "Name the cat" --set text='{{prompt}}' --gate sign_off
      jobd ticket new code --title "Count cats" --criterion "it counts" --gate command=lint --gate minimum=/score:0.8
      jobd ticket new code --title "Feed cats" --blocked-on 01890a5d-ac96-774b-bcce-b302099a8057 --max-runs 3
    """
    payload = merged(fields.pop("payload", Raw(b"{}")), values)
    created = client.create_ticket(fields.pop("title"), task, payload, created_by=by, **fields)
    click.echo(msgspec.json.encode(created) if as_json else str(created.ticket_id))


@ticket.command("edit")
@click.argument("ticket_id", metavar="TICKET", shell_complete=complete_tickets("NEW"))
@click.option("--title", metavar="TEXT", help="What it is about, in one line.")
@click.option("--task", metavar="NAME", help="The task that does it.", shell_complete=complete_tasks)
@field_options
@by_option
@click.option("--json", "as_json", is_flag=True, help="Print the ticket as a JSON object.")
@client_options
def edit(
    client: Client,
    ticket_id: str,
    task: str | None,
    by: str | None,
    fields: dict[str, Any],
    values: dict[str, Raw],
    as_json: bool,
) -> None:
    """Change a ticket that is still NEW; what is not named stays. Exit code 5 if it is not NEW any more.

    \b
    Examples:
      jobd ticket edit 01890a5d-ac96-774b-bcce-b302099a8057 --title "Name both cats" --set count:=2
    """
    if task is not None:
        fields["task"] = task
    if values:
        payload = (
            fields["payload"] if "payload" in fields else Raw(msgspec.json.encode(client.ticket(ticket_id).payload))
        )
        fields["payload"] = merged(payload, values)
    if not fields:
        raise click.UsageError("nothing is to be changed; --help lists what can be")
    if by is not None:
        fields["edited_by"] = by
    edited = client.edit_ticket(ticket_id, **fields)
    click.echo(msgspec.json.encode(edited) if as_json else "\n".join(ticket_lines(edited)))


@ticket.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--task", metavar="NAME", help="Only tickets of this task.", shell_complete=complete_tasks)
@click.option("--created-by", metavar="NAME", help="Only tickets that this person wrote.")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def list_tickets(
    client: Client, status: str | None, task: str | None, created_by: str | None, limit: int, as_json: bool
) -> None:
    """List tickets, newest first: a table on a terminal, else one ticket a line, with tabs between its values.

    \b
    Examples:
      jobd ticket list --status NEW
      jobd ticket list --created-by ann --json | jq -r .title
      jobd ticket list --status BLOCKED | cut -f 1 | xargs jobd ticket unblock --why "the disk is empty again"
    """
    tickets = pages(client.tickets, "tickets", limit, status=status, task=task, created_by=created_by)
    if as_json:
        show_json(tickets)
        return
    when = ago if is_terminal() else moment
    rows = (
        (row.ticket_id, row.status, row.task, when(ms(row.created_at)), row.created_by, row.approved_by, row.title)
        for row in tickets
    )
    show_rows(TICKET_COLUMNS, rows, nothing="no such tickets" if status or task or created_by else "no tickets yet")


@ticket.command("show")
@click.argument("ticket_id", metavar="TICKET", shell_complete=complete_tickets())
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@client_options
def show(client: Client, ticket_id: str, as_json: bool) -> None:
    """Show a ticket: what it says and where it stands.

    \b
    Examples:
      jobd ticket show 01890a5d-ac96-774b-bcce-b302099a8057
      jobd ticket show 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq -r .status
    """
    answer = client.ticket(ticket_id)
    click.echo(msgspec.json.encode(answer) if as_json else "\n".join(ticket_lines(answer)))


@ticket.command("trail")
@click.argument("ticket_id", metavar="TICKET", shell_complete=complete_tickets())
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, with every artifact whole.")
@client_options
def trail(client: Client, ticket_id: str, as_json: bool) -> None:
    """Show all that happened to a ticket, oldest first: decisions, work orders, outputs, gates, what to do next.

    \b
    Examples:
      jobd ticket trail 01890a5d-ac96-774b-bcce-b302099a8057
      jobd ticket trail 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq '.output_bundles[-1].output'
    """
    answer = client.trail(ticket_id)
    if as_json:
        click.echo(msgspec.json.encode(answer))
    else:
        show_rows(TRAIL_COLUMNS, trail_rows(answer), nothing="")


@ticket.command("watch")
@click.argument("ticket_id", metavar="TICKET", shell_complete=complete_tickets())
@click.option("--json", "as_json", is_flag=True, help="Each event, then the ticket, as a JSON object a line.")
@client_options
def watch(client: Client, ticket_id: str, as_json: bool) -> None:
    """Follow a ticket until it is DONE (exit code 0) or BLOCKED (exit code 1).

    A cut line or a restart of jobd is bridged. Ctrl-C ends the command, not the ticket.

    \b
    Examples:
      jobd ticket watch 01890a5d-ac96-774b-bcce-b302099a8057
    """
    try:
        rested = _until_rest(client, ticket_id, as_json)
    except KeyboardInterrupt:
        note(f"ticket {ticket_id} goes on; to follow it again:  jobd ticket watch {ticket_id}")
        sys.exit(INTERRUPTED)
    click.echo(msgspec.json.encode(rested) if as_json else f"ticket {rested.ticket_id} is {standing(rested)}")
    sys.exit(OUTCOMES[rested.status])


def _until_rest(client: Client, ticket_id: str, as_json: bool) -> Ticket:
    for event in client.ticket_events(ticket_id):
        click.echo(msgspec.json.encode(event) if as_json else change_line(event), err=not as_json)
        if event.data["status"] in OUTCOMES:
            answer = client.ticket(ticket_id)
            if answer.version <= int(event.id):  # else that was long ago
                return answer
    raise AssertionError("events of a ticket do not end")


for decision in DECISIONS:
    ticket.add_command(decision)
