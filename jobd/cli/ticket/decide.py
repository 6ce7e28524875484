"""`jobd ticket approve`, `reject`, `unblock`, `reopen` and `sign-off`: what a person decides, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_tickets
from jobd.cli.jobs import for_each
from jobd.cli.table import is_terminal
from jobd.cli.target import where_options
from jobd.cli.ticket.fields import by_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd import Client
    from jobd.client import Ticket


def decision(name: str, *statuses: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that decides about tickets; `statuses` are where it applies."""

    def made(command: Callable[..., Any]) -> click.Command:
        for decorate in (
            where_options,
            click.option("--json", "as_json", is_flag=True, help="As one JSON object a ticket."),
            click.option("--why", default="", metavar="TEXT", help="The reason, for the trail."),
            click.option(
                *("--version", "version"),
                type=click.IntRange(min=1),
                metavar="N",
                help="Of the ticket as `jobd ticket get` showed it; exit code 5 if it has changed since.",
            ),
            by_option,
            click.argument(
                *("ticket_ids",),
                metavar="TICKET...",
                nargs=-1,
                required=True,
                shell_complete=complete_tickets(*statuses),
            ),
        ):
            command = decorate(command)
        return click.command(name)(command)

    return made


def _tell(ticket_ids: Sequence[str], decide: Callable[[str], Ticket], as_json: bool) -> None:
    def decide_one(ticket_id: str) -> None:
        ticket = decide(ticket_id)
        words = f"ticket {ticket.ticket_id} is {ticket.status}" if is_terminal() else f"{ticket_id}\t{ticket.status}"
        click.echo(msgspec.json.encode(ticket) if as_json else words)

    for_each(ticket_ids, decide_one)


@decision("approve", "NEW")
def approve(
    client: Client, ticket_ids: Sequence[str], by: str | None, why: str, version: int | None, as_json: bool
) -> None:
    """Approve NEW tickets: they become TODO, and jobd carries them on. Exit code 5 if one is not NEW.

    \b
    Examples:
      jobd ticket approve 01890a5d-ac96-774b-bcce-b302099a8057 --why "small enough"
    """
    _tell(ticket_ids, lambda ticket_id: client.approve(ticket_id, by=by, why=why, version=version), as_json)


@decision("reject", "NEW", "TODO", "BLOCKED")
def reject(
    client: Client, ticket_ids: Sequence[str], by: str | None, why: str, version: int | None, as_json: bool
) -> None:
    """Reject tickets that are NEW, TODO or BLOCKED: they are BLOCKED, and have to be approved again.

    \b
    Examples:
      jobd ticket reject 01890a5d-ac96-774b-bcce-b302099a8057 --why "we have no cats"
    """
    _tell(ticket_ids, lambda ticket_id: client.reject(ticket_id, by=by, why=why, version=version), as_json)


@decision("unblock", "BLOCKED")
def unblock(
    client: Client, ticket_ids: Sequence[str], by: str | None, why: str, version: int | None, as_json: bool
) -> None:
    """Let BLOCKED tickets go on: they become TODO, or NEW if they were rejected.

    \b
    Examples:
      jobd ticket unblock 01890a5d-ac96-774b-bcce-b302099a8057 --why "the model is back"
    """
    _tell(ticket_ids, lambda ticket_id: client.unblock(ticket_id, by=by, why=why, version=version), as_json)


@decision("reopen", "DONE")
def reopen(
    client: Client, ticket_ids: Sequence[str], by: str | None, why: str, version: int | None, as_json: bool
) -> None:
    """Let DONE tickets become TODO again.

    \b
    Examples:
      jobd ticket reopen 01890a5d-ac96-774b-bcce-b302099a8057 --why "it counted dogs"
    """
    _tell(ticket_ids, lambda ticket_id: client.reopen(ticket_id, by=by, why=why, version=version), as_json)


@decision("sign-off", "IN_PROGRESS")
@click.option("--refuse", is_flag=True, help="The output is not accepted, and the gate fails.")
def sign_off(
    client: Client,
    ticket_ids: Sequence[str],
    by: str | None,
    why: str,
    version: int | None,
    refuse: bool,
    as_json: bool,
) -> None:
    """Accept the output that tickets wait with, or refuse it. Exit code 5 if one waits for no sign-off.

    \b
    Examples:
      jobd ticket sign-off 01890a5d-ac96-774b-bcce-b302099a8057
      jobd ticket sign-off 01890a5d-ac96-774b-bcce-b302099a8057 --refuse --why "that is a dog"
    """
    _tell(
        ticket_ids,
        lambda ticket_id: client.sign_off(ticket_id, by=by, why=why, version=version, accept=not refuse),
        as_json,
    )


DECISIONS = (approve, reject, unblock, reopen, sign_off)
