"""What the Tab key offers: commands and options by click, and tasks, queues and job ids of the jobd that is meant.

Nobody waits long at a prompt: a jobd that is away or slow offers nothing, and says nothing either.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobd import Client

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

#: Timeout of a request in seconds; a person waits at the prompt.
TIMEOUT_S = 1.0
#: Newest jobs or tickets whose ids shell completion offers: one page of the API.
PAGE = 100
PROGRAM, VARIABLE = "jobd", "_JOBD_COMPLETE"


def complete_tasks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Those of the configuration here, and of the newest jobs: the jobd that is meant may run elsewhere."""
    names = set[str]()
    with suppress(Exception):
        names |= _configured_tasks(ctx.params.get("file"), ctx.params.get("data_dir"))
    with suppress(Exception), _client(ctx) as client:
        names |= {job.task for job in client.list(limit=PAGE).jobs}
    return _fitting(((name, "") for name in sorted(names)), incomplete)


def complete_jobs(*statuses: str) -> Completer:
    """The newest jobs, of these statuses only if any are named."""
    return _completer(
        lambda client: (
            (job.job_id, f"{job.task} {job.status}")
            for job in client.list(limit=PAGE).jobs
            if not statuses or job.status in statuses
        )
    )


def complete_tickets(*statuses: str) -> Completer:
    """The newest tickets, of these statuses only if any are named."""
    return _completer(
        lambda client: (
            (ticket.ticket_id, f"{ticket.status} {ticket.title}")
            for ticket in client.tickets(limit=PAGE).tickets
            if not statuses or ticket.status in statuses
        )
    )


def _completer(words: Callable[[Client], Iterator[tuple[object, str]]]) -> Completer:
    """Offers what `words` reads from jobd, each with a help text; nothing if that fails."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with suppress(Exception), _client(ctx) as client:
            return _fitting(words(client), incomplete)
        return []

    return complete


def _fitting(words: Iterator[tuple[object, str]], incomplete: str) -> list[CompletionItem]:
    items = ((str(word), about) for word, about in words)
    return [CompletionItem(word, help=about or None) for word, about in items if word.startswith(incomplete)]


complete_queues = _completer(lambda client: ((queue.name, "") for queue in client.queues()))
complete_models = _completer(lambda client: ((model.id, "") for model in client.models()))
complete_schedules = _completer(
    lambda client: ((schedule.name, schedule.task) for schedule in client.schedules().schedules)
)


@contextmanager
def _client(ctx: click.Context) -> Iterator[Client]:
    from jobd import Client
    from jobd.cli.target import cli_target_of

    option: Any = ctx.params.get
    target = cli_target_of(option("url"), option("token_file"), option("file"), option("data_dir"))
    with Client(target.url, target.token, TIMEOUT_S, patience_s=0.0) as client:
        yield client


def _configured_tasks(file: str | None, data_dir: str | None) -> set[str]:
    from jobd.config import load as config_load

    loaded = config_load.load(None if file is None else Path(file), os.environ, {"data_dir": data_dir})
    return set(loaded.config.tasks)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes the Tab key complete commands, options, tasks, queues and job ids.

    \b
    Examples:
      eval "$(jobd completion bash)"                                         # in ~/.bashrc
      eval "$(jobd completion zsh)"                                          # in ~/.zshrc, after compinit
      jobd completion fish > ~/.config/fish/completions/jobd.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three of them"
    root = click.get_current_context().find_root().command
    script = kind(root, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
