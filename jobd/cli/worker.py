"""`jobd worker`: run the jobs of a jobd elsewhere on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click
import msgspec

import jobd
from jobd.cli.options import load, print_note, queue_names
from jobd.cli.running import run_async
from jobd.cli.target import read_token
from jobd.host import logs

if TYPE_CHECKING:
    import ssl

    from jobd.config.model import Config
    from jobd.worker.worker import Outcome

#: Most slots of one worker; a typing error beyond it would start thousands of handlers.
MOST_SLOTS = 1024


@click.command()
@click.option("--url", metavar="URL", help="http://host:port or https://host (default: JOBD_URL).")
@click.option("--token", metavar="TOKEN", help="Other users can see it among the processes; better is one of these:")
@click.option("--token-file", metavar="FILE", help="Holds the token (default: JOBD_TOKEN).")
@click.option(
    "--queue", "queues", multiple=True, callback=queue_names, help="May be repeated (default: all with slots)."
)
@click.option("--slots", type=click.IntRange(1, MOST_SLOTS), metavar="N", help="Jobs of each queue at once.")
@click.option("--ca", metavar="FILE", help="PEM file of the authority that signed jobd's certificate.")
@click.option("--no-wait", is_flag=True, help="End with exit code 69 if jobd does not answer at the start.")
@click.option("--config", "file", metavar="FILE", help="Tasks and queues (default: ./jobd.toml, /etc/jobd/jobd.toml).")
@click.option("--data-dir", metavar="DIR", help="Where running tasks have their folders (default: data_dir-worker).")
def worker(
    url: str | None,
    token: str | None,
    token_file: str | None,
    queues: tuple[str, ...],
    slots: int | None,
    ca: str | None,
    no_wait: bool,
    file: str | None,
    data_dir: str | None,
) -> None:
    """Run jobs of a jobd elsewhere on this machine, which needs outbound HTTP and nothing more.

    The tasks are those of this machine's configuration. SIGTERM or Ctrl-C drains: nothing more is claimed, what runs
    may finish within drain_s, the rest is handed back. A second signal stops at once. While jobd is away running jobs
    go on, and it is tried again.

    \b
    Examples:
      jobd worker --url https://jobs.example.org --token-file ~/.jobd-token
      JOBD_TOKEN=... jobd worker --url http://10.0.0.5:7433 --queue gpu --slots 1
      jobd worker --config tasks.toml --ca /etc/ssl/own-ca.pem

    \b
    Exit codes:
      0    drained
      2    wrong usage of the command line
      69   jobd does not take this worker, or with --no-wait did not answer
      77   the token is missing, wrong or not enough
      78   the configuration is wrong
      130  stopped at once by a second Ctrl-C (143: by a second SIGTERM)
    """
    if token is not None and token_file is not None:
        raise click.UsageError("--token and --token-file exclude each other")
    from jobd.worker.worker import RemoteWorker, WorkerTarget, with_queues  # not needed for --help

    loaded = load(file, data_dir)
    config = with_queues(with_own_folder(loaded.config, data_dir), queues, slots)
    logs.set_up(config.log.level, config.log.format, environ=os.environ)
    for text in loaded.notes:
        print_note(text)
    remote_worker = RemoteWorker(config, WorkerTarget(url, token or read_token(token_file), trusting(ca), no_wait))
    served = ", ".join(f"{name} ({queue.slots})" for name, queue in config.queues.items() if queue.slots)

    def on_start() -> None:
        where, name = remote_worker.session.url, remote_worker.worker_id
        click.echo(f"jobd {jobd.__version__} works for {where}, slots: {served}; it is {name}")

    outcome: Outcome = run_async(remote_worker.run, on_start)
    how = "drained" if outcome.signalled is None else "stopped at once"
    click.echo(f"{how}: {outcome.done} done, {outcome.failed} failed, {outcome.handed_back} handed back")
    if outcome.signalled is not None:
        sys.exit(128 + outcome.signalled)


def with_own_folder(config: Config, data_dir: str | None) -> Config:
    """Beside the data directory of a jobd that may run on this machine too, and never in it."""
    if data_dir is not None:
        return config
    return msgspec.structs.replace(config, data_dir=f"{config.data_dir}-worker")


def trusting(ca: str | None) -> ssl.SSLContext | bool:
    if ca is None:
        return True
    import ssl  # takes a while to import

    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # of which SSLError is one
        raise click.BadParameter(f"{ca}: {error.strerror or error}", param_hint="--ca") from None
