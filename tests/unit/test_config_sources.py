"""Variables and flags, which source wins, where the data directory is, and secrets that no error shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobd.config.load import default_data_dir, load, variable_name
from jobd.config.model import BUILTIN_TASKS, Config
from jobd.config.options import options
from jobd.errors import ConfigError
from tests.unit.config_files import config_of, error_of, file_error

HASH = "0123456789abcdef" * 4
CANARY = "s3cr3t-canary"
TOKEN = {"name": "ci", "sha256": HASH, "scopes": ["client", "worker"]}

KEYS = [option.dotted for option in options(["default"], BUILTIN_TASKS).values()]
VARIABLES = [variable_name(key) for key in options(["default"], BUILTIN_TASKS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobd.toml"


# --- variables


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("JOBD_SERVER_PROT", "1", "unknown variable; did you mean JOBD_SERVER_PORT?"),
        ("JOBD_QUEUES_GPU_SLOTS", "1", "unknown variable; did you mean JOBD_QUEUES_DEFAULT_SLOTS?"),
        ("JOBD_XYZZY", "1", "unknown variable"),
        ("JOBD_SERVER_PORT", "60s", 'server.port must be a whole number from 0 to 65535 (got "60s")'),
        ("JOBD_SERVER_PORT", "1.5", 'server.port must be a whole number from 0 to 65535 (got "1.5")'),
        ("JOBD_SERVER_PORT", "true", 'server.port must be a whole number from 0 to 65535 (got "true")'),
        ("JOBD_SERVER_PORT", "99999", 'server.port must be a whole number from 0 to 65535 (got "99999")'),
        ("JOBD_TASKS_CHAT_ISOLATE", "yes", 'tasks.chat.isolate must be true or false (got "yes")'),
        ("JOBD_TASKS_CHAT_ARGV", "ls -l", "tasks.chat.argv must be a list, written as JSON"),
        ("JOBD_TASKS_CHAT_ARGV", '"ls"', "tasks.chat.argv must be a list (got text)"),
        ("JOBD_TASKS_CHAT_ARGV", "[" * 100_000, "tasks.chat.argv must be a list, written as JSON"),
        ("JOBD_AUTH_TOKENS", HASH, "auth.tokens must be a list, written as JSON"),
        ("JOBD_SERVER_PORT", "\udcff", "server.port must be a whole number from 0 to 65535"),
        ("JOBD_DATA_DIR", "/a\udcff", 'data_dir must be text (got "/a\\udcff")'),
    ],
)
def test_wrong_variable_is_named(name: str, text: str, message: str) -> None:
    assert error_of(None, {name: text}) == f"{name}: {message}"


def test_variables_that_are_no_options_are_left_alone() -> None:
    env = {
        "JOBD_URL": "http://h",
        "JOBD_TOKEN": "t",
        "JOBD_TEST_ANYTHING": "1",
        "PATH": "/bin",
        "jobd_x": "1",
        "JOBDX": "1",
    }

    loaded = load(None, env, {}, search=())

    assert set(loaded.origins.values()) == {"default"}
    assert loaded.notes == []


def test_empty_variable_counts_as_unset_and_is_noted(path: Path) -> None:
    path.write_text("[server]\nport = 1")
    env = {"JOBD_SERVER_PORT": "", "JOBD_CONFIG": "", "JOBD_TOKEN": ""}

    loaded = load(path, env, {})

    assert loaded.config.server.port == 1
    assert loaded.notes == [
        "JOBD_SERVER_PORT is set but empty, which counts as unset",
        "JOBD_CONFIG is set but empty, which counts as unset",
    ]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_variable_spells_booleans_as_people_do(path: Path, text: str, value: bool) -> None:
    config = config_of(path, '[tasks.x]\nrun = "python"\nhandler = "a:b"', {"JOBD_TASKS_X_ISOLATE": text})

    assert config.tasks["x"].isolate is value


# --- precedence and origins


def test_later_source_wins_and_its_name_is_kept(path: Path) -> None:
    path.write_text("drain_s = 1\n[server]\nport = 1\nhost = 'file'\n[retry]\nmax_attempts = 9")
    env = {"JOBD_SERVER_PORT": "2", "JOBD_SERVER_HOST": "env", "JOBD_POSTGRES_URL": "postgresql://h/d"}
    flags: dict[str, object] = {"server.port": 3, "drain_s": None, "data_dir": "/x"}

    loaded = load(path, env, flags)

    config, origins = loaded.config, loaded.origins
    assert (config.server.port, config.server.host, config.drain_s) == (3, "env", 1)
    assert {key: origins[key] for key in ("server.port", "server.host", "drain_s", "postgres.url", "log.level")} == {
        "server.port": "flag --port",
        "server.host": "env JOBD_SERVER_HOST",
        "drain_s": f"file {path}",
        "postgres.url": "env JOBD_POSTGRES_URL",
        "log.level": "default",
    }
    assert (config.data_dir, origins["data_dir"]) == ("/x", "flag --data-dir")
    assert loaded.path == path


def test_overridden_value_must_still_be_valid(path: Path) -> None:
    path.write_text("[server]\nport = 70000")

    assert error_of(path, {"JOBD_SERVER_PORT": "1"}).startswith("server.port must be")


def test_unknown_flag_is_named() -> None:
    assert error_of(None, flags={"server.prot": 1}) == ("--prot: unknown key server.prot; did you mean server.port?")


# --- data_dir


@pytest.mark.parametrize(
    ("env", "uid", "expected"),
    [
        ({"HOME": "/home/u"}, 0, "/var/lib/jobd"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "/data"}, 0, "/var/lib/jobd"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "/data"}, 1000, "/data/jobd"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": "relative"}, 1000, "/home/u/.local/share/jobd"),
        ({"HOME": "/home/u", "XDG_DATA_HOME": ""}, 1000, "/home/u/.local/share/jobd"),
        ({"HOME": "/home/u"}, 1000, "/home/u/.local/share/jobd"),
    ],
)
def test_default_data_dir_depends_on_who_runs(env: dict[str, str], uid: int, expected: str) -> None:
    assert default_data_dir(env, uid) == Path(expected)
    assert load(None, env, {}, search=(), uid=uid).config.data_dir == expected


def test_default_data_dir_without_home_is_still_absolute() -> None:
    assert default_data_dir({}, 1000).is_absolute()


@pytest.mark.parametrize(
    ("given", "expected"), [("~", "/home/u"), ("~/x", "/home/u/x"), ("/a/../b", "/b"), ("/a~b", "/a~b")]
)
def test_data_dir_is_made_absolute(given: str, expected: str) -> None:
    assert load(None, {"HOME": "/home/u", "JOBD_DATA_DIR": given}, {}, search=()).config.data_dir == expected


def test_relative_data_dir_counts_from_the_file_that_has_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    assert config_of(path, 'data_dir = "data"').data_dir == str(path.parent / "data")
    assert config_of(path, "", {"JOBD_DATA_DIR": "data"}).data_dir == str(elsewhere / "data")
    assert config_of(path, "", flags={"data_dir": "data"}).data_dir == str(elsewhere / "data")


def test_home_of_nobody_is_refused() -> None:
    assert error_of(None, {"JOBD_DATA_DIR": "~no-such-user/x"}) == (
        'JOBD_DATA_DIR: data_dir names a user without a home directory (got "~no-such-user/x")'
    )


# --- secrets

URLS_WITH_PASSWORD = [
    ("postgres", f"postgresql://u:{CANARY}@h/d"),
    ("postgres", f"postgres://h/d?user=u&password={CANARY}"),
    ("redis", f"redis://:{CANARY}@h"),
    ("redis", f"unix://u:{CANARY}@/run/v.sock"),
]


@pytest.mark.parametrize(("section", "url"), URLS_WITH_PASSWORD)
@pytest.mark.parametrize(("mode", "is_refused"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_password_in_file_that_everybody_reads_is_refused(
    path: Path, section: str, url: str, mode: int, is_refused: bool
) -> None:
    path.write_text(f'[{section}]\nurl = "{url}"')
    path.chmod(mode)

    if is_refused:
        assert error_of(path) == f"{section}.url holds a password and every user can read it: chmod 600 {path}"
    else:
        assert load(path, {}, {}).config != Config()


def test_url_without_password_may_be_read_by_everybody(path: Path) -> None:
    path.write_text('[postgres]\nurl = "postgresql://u@h:5432/d"\n[redis]\nurl = "redis://h:6379/0"')
    path.chmod(0o644)

    assert load(path, {}, {}).config.redis.url == "redis://h:6379/0"


@pytest.mark.parametrize(("section", "url"), URLS_WITH_PASSWORD)
def test_password_may_come_from_a_variable_but_not_from_a_flag(section: str, url: str) -> None:
    variable = f"JOBD_{section.upper()}_URL"

    assert load(None, {variable: url}, {}, search=()).origins[f"{section}.url"] == f"env {variable}"
    assert error_of(None, flags={f"{section}.url": url}) == (
        f"--url: {section}.url holds a password and process lists show it: use {variable}"
    )


@pytest.mark.parametrize(
    "text",
    [
        f'[postgres]\nurl = "mysql://u:{CANARY}@h/d"',
        f'[postgres]\nurl = "postgresql:/u:{CANARY}@h/d"',
        f'[postgres]\nurl = "host=h password={CANARY}"',
        f'[postgres]\nurl = "{CANARY}"',
        f'[postgres]\nurl = "postgresql://u:{CANARY}@h/d d"',
        f'[postgres]\nurl = ["postgresql://u:{CANARY}@h/d"]',
        f'[postgres]\nurl = {{ password = "{CANARY}" }}',
        f'[postgres]\npassword = "{CANARY}"',
        f'[postgres]\nulr = "postgresql://u:{CANARY}@h/d"',
        f'postgres = "postgresql://u:{CANARY}@h/d"',
        f'[redis]\nurl = "redis//:{CANARY}@h"',
        f'[redis]\nurl = "tcp://u:x{CANARY}:y@z/@h"',
        f'[redis]\nurl = "tcp://u@v:{CANARY}@h"',
        f'[redis]\nurl = "tcp://u:{CANARY}"',
        f'[redis]\nurl = "tcp://u:9-{CANARY}/0"',
        f'[log]\nlevel = "redis://:{CANARY}@h"',
        f'[tasks.chat]\nrun = "mock"\nbase_url = "u:{CANARY}@h"',
        f'[tasks.chat]\nrun = "mock"\nbase_url = "http://u:{CANARY}@h"',
        f'[[auth.tokens]]\nname = "a"\nsha256 = "{CANARY}"\nscopes = ["client"]',
        f'[[auth.tokens]]\nname = "a"\ntoken = "{CANARY}"\nscopes = ["client"]',
        f'[auth]\ntokens = "{CANARY}"',
        f'[auth]\ntokens = ["{CANARY}"]',
        f'[postgres]\nurl = "postgresql://u:{CANARY}@h/d',
        f"[postgres]\nurl = postgresql://u:{CANARY}@h/d",
    ],
)
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_no_error_shows_a_secret(path: Path, text: str, mode: int) -> None:
    path.touch(mode)

    assert CANARY not in file_error(path, text)


# --- anything at all


@given(content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
@settings(deadline=None)
def test_any_bytes_load_or_are_a_config_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(content)

    load_or_refuse(path, {}, {})


#: Texts near to TOML: random bytes seldom get past its grammar.
names = st.sampled_from([*(name for key in KEYS for name in key.split(".")), "gpu", "x", '""', '"a b"'])
tables = st.lists(names, min_size=1, max_size=3).map(".".join)
values = st.sampled_from(
    ['"x"', '""', "1", "-1", "1.5", "nan", "true", "[]", "{}", '["a"]', "[{}]", "1979-05-27", '"mock"']
)
lines = (
    st.builds("[{}]".format, tables) | st.builds("[[{}]]".format, tables) | st.builds("{} = {}".format, tables, values)
)


@given(text=st.lists(lines, max_size=8).map("\n".join))
@settings(deadline=None)
def test_any_settings_load_or_are_a_config_error(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-settings.toml"
    path.write_text(text)

    load_or_refuse(path, {}, {})


@given(
    env=st.dictionaries(
        st.sampled_from(VARIABLES), st.text(st.characters(exclude_characters="\0"), max_size=20), max_size=3
    ),
    flags=st.dictionaries(
        st.sampled_from(KEYS),
        st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists),
        max_size=3,
    ),
)
@settings(deadline=None)
def test_any_variables_and_flags_load_or_are_a_config_error(env: dict[str, str], flags: dict[str, object]) -> None:
    load_or_refuse(None, env, flags)


def load_or_refuse(path: Path | None, env: dict[str, str], flags: dict[str, object]) -> None:
    try:
        loaded = load(path, env, flags, search=())
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert "default" in loaded.config.queues
