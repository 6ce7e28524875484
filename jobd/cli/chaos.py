"""`jobd chaos`: a drill that breaks a jobd under load, and proves what became of every job."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from jobd.chaos.faults import FAULTS
from jobd.cli.options import json_option
from jobd.cli.running import show_progress

#: Exit code when a promise was broken.
BROKEN = 1


@click.command()
@click.option("--rounds", type=click.IntRange(1, 100_000), default=17, show_default=True, help="Faults, one a round.")
@click.option("--only", multiple=True, type=click.Choice(list(FAULTS)), help="Only this fault; may be given again.")
@click.option("--seed", type=click.IntRange(0), help="Repeat the moments of an earlier drill.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Work on this data directory instead of one that is thrown away; asks first.",
)
@click.option("--yes", is_flag=True, help="Do not ask before work on a given data directory.")
@json_option
def chaos(
    rounds: int, only: tuple[str, ...], seed: int | None, data_dir: Path | None, yes: bool, as_json: bool
) -> None:
    """Break a jobd under load, again and again, and prove that no job was lost or done twice.

    A jobd of its own is made in TMPDIR, with Postgres and Valkey, and thrown away afterwards. Short, long, failing,
    retried, canceled, delayed, keyed jobs, batches and groups are sent to it all the time, while it is killed, frozen,
    emptied, filled up and cut off. Then every job is compared with the answers to its sender and what its handler did.
    Filled disks and power cuts need root and mkfs.ext4; without them they are left out. The exit code is 1 if a promise
    was broken.

    \b
    Examples:
      jobd chaos
      jobd chaos --rounds 200 --only kill-all --only power-cut
      TMPDIR=/mnt/nvme sudo -E jobd chaos --json | jq .lost
    """
    from jobd.chaos import drill, report

    if data_dir is not None and not yes:
        click.echo(
            f"jobd: the jobd that works on {data_dir} will be killed {rounds} times while it has jobs.", err=True
        )
        typed = click.prompt("Type the path again to go on", err=True)
        if Path(typed) != data_dir:
            raise click.UsageError(f"{typed} is not {data_dir}; nothing was done")
    options = drill.DrillOptions(rounds=rounds, only=only, seed=seed, data_dir=data_dir)
    found = drill.run(options, show_progress)
    click.echo(msgspec.json.encode(found) if as_json else "\n".join(report.lines(found)))
    sys.exit(BROKEN if found.findings else 0)
