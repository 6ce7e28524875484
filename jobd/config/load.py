"""Reads the configuration: defaults, then the file, then the environment, then flags; the later wins.

Each source yields its settings, and each setting is checked against its option. So an error can name the source of the
value, and a value that a later source overrides must still be valid. Rules between options are checked once, on the
result.

Every message is one line and contains no secret; see `quoted`.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.config.model import MODEL_PATTERN, NAME_PATTERN, Config, Key, Loaded, broken_rules
from jobd.config.options import NAMED, Option, expectation, is_list, is_marked, narrow, options, value_at
from jobd.config.show import cut, literal, quoted
from jobd.errors import ConfigError
from jobd.host.masking import masked_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]  # only Python 3.10 has it installed

SEARCH = (Path("jobd.toml"), Path("/etc/jobd/jobd.toml"))
ROOT_DATA_DIR = Path("/var/lib/jobd")

#: Largest configuration file in bytes; a larger file is no configuration.
MAX_FILE_BYTES = 1_000_000

#: Variables with the prefix JOBD_ that are no options: clients read them.
FOREIGN_VARIABLES = frozenset({"JOBD_TOKEN", "JOBD_URL"})
FOREIGN_PREFIX = "JOBD_TEST_"


class Given(NamedTuple):
    """One setting as the file, a variable or a flag has it, not yet checked."""

    option: Option
    value: Any
    origin: str


def load(
    file: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    search: Sequence[Path] = SEARCH,
    uid: int | None = None,
) -> Loaded:
    """The configuration in force; raises ConfigError for the first thing that is wrong.

    `file` is the one named on the command line; without it `JOBD_CONFIG` and then the first of `search` that exists is
    read. `flags` maps dotted keys to values, None where the flag was not given.
    """
    variables = {name: text for name, text in env.items() if name.startswith("JOBD_") and not _is_foreign(name)}
    notes = [f"{name} is set but empty, which counts as unset" for name, text in variables.items() if not text]
    path = _path_to_read(file, variables.pop("JOBD_CONFIG", ""), search)
    document, is_exposed = ({}, False) if path is None else _read(path)

    queues, tasks, gates, schedules, models = (_names(document, section, path) for section in NAMED)
    known = options(
        {**Config().queues, **dict.fromkeys(queues)},
        {**Config().tasks, **dict.fromkeys(tasks)},
        gates,
        schedules,
        models,
    )
    values, origins = _defaults(known, tasks), dict.fromkeys(known, "default")
    for given in (
        *_from_file(document, known, path, is_exposed),
        *_from_variables(variables, known),
        *_from_flags(flags, known),
    ):
        values[given.option.key] = _checked(given)
        origins[given.option.key] = given.origin

    for key, option in known.items():
        if values[key] is msgspec.NODEFAULT:
            raise _error(str(path), f"{option.dotted} is missing; it must be {expectation(option.kind)}")
    data_dir = ("data_dir",)
    values[data_dir] = str(_absolute_data_dir(values[data_dir], origins[data_dir], path, env, uid))
    config = msgspec.convert(_nested(values), Config)
    for rule in broken_rules(config):
        places = dict.fromkeys(_where(origins[key]) for key in rule.keys if origins[key] != "default")
        raise _error(" and ".join(places), rule.message)
    by_dotted = {option.dotted: origins[key] for key, option in known.items()}
    return Loaded(config=config, origins=by_dotted, path=path, notes=notes)


def _is_foreign(name: str) -> bool:
    return name in FOREIGN_VARIABLES or name.startswith(FOREIGN_PREFIX)


def _path_to_read(file: Path | None, variable: str, search: Sequence[Path]) -> Path | None:
    if file is not None or variable:
        return file or Path(variable)
    # A file that exists and cannot be read is an error later: skipping it would start jobd with other settings.
    return next((path for path in search if os.path.lexists(path)), None)


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """The file's content, and whether every user of the machine can read it."""
    try:
        with path.open("rb") as file:
            is_exposed = bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise _error(str(path), f"cannot read the configuration: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise _error(str(path), f"over {MAX_FILE_BYTES} bytes, which no configuration is")
    try:
        return tomllib.loads(content.decode("utf-8-sig")), is_exposed
    except UnicodeDecodeError as error:
        raise _error(str(path), f"not a text file: byte {error.start + 1} is not UTF-8") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number of thousands of digits
        raise _error(str(path), f"not valid TOML: {error}") from error


def _names(document: Mapping[str, Any], section: Key, path: Path | None) -> list[str]:
    """The queues, tasks or gates that the file has. That each is a table is checked later, with all other tables."""
    entries: Any = document
    for step in section:
        entries = entries.get(step) if isinstance(entries, dict) else None
    names = list(entries) if isinstance(entries, dict) else []
    pattern, rule = (
        (MODEL_PATTERN, "a model's name is 1 to 200 letters, digits and _ . : / @ + -")
        if section == ("models",)
        else (NAME_PATTERN, "a name is 1 to 64 of a-z 0-9 _ . -")
    )
    for name in names:
        if not re.fullmatch(pattern, name):
            raise _error(str(path), f"{_shown_key((*section, name))}: {rule}")
    return names


def _defaults(known: Mapping[Key, Option], file_tasks: Sequence[str]) -> dict[Key, Any]:
    """The defaults of all options. A task in the file replaces the built-in task of that name as a whole."""
    builtin = Config(tasks={name: task for name, task in Config().tasks.items() if name not in file_tasks})
    values = {}
    for key, option in known.items():
        value = value_at(builtin, key)
        values[key] = option.default if value is msgspec.UNSET else value
    return values


def _from_file(
    document: Mapping[str, Any], known: Mapping[Key, Option], path: Path | None, is_exposed: bool
) -> Iterator[Given]:
    tables = {key[:length] for key in known for length in range(1, len(key))}

    def walk(prefix: Key, table: Mapping[str, Any]) -> Iterator[Given]:
        for name, value in table.items():
            key = (*prefix, name)
            if key in known:
                yield Given(known[key], value, f"file {path}")
            elif key not in tables:
                everything = [*(option.dotted for option in known.values()), *map(".".join, sorted(tables))]
                raise _error(str(path), f"unknown key {_shown_key(key)}{_did_you_mean('.'.join(key), everything)}")
            elif isinstance(value, dict):
                yield from walk(key, value)
            else:
                raise _error(str(path), f"{'.'.join(key)} must be a table, as in [{'.'.join(key)}]")

    for given in walk((), document):
        if is_exposed and _holds_password(given):
            remedy = f"chmod 600 {shlex.quote(str(path))}"
            raise _error(str(path), f"{given.option.dotted} holds a password and every user can read it: {remedy}")
        yield given


def _from_variables(variables: Mapping[str, str], known: Mapping[Key, Option]) -> Iterator[Given]:
    by_name: dict[str, list[Option]] = {}
    for option in known.values():
        by_name.setdefault(variable_name(option.key), []).append(option)
    for name, text in variables.items():
        if not text:
            continue
        match by_name.get(name, []):
            case []:
                raise _error(name, f"unknown variable{_did_you_mean(name, by_name)}")
            case [option]:
                yield Given(option, text, f"env {name}")
            case several:
                both = " and ".join(option.dotted for option in several)
                raise _error(name, f"stands for {both}; set them in the file")


def variable_name(key: Key) -> str:
    return "JOBD_" + re.sub(r"[^A-Za-z0-9]", "_", "_".join(key)).upper()


def _from_flags(flags: Mapping[str, object], known: Mapping[Key, Option]) -> Iterator[Given]:
    by_dotted = {option.dotted: option for option in known.values()}
    for dotted, value in flags.items():
        if value is None:
            continue
        name = "--" + dotted.rpartition(".")[2].replace("_", "-")  # server.port is --port
        if dotted not in by_dotted:
            raise _error(name, f"unknown key {dotted}{_did_you_mean(dotted, by_dotted)}")
        given = Given(by_dotted[dotted], value, f"flag {name}")
        if _holds_password(given):
            variable = variable_name(given.option.key)
            raise _error(name, f"{dotted} holds a password and process lists show it: use {variable}")
        yield given


def _holds_password(given: Given) -> bool:
    option, value, _ = given
    return is_marked(option.kind, "secret") and isinstance(value, str) and masked_url(value) != value


def _checked(given: Given) -> Any:
    """The value in its option's type. Variables and flags are text; a list or table in one is JSON."""
    option, value, origin = given
    is_text = isinstance(value, str) and not origin.startswith("file ")
    try:
        if is_text and is_list(option.kind):
            value = msgspec.json.decode(value)
        elif is_text:
            return msgspec.convert(value, option.type, strict=False)
        msgspec.convert(value, option.type)
        return value
    except msgspec.ValidationError as error:
        location = re.search(r" - at `\$([^`]*)`\Z", str(error))
        path = location[1] if location else ""
        kind, part = narrow(option.kind, value, re.findall(r"\w+", path))
        raise _error(
            _where(origin), f"{option.dotted}{path} must be {expectation(kind)} (got {quoted(part, kind)})"
        ) from error
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        written = ", written as JSON" if is_list(option.kind) else ""
        raise _error(_where(origin), f"{option.dotted} must be {expectation(option.kind)}{written}") from error


def default_data_dir(env: Mapping[str, str], uid: int) -> Path:
    """The state directory of a system service for root, the XDG data directory for other users."""
    if uid == 0:
        return ROOT_DATA_DIR
    xdg = env.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore relative paths; a database would move with the working directory.
    return (Path(xdg) if os.path.isabs(xdg) else Path(_home(env), ".local/share")) / "jobd"


def _absolute_data_dir(text: str, origin: str, path: Path | None, env: Mapping[str, str], uid: int | None) -> Path:
    """A path in the file is relative to that file, so that the same file always means the same data."""
    if not text:
        return default_data_dir(env, os.getuid() if uid is None else uid)
    expanded = _home(env) + text[1:] if text == "~" or text.startswith("~/") else os.path.expanduser(text)
    if expanded.startswith("~"):
        raise _error(_where(origin), f"data_dir names a user without a home directory (got {literal(text)})")
    base = path.parent if path is not None and origin.startswith("file ") else Path()
    return Path(os.path.abspath(base / expanded))


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def _nested(values: Mapping[Key, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        table = tree
        for step in key[:-1]:
            table = table.setdefault(step, {})
        table[key[-1]] = value
    return tree


def _where(origin: str) -> str:
    return origin.partition(" ")[2]


def _error(where: str, message: str) -> ConfigError:
    text = f"{where}: {message}"
    return ConfigError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def _shown_key(key: Key) -> str:
    return cut(".".join(key))


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Searches the same table first: a misspelt key is likelier than a wrong table."""
    table, _, last = name.rpartition(".")
    everywhere: dict[str, str] = {}
    beside: dict[str, str] = {}
    for other in known:
        its_table, _, its_last = other.rpartition(".")
        everywhere.setdefault(its_last, other)
        if its_table == table:
            beside[its_last] = other
    for names in (beside, everywhere):
        for near in difflib.get_close_matches(last, names, n=1):
            return f"; did you mean {names[near]}?"
    return ""
