"""`jobd new`: a small project to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from jobd.cli.main import shell_quoted
from jobd.dev.project import write_project


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Write a small project: tasks, jobd.toml, and tests that use the fixtures of jobd.

    DIR must be new or empty; nothing is overwritten.

    \b
    Examples:
      jobd new shop
      cd shop && jobd dev --open
    """
    for path in write_project(folder):
        click.echo(f"  {path}")
    click.echo("")
    click.echo(f"  cd {shell_quoted(str(folder))}")
    click.echo(
        "  jobd dev --open                                          edit tasks.py and save: the next job runs it"
    )
    click.echo("""  jobd submit greet --payload '{"name": "Ada"}' --follow    from another shell""")
    click.echo("  python -m pytest                                         its tests, with a jobd of their own")
