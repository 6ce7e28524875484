"""`jobd dev`: jobd beside an editor."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

import jobd
from jobd.cli.options import config_options, print_note
from jobd.cli.running import leave_start_to_itself, run_async
from jobd.config import load as config_load
from jobd.host import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.config.model import Loaded
    from jobd.host.data_dir import Addresses

#: Exit code of a stop by a second signal is this plus its number, as a shell has it.
SIGNALLED = 128


@click.command()
@click.argument("modules", metavar="[MODULE]...", nargs=-1)
@config_options
@click.option("--host", metavar="HOST", help="Address to listen on (server.host).")
@click.option("--port", metavar="PORT", type=int, help="Port to listen on; 0: any free one (server.port).")
@click.option(
    "--watch",
    "folders",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Watch this folder instead of the working directory; may be repeated.",
)
@click.option("--temporary", is_flag=True, help="Begin with no jobs, and throw all data away at the end.")
@click.option("--open", "is_opened", is_flag=True, help="Open the web page, or print its address.")
def dev(
    modules: tuple[str, ...],
    file: str | None,
    data_dir: str | None,
    host: str | None,
    port: int | None,
    folders: tuple[Path, ...],
    temporary: bool,
    is_opened: bool,
) -> None:
    """Run jobd beside an editor: tasks that are saved take the next job, and running jobs finish with the old code.

    The working directory is watched. MODULEs are imported for their tasks, as tasks_from in jobd.toml. Code that
    cannot be imported changes nothing, and the log says why. What else changes in jobd.toml counts as after SIGHUP.

    \b
    Examples:
      jobd dev
      jobd dev tasks --temporary --open
      jobd dev --watch src --port 0
    """
    if temporary and data_dir is not None:
        raise click.UsageError("--temporary and --data-dir exclude each other")
    from jobd.dev.reload import Reloader  # not needed for --help
    from jobd.serve.daemon import Daemon
    from jobd.supervise.service import Phase, Spec

    with _folder(temporary) as folder:

        def load() -> Loaded:
            flags: dict[str, object] = {"data_dir": folder or data_dir, "server.host": host, "server.port": port}
            loaded = config_load.load(None if file is None else Path(file), os.environ, flags)
            named = (*loaded.config.tasks_from, *(name for name in modules if name not in loaded.config.tasks_from))
            return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, tasks_from=named))

        _keep_no_bytecode()
        loaded = load()
        form = "json" if loaded.config.log.format == "json" else "text"
        logs.set_up(loaded.config.log.level, form, environ=os.environ)
        for text in loaded.notes:
            print_note(text)
        reloader = Reloader(
            load,
            folders or (Path.cwd(),),
            on_tasks=lambda config: daemon.take_tasks(config),
            on_config=lambda: daemon.obey_reload(),
        )
        watching = Spec(name="reload", service=reloader, phase=Phase.INTAKE, needed=False)
        daemon = Daemon(loaded, load, runners=reloader.make_runners, beside=(watching,))

        def on_ready(where: Addresses) -> None:
            leave_start_to_itself()
            kept = "thrown away at the end" if temporary else f"in {loaded.config.data_dir}"
            click.echo(f"jobd {jobd.__version__} serves at {where.JOBD_URL}, data {kept}")
            click.echo(f"page:  {where.JOBD_URL}/")
            click.echo(f"tasks: {', '.join(sorted(reloader.names))}")
            if is_opened:
                _open_page(file, loaded.config.data_dir)

        signalled = run_async(daemon.run, on_ready)
    if signalled is not None:
        sys.exit(SIGNALLED + signalled)


@contextlib.contextmanager
def _folder(temporary: bool) -> Iterator[str | None]:
    """A data directory that is thrown away, with the schema in it already; None: the configured one."""
    if not temporary:
        yield None
        return
    from jobd.testing.template import Template

    folder = Path(tempfile.mkdtemp(prefix="jobd-dev-"))
    folder.chmod(0o711)  # the servers' account has to get through
    data_dir = folder / "data"
    try:
        Template().copy_to(data_dir)
        yield str(data_dir)
    finally:
        if (data_dir / "run").is_symlink():
            shutil.rmtree((data_dir / "run").resolve().parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _keep_no_bytecode() -> None:
    """Compiled files carry the time of their source in seconds: of two saves in one second the first could win."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for the processes of isolated handlers


def _open_page(file: str | None, data_dir: str) -> None:
    """By the command for it, which makes a login if one is needed; jobd does not wait for it."""
    named = [] if file is None else ["--config", file]
    subprocess.Popen([sys.executable, "-m", "jobd", "open", *named, "--data-dir", data_dir], stdin=subprocess.DEVNULL)
