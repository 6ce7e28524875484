"""Commands that are loaded when they are called: `jobd --help` and every other command start without them."""

from __future__ import annotations

from importlib import import_module

import click


class Later(click.Command):
    """A placeholder in the list of commands; its help there is the first sentence of the real command's help."""

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
    Later("delete", "jobd.cli.delete:delete", "Delete finished jobs that fit a filter."),
    Later("list", "jobd.cli.listing:list_jobs", "List jobs, newest first."),
    Later("chat", "jobd.cli.chat:chat", "Talk to a model."),
    Later("models", "jobd.cli.chat:models", "List the models that this jobd answers for."),
    Later("group", "jobd.cli.groups:group", "Count, wait for, cancel and run again many jobs at once."),
    Later("top", "jobd.cli.top.command:top", "Watch a jobd live."),
    Later("queues", "jobd.cli.listing:queues", "Show every queue."),
    Later("pause", "jobd.cli.listing:pause", "Start no more jobs of a queue, of a task, or none at all."),
    Later("resume", "jobd.cli.listing:resume", "Start jobs of a paused queue or task again."),
    Later("limit", "jobd.cli.limits:limit", "How many jobs of a key run at once or start within a period."),
    Later("workers", "jobd.cli.listing:workers", "Show who holds jobs right now."),
    Later("board", "jobd.cli.board:board", "Show the board under a jobd."),
    Later("ticket", "jobd.cli.ticket.command:ticket", "Write tickets, decide about them, and see what became of them."),
    Later("schedule", "jobd.cli.schedule:schedule", "Make jobs at certain times, and see what became of them."),
    Later("dlq", "jobd.cli.dlq:dlq", "Look at jobs that ended in error, and run them again."),
)
DEV = Later("dev", "jobd.cli.dev:dev", "Run jobd beside an editor: what is saved is loaded at once.")
NEW = Later("new", "jobd.cli.new:new", "Write a small project to begin with.")
OPEN = Later("open", "jobd.cli.open_page:open_page", "Open the web page of a running jobd, or print its address.")
TOKEN = Later("token", "jobd.cli.token:token", "Make, list and revoke tokens: who may call, and what.")
CHAOS = Later("chaos", "jobd.cli.chaos:chaos", "Break a jobd under load, and prove that no job was lost or done twice.")
COMPLETION = Later("completion", "jobd.cli.completion:completion", "Print the script that makes the Tab key complete.")
