"""`jobd ticket approve`, `reject`, `unblock`, `reopen` and `sign-off`: what a person decides, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_tickets
from jobd.cli.jobs import for_each
from jobd.cli.table import is_terminal
from jobd.cli.target import client_options
from jobd.cli.ticket.fields import by_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd import Client
    from jobd.client import Ticket


def _command(
    name: str,
    statuses: Sequence[str],
    verb: Callable[[Client], Callable[..., Ticket]],
    text: str,
    *options: Callable[..., Any],
) -> click.Command:
    """A command that decides about tickets in these statuses; `options` are those that other decisions do not have."""

    def decide(client: Client, ticket_ids: Sequence[str], as_json: bool, **answers: Any) -> None:
        for_each(ticket_ids, lambda ticket_id: _print(verb(client)(ticket_id, **answers), ticket_id, as_json))

    command: Callable[..., Any] = decide
    decorators: list[Callable[..., Any]] = [
        *options,
        client_options,
        click.option("--json", "as_json", is_flag=True, help="As one JSON object a ticket."),
        click.option("--why", default="", metavar="TEXT", help="The reason, for the trail."),
        click.option(
            *("--version", "version"),
            type=click.IntRange(min=1),
            metavar="N",
            help="Of the ticket as `jobd ticket show` showed it; exit code 5 if it has changed since.",
        ),
        by_option,
        click.argument(
            *("ticket_ids",), metavar="TICKET...", nargs=-1, required=True, shell_complete=complete_tickets(*statuses)
        ),
    ]
    for decorate in decorators:
        command = decorate(command)
    return click.command(name, help=text)(command)


def _print(ticket: Ticket, ticket_id: str, as_json: bool) -> None:
    words = f"ticket {ticket.ticket_id} is {ticket.status}" if is_terminal() else f"{ticket_id}\t{ticket.status}"
    click.echo(msgspec.json.encode(ticket) if as_json else words)


DECISIONS = (
    _command(
        *("approve", ["NEW"], lambda client: client.approve),
        """Approve NEW tickets: they become TODO, and jobd carries them on. Exit code 5 if one is not NEW.

        \b
        Examples:
          jobd ticket approve 01890a5d-ac96-774b-bcce-b302099a8057 --why "small enough"
        """,
    ),
    _command(
        *("reject", ["NEW", "TODO", "BLOCKED"], lambda client: client.reject),
        """Reject tickets that are NEW, TODO or BLOCKED: they are BLOCKED, and have to be approved again.

        \b
        Examples:
          jobd ticket reject 01890a5d-ac96-774b-bcce-b302099a8057 --why "we have no cats"
        """,
    ),
    _command(
        *("unblock", ["BLOCKED"], lambda client: client.unblock),
        """Let BLOCKED tickets go on: they become TODO, or NEW if they were rejected.

        \b
        Examples:
          jobd ticket unblock 01890a5d-ac96-774b-bcce-b302099a8057 --why "the model is back"
        """,
    ),
    _command(
        *("reopen", ["DONE"], lambda client: client.reopen),
        """Let DONE tickets become TODO again.

        \b
        Examples:
          jobd ticket reopen 01890a5d-ac96-774b-bcce-b302099a8057 --why "it counted dogs"
        """,
    ),
    _command(
        *("sign-off", ["IN_PROGRESS"], lambda client: client.sign_off),
        """Accept the output that tickets wait with, or refuse it. Exit code 5 if one waits for no sign-off.

        \b
        Examples:
          jobd ticket sign-off 01890a5d-ac96-774b-bcce-b302099a8057
          jobd ticket sign-off 01890a5d-ac96-774b-bcce-b302099a8057 --refuse --why "that is a dog"
        """,
        click.option(
            *("--refuse", "accept"),
            is_flag=True,
            callback=lambda context, option, refuse: not refuse,
            help="The output is not accepted, and the gate fails.",
        ),
    ),
)
