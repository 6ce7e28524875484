"""`jobd open`: the address of the page, and a login that works once, soon, and is written down nowhere."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag

import anyio
import asyncpg
import pytest

from jobd.auth.token import digest_of
from jobd.cli import open_page
from tests.support.certificates import make_certificate
from tests.support.daemon import run_jobd
from tests.support.http import Answer, Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd


@pytest.fixture
def guarded(jobd: Callable[..., Jobd]) -> Jobd:
    """A jobd whose callers need a token."""
    daemon = jobd(None, JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    made = run_jobd("token", "create", "--name", "ann", "--scope", "client", "--data-dir", str(daemon.data_dir))
    assert made.returncode == 0, made.stderr
    wait_until(lambda: Api(daemon.address)("GET", "/v1/queues").status == 401, daemon.log)
    return daemon


def opened(daemon: Jobd, *arguments: str) -> dict[str, Any]:
    done = run_jobd("open", "--json", "--data-dir", str(daemon.data_dir), *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def code_in(url: str) -> str:
    fragment = urldefrag(url).fragment
    assert re.fullmatch(r"login=[A-Za-z0-9_-]{43}", fragment), fragment
    return fragment.removeprefix("login=")


def log_in(daemon: Jobd, code: str) -> Answer:
    return Api(daemon.address)("POST", "/v1/session", {"code": code})


def rows(daemon: Jobd, statement: str, *arguments: object) -> list[str]:
    """What the database answers, as text."""

    async def run() -> list[str]:
        connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
        found = [str(dict(row)) for row in await connection.fetch(statement, *arguments)]
        await connection.close()
        return found

    return anyio.run(run)


# -- the login ---------------------------------------------------------------------------------------------------------


def test_without_tokens_the_address_is_all(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    page = f"{daemon.addresses['JOBD_URL']}/"

    printed = run_jobd("open", "--data-dir", str(daemon.data_dir))

    assert (printed.returncode, printed.stdout, printed.stderr) == (0, f"{page}\n", "")
    assert opened(daemon) == {"url": page, "code_life_s": None, "has_browser": False}


def test_code_logs_in_once(guarded: Jobd) -> None:
    found = opened(guarded)
    code = code_in(found["url"])

    first, second = log_in(guarded, code), log_in(guarded, code)

    assert (found["code_life_s"], found["has_browser"]) == (60, False)
    assert (first.status, first.json["name"]) == (200, "local")
    assert (second.status, second.code) == (401, "unauthorized")
    cookie = first.headers["set-cookie"].partition(";")[0]
    assert Api(guarded.address, {"Cookie": cookie})("GET", "/v1/queues").status == 200


def test_code_is_of_no_use_when_it_is_too_old(guarded: Jobd) -> None:
    code = code_in(opened(guarded)["url"])
    older = "UPDATE jobd.login_codes SET expires_at = expires_at - interval '61 s' WHERE sha256 = $1 RETURNING 1"
    assert rows(guarded, older, digest_of(code.encode()))

    assert log_in(guarded, code).code == "unauthorized"


def test_code_is_in_no_log_and_in_no_table(guarded: Jobd) -> None:
    done = run_jobd("open", "--no-browser", "--data-dir", str(guarded.data_dir), JOBD_LOG_LEVEL="debug")
    code = code_in(done.stdout.strip())

    tables = "SELECT t::text FROM jobd.login_codes t UNION ALL SELECT t::text FROM jobd.audit t"
    stored = str(rows(guarded, tables))
    assert "login_code.create" in stored
    assert log_in(guarded, code).status == 200
    assert code not in stored + guarded.log_file.read_text() + done.stderr
    assert "whoever opens this first, within 60 s" in done.stderr


def test_page_of_a_jobd_with_tls_is_opened_too(jobd: Callable[..., Jobd], folder: Path) -> None:
    cert, key = make_certificate(folder)
    tls = {"JOBD_SERVER_TLS_CERT": str(cert), "JOBD_SERVER_TLS_KEY": str(key)}
    daemon = jobd(None, **tls).start()
    wait_until(lambda: "serves at" in daemon.log(), daemon.log)

    done = run_jobd("open", "--data-dir", str(daemon.data_dir), **tls)

    assert (done.returncode, done.stdout) == (0, f"{daemon.addresses['JOBD_URL']}/\n"), done.stderr
    assert done.stdout.startswith("https://")


# -- what to do when there is none -------------------------------------------------------------------------------------


def test_data_directory_without_a_jobd_says_what_to_do(folder: Path, jobd: Callable[..., Jobd]) -> None:
    never = run_jobd("open", "--data-dir", str(folder / "none"))
    daemon = jobd().start().until_ready()
    daemon.stop()
    stopped = run_jobd("open", "--data-dir", str(daemon.data_dir))

    assert (never.returncode, never.stdout) == (73, "")
    assert "jobd serve --data-dir" in never.stderr
    assert (stopped.returncode, stopped.stdout) == (69, "")
    assert f"no jobd runs on {daemon.data_dir}; start it: jobd serve --data-dir" in stopped.stderr


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_jobd_elsewhere_is_named_and_where_to_get_a_token(by: str, folder: Path) -> None:
    url = "https://board.example:7433"
    flags, variables = (("--url", f"{url}/"), {}) if by == "flag" else ((), {"JOBD_URL": url})

    done = run_jobd("open", *flags, HOME=str(folder), **variables)

    assert (done.returncode, done.stdout) == (0, f"{url}/\n")
    assert "jobd token create --name ME --scope admin` on that machine" in done.stderr


def test_variable_that_names_the_jobd_here_is_no_jobd_elsewhere(guarded: Jobd) -> None:
    """After `eval "$(jobd env)"`."""
    done = run_jobd("open", JOBD_URL=guarded.addresses["JOBD_URL"], JOBD_DATA_DIR=str(guarded.data_dir))

    assert done.returncode == 0, done.stderr
    code_in(done.stdout.strip())


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("unix:///run/jobd.sock", "a browser cannot open unix:///run/jobd.sock"),
        ("ftp://board", "url must be like http://host:port"),
        ("http://ann:secret-canary@board", "url must not hold a password"),
        ("board:7433", "url must be like http://host:port"),
    ],
)
def test_what_is_no_address_of_a_page_is_refused(url: str, why: str) -> None:
    done = run_jobd("open", "--url", url)

    assert (done.returncode, done.stdout) == (78, "")
    assert why in done.stderr
    assert "secret-canary" not in done.stderr


# -- the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture
def desktop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A desktop whose browser writes down its arguments, and a user who is not root."""
    program = folder / "xdg-open"
    program.write_text(f'#!{sys.executable}\nimport sys\nopen("{folder}/arguments", "w").write(sys.argv[1])\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return folder


def arguments_in(folder: Path) -> str:
    found = folder / "arguments"
    wait_until(lambda: found.exists() and found.read_text() != "", "no browser was started")
    return found.read_text()


def test_browser_gets_a_plain_address_as_it_is(desktop: Path) -> None:
    open_page.show("http://board/", None, no_browser=False, as_json=False)

    assert arguments_in(desktop) == "http://board/"


def test_browser_gets_a_code_by_a_private_file(desktop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The arguments of a process can be read by every user of the machine."""
    open_page.show("http://board/", "s3cret", no_browser=False, as_json=False, folder=desktop)

    file = Path(arguments_in(desktop))
    assert file == desktop / "open.html"
    assert file.stat().st_mode & 0o777 == 0o600
    assert 'content="0; url=http://board/#login=s3cret"' in file.read_text()
    assert capsys.readouterr().out == "http://board/#login=s3cret\n"


@pytest.mark.parametrize(
    ("variables", "uid", "is_found"),
    [
        ({"DISPLAY": ":0"}, 1000, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, 1000, True),
        ({"DISPLAY": ""}, 1000, False),
        ({}, 1000, False),
        ({"DISPLAY": ":0"}, 0, False),
    ],
)
def test_browser_is_started_on_a_desktop_only_and_never_as_root(
    desktop: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], uid: int, is_found: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    found = open_page.browser_of({"PATH": str(desktop), **variables})

    assert found == (str(desktop / "xdg-open") if is_found else None)


def test_no_browser_means_none(desktop: Path) -> None:
    open_page.show("http://board/", None, no_browser=True, as_json=False)
    open_page.show("http://board/", None, no_browser=False, as_json=True)

    assert not (desktop / "arguments").exists()
