"""`jobd backup`, `restore` and `upgrade-check`.

What a program reads goes to standard output, what a person should know to standard error; when the backup itself goes
to standard output, so does the rest to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.options import config_options, json_option, load_quietly, print_note
from jobd.cli.running import run_async, show_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.backup.archive import Contents, Head


@click.command()
@click.argument("target", metavar="FILE")
@config_options
@json_option
@click.option("--force", is_flag=True, help="Write over FILE if it exists.")
def backup(target: str, file: str | None, data_dir: str | None, as_json: bool, force: bool) -> None:
    """Write everything that cannot be made again into one FILE (-: standard output), whether jobd runs or not.

    That is the database as of one moment, and the result files that it names; payloads are in it, so its mode is
    0600. Not in it: jobd.toml, and tables of your own.

    \b
    Examples:
      jobd backup /mnt/usb/jobd-$(date +%F).tar
      jobd backup - | ssh elsewhere 'cat > jobd.tar'
    """
    from jobd.backup.command import back_up

    config = load_quietly(file, data_dir).config
    summary = _run_with_progress(back_up, config, None if target == "-" else Path(target), force)
    if as_json:
        click.echo(msgspec.json.encode(summary), err=target == "-")
    else:
        where = "" if summary.file is None else f" in {summary.file}"
        click.echo(
            f"backed up{where}: {_summary_text(summary.head, summary.contents)}, {summary.bytes >> 10} KiB",
            err=target == "-",
        )
    _warn_of_missing(summary.contents.results_missing)
    if summary.others:
        print_note(
            f"tables that are not jobd's own are not in it: {', '.join(summary.others[:5])}; pg_dump them yourself"
        )


@click.command()
@click.argument("source", metavar="FILE")
@config_options
@json_option
@click.option("--check", "only_check", is_flag=True, help="Read all of FILE and say what is in it; change nothing.")
@click.option(
    "--results",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A results folder for what FILE lacks (default: for an automatic backup, the one it lies beside).",
)
def restore(
    source: str, file: str | None, data_dir: str | None, as_json: bool, only_check: bool, results: Path | None
) -> None:
    """Make a data directory from a backup. The directory must be empty or new; afterwards start jobd on it.

    Jobs that were running when the backup was taken wait again. Workers that still hold them have lost them.

    \b
    Examples:
      jobd restore /mnt/usb/jobd-2026-01-01.tar
      jobd restore jobd.tar --data-dir ./other && jobd serve --data-dir ./other
      jobd restore jobd.tar --check
    """
    from jobd.backup import restore as restoring

    if only_check:
        restored = run_async(restoring.check, Path(source))
    else:
        restored = _run_with_progress(restoring.restore, load_quietly(file, data_dir).config, Path(source), results)
    if as_json:
        click.echo(msgspec.json.encode(restored))
    elif only_check:
        click.echo(f"{source} is whole: {_summary_text(restored.head, restored.contents)}")
    else:
        click.echo(f"restored into {restored.data_dir}: {_summary_text(restored.head, restored.contents)}")
        if restored.handed_back:
            click.echo(f"{restored.handed_back} jobs that were running wait again")
        click.echo(f"next: jobd serve --data-dir {restored.data_dir}")
    _warn_of_missing(restored.results_missing)


@click.command("upgrade-check")
@config_options
@json_option
def upgrade_check(file: str | None, data_dir: str | None, as_json: bool) -> None:
    """Say what `jobd serve` of this version would do with a data directory; changes nothing.

    Exit code 0: it would start, perhaps after a backup and a migration. 1: it would refuse.

    \b
    Examples:
      jobd upgrade-check && systemctl restart jobd
    """
    from jobd.backup.upgrade import forecast

    plan = run_async(forecast, load_quietly(file, data_dir).config)
    if as_json:
        click.echo(msgspec.json.encode(plan))
    else:
        schema = "unknown" if plan.schema is None else plan.schema
        click.echo(f"jobd {plan.jobd} knows database schema {plan.knows}; the data has {schema}")
        for name in plan.pending:
            click.echo(f"pending: {name}")
        if plan.backup_bytes is not None:
            click.echo(f"backup before it: up to {plan.backup_bytes >> 20} MiB, {plan.free_bytes >> 20} MiB are free")
        click.echo(f"{plan.verdict}: {plan.why}" if plan.why else plan.verdict)
    sys.exit(1 if plan.verdict == "refused" else 0)


COMMANDS = (backup, restore, upgrade_check)


def _run_with_progress(function: Callable[..., Any], *args: object) -> Any:
    try:
        return run_async(function, *args, show_progress)
    finally:
        show_progress("")


def _summary_text(head: Head, contents: Contents) -> str:
    files = f"{contents.result_files} result files" if head.holds == "everything" else "no result files"
    return f"{sum(contents.jobs.values())} jobs and {files} of {head.made_at:%F %T} UTC, schema {head.schema}"


def _warn_of_missing(refs: list[str]) -> None:
    if refs:
        print_note(f"{len(refs)} result files are missing, first {refs[0]}; reading those results will say so")
