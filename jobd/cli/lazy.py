"""Commands that are loaded when they are called: `jobd --help` and every other command start without them."""

from __future__ import annotations

from importlib import import_module

import click


class Later(click.Command):
    """Stands for a command in the list of all; what it says of itself there is the first sentence of the real help."""

    def __init__(self, name: str, location: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._location = location

    def load(self) -> click.Command:
        module, _, attribute = self._location.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class LaterGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Later) else command, rest


#: In the order of a new user's day.
JOBS = (
    Later("submit", "jobd.cli.jobs:submit", "Submit a job and print its id."),
    Later("get", "jobd.cli.jobs:get_job", "Show a job."),
    Later("watch", "jobd.cli.watch:watch", "Follow a job to its end."),
    Later("cancel", "jobd.cli.jobs:cancel", "Cancel jobs."),
    Later("retry", "jobd.cli.jobs:retry", "Run jobs that ended in error again."),
    Later("list", "jobd.cli.listing:list_jobs", "List jobs, newest first."),
    Later("top", "jobd.cli.top.command:top", "Watch a jobd live."),
    Later("queues", "jobd.cli.listing:queues", "Show every queue."),
    Later("pause", "jobd.cli.listing:pause", "Start no more jobs of a queue."),
    Later("resume", "jobd.cli.listing:resume", "Start jobs of a paused queue again."),
    Later("workers", "jobd.cli.listing:workers", "Show who holds jobs right now."),
    Later("ticket", "jobd.cli.ticket.command:ticket", "Write tickets, decide about them, and see what became of them."),
    Later("dlq", "jobd.cli.dlq:dlq", "Look at jobs that ended in error, and run them again."),
)
TOKEN = Later("token", "jobd.cli.token:token", "Make, list and revoke tokens: who may call, and what.")
COMPLETION = Later("completion", "jobd.cli.completion:completion", "Print the script that makes the Tab key complete.")
