"""`jobd limit list|set|drop`: limits and weights of the keys of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from jobd.cli.completion import complete_queues
from jobd.cli.show import note, one_line
from jobd.cli.table import Column, show_rows
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd import Client
    from jobd.wire.gateway import LimitObject

COLUMNS = (Column("KEY"), Column("RUNNING"), Column("RATE"), Column("WEIGHT"))
#: Limits that one call of the API answers with.
PAGE = 100


@click.group()
def limit() -> None:
    """How many jobs of a key run at once or start within a period, and how often it has its turn.

    \b
    A key is what a job was sent with (`jobd submit --limit-key`, `limit_key` in a submit) or what the setting
    limit_key of its task finds in the payload. `*` stands for all keys without limits of their own.
    """


@limit.command("list")
@click.argument("queue", shell_complete=complete_queues)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def limit_list(client: Client, queue: str, as_json: bool) -> None:
    """Show the limits that were set for keys of a queue, and what is configured for all.

    \b
    Examples:
      jobd limit list default
      jobd limit list default --json | jq -r .key
    """
    found = _limits(client, queue)
    if as_json:
        for rule in found:
            click.echo(msgspec.json.encode(rule))
        return
    usual = client.limits(queue, limit=1).configured
    rate = f"{usual.rate} in {usual.rate_s:g} s" if usual.rate else "any rate"
    turns = "; keys take turns" if usual.fair else ""
    note(f"configured for every key: {usual.running or 'any number'} at once, {rate}{turns}")
    rows = (
        (one_line(rule.key), _number(rule.running), _rate(rule), "-" if rule.weight is None else f"{rule.weight:g}")
        for rule in found
    )
    show_rows(COLUMNS, rows, nothing="no limits were set")


@limit.command("set")
@click.argument("queue", shell_complete=complete_queues)
@click.argument("key")
@click.option("--running", type=click.IntRange(min=0), metavar="N", help="Most jobs at once; 0: any number.")
@click.option("--rate", type=click.IntRange(min=0), metavar="N", help="Most starts within --per; 0: any number.")
@click.option("--per", "rate_s", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds of --rate.")
@click.option("--weight", type=click.FloatRange(min=0.01, max=100), metavar="W", help="Turns for one of other keys.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@client_options
def limit_set(
    client: Client,
    queue: str,
    key: str,
    running: int | None,
    rate: int | None,
    rate_s: float | None,
    weight: float | None,
    as_json: bool,
) -> None:
    """Set the limits of a key, in place of those that were set before. What is left out is as for all keys.

    A limit that is raised counts at once; one that is lowered ends no running job.

    \b
    Examples:
      jobd limit set default ann --running 2
      jobd limit set default '*' --running 4 --rate 100 --per 60
      jobd limit set gpu ann --weight 3
    """
    if (rate is None) != (rate_s is None):
        raise click.UsageError("--rate and --per go together")
    rule = client.set_limit(queue, key, running=running, rate=rate, rate_s=rate_s, weight=weight)
    click.echo(msgspec.json.encode(rule) if as_json else f"key {one_line(rule.key)} of queue {queue} is limited")


@limit.command("drop")
@click.argument("queue", shell_complete=complete_queues)
@click.argument("key")
@client_options
def limit_drop(client: Client, queue: str, key: str) -> None:
    """Forget the limits of a key.

    \b
    Examples:
      jobd limit drop default ann
    """
    dropped = client.drop_limit(queue, key).dropped
    click.echo(f"key {one_line(key)} of queue {queue} {'has' if dropped else 'had'} no limits of its own")


def _limits(client: Client, queue: str) -> Iterator[LimitObject]:
    after: str | None = None
    while True:
        page = client.limits(queue, limit=PAGE, after=after)
        yield from page.limits
        if page.next is None:
            return
        after = page.next


def _number(running: int | None) -> str:
    return "-" if running is None else str(running or "any")


def _rate(rule: LimitObject) -> str:
    if rule.rate is None or rule.rate_s is None:
        return "-"
    return f"{rule.rate} in {rule.rate_s:g} s" if rule.rate else "any"
