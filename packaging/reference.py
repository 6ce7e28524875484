"""Pages of the documentation that are made from the code when the site is built: a hook of MkDocs (see mkdocs.yml).

Commands from click, calls from the endpoints, options from the Structs, and the catalogue of errors.

    .venv-3.10/bin/mkdocs build --strict    makes the site in site/; `make docs` is the same
    .venv-3.10/bin/mkdocs serve             shows it, and again after every change
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click
import msgspec
from mkdocs.structure.files import File, Files

from jobd.cli.lazy import Later
from jobd.cli.main import EXIT_CODES, cli
from jobd.config import model
from jobd.config.options import NAMED, expectation, is_marked, options
from jobd.http.app import ENDPOINTS
from jobd.http.field_comments import field_comments
from jobd.http.openapi import tag_of
from jobd.wire.problems import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig

#: Characters in a line of the help texts.
WIDTH = 110


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those that lie in docs/."""
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    made = {"commands.md": commands(), "http.md": http(), "configuration.md": configuration(), "errors.md": errors()}
    return {name: "\n".join((*lines, "")) for name, lines in made.items()}


# -- commands ----------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    yield "# Commands and exit codes\n"
    yield "`jobd COMMAND --help` prints the same. `JOBD_URL` and `JOBD_TOKEN` stand for `--url` and a token.\n"
    yield from command(cli, click.Context(cli, info_name="jobd"), 2)
    yield "## Exit codes\n"
    yield "```text"
    yield from EXIT_CODES.removeprefix("\b\nExit codes:\n").rstrip().splitlines()
    yield "```"


def command(one: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """The help of a command, then of those below it."""
    context.terminal_width = context.max_content_width = WIDTH
    if context.parent is not None:
        yield f"{'#' * level} {context.command_path}\n"
        yield "```text"
        yield from one.get_help(context).splitlines()
        yield "```\n"
    if isinstance(one, click.Group):
        for name in one.list_commands(context):
            found = one.get_command(context, name)
            assert found is not None, name
            loaded = found.load() if isinstance(found, Later) else found
            below = level if context.parent is None else level + 1
            yield from command(loaded, click.Context(loaded, info_name=name, parent=context), below)


# -- HTTP --------------------------------------------------------------------------------------------------------------


def http() -> Iterator[str]:
    yield "# HTTP\n"
    yield "Every call, with the scope that its token needs (`public`: none). A running jobd describes the fields at"
    yield "`/docs`, and at `/openapi.json` for programs. Refusals are problem documents (RFC 9457) with a `code`: see"
    yield "[error codes](errors.md)."
    group = ""
    for endpoint in sorted(ENDPOINTS, key=tag_of):  # stable: within a group in the order of the code
        if (tag := tag_of(endpoint)) != group:
            group = tag
            yield f"\n## {group}\n"
            yield "| call | scope | what it does | answers | codes of its own |"
            yield "|---|---|---|---|---|"
        statuses = ", ".join(map(str, endpoint.answers))
        codes = ", ".join(f"`{code}`" for code in sorted(endpoint.problems))
        yield cells(f"`{endpoint.method} {endpoint.path}`", endpoint.scope, endpoint.summary, statuses, codes)


# -- configuration -----------------------------------------------------------------------------------------------------


def configuration() -> Iterator[str]:
    yield "# Configuration\n"
    yield "Every option with its default; `jobd.toml` of the repository says why each default is what it is. What is"
    yield "marked *reload* changes in a running jobd by SIGHUP, the rest at its next start. Every option is also an"
    yield "environment variable: `server.port` is `JOBD_SERVER_PORT`. NAME stands for a name that you choose."
    comments = field_comments(model)
    table = None
    for option in options(*[["NAME"]] * len(NAMED)).values():
        if option.key[:-1] != table:
            table = option.key[:-1]
            yield f"\n## [{'.'.join(table)}]\n" if table else "\n## At the top of the file\n"
            yield "| option | default | expects | meaning |"
            yield "|---|---|---|---|"
        marks = "".join(f" *{mark}*" for mark in ("reload", "secret") if is_marked(option.kind, mark))
        meaning = comments[struct_of(table).__name__].get(option.key[-1], "")
        yield cells(
            f"`{option.key[-1]}`", default_text(option.default), expectation(option.kind), f"{meaning}{marks}".strip()
        )


def struct_of(table: tuple[str, ...]) -> type[msgspec.Struct]:
    """The Struct of a table of the file."""
    found: type[msgspec.Struct] = model.Config
    for step in table:
        if step != "NAME":
            (kind,) = (field.type for field in msgspec.structs.fields(found) if field.name == step)
            found = kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else kind.__args__[1]
    return found


def default_text(value: object) -> str:
    if value is msgspec.NODEFAULT:
        return "to be set"
    if value is None:
        return ""
    return f"`{json.dumps(msgspec.to_builtins(value))}`"


# -- errors ------------------------------------------------------------------------------------------------------------


def errors() -> Iterator[str]:
    yield "# Error codes\n"
    yield "The `code` of a refused call. A code keeps its meaning for ever; a new cause gets a new code. A running jobd"
    yield "has the same list at `/problems`.\n"
    yield "| code | status | meaning |"
    yield "|---|---|---|"
    for code, kind in sorted(CATALOGUE.items()):
        yield cells(f'<span id="{code}"></span>`{code}`', str(kind.status), kind.meaning)


def cells(*texts: str) -> str:
    """One row of a table."""
    return "| " + " | ".join(re.sub(r"\s+", " ", text).replace("|", "\\|") for text in texts) + " |"
